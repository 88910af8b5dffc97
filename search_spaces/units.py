"""Units that several packages convert with."""

from __future__ import annotations

GIB = 2**30
"""Bytes in one GiB."""
