"""Several vLLM servers behind one address."""

from __future__ import annotations

import os
import shutil


def find_haproxy() -> str | None:
    """Return the path of HAProxy; None without one. Debian installs it where the PATH of a user does not look."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which("haproxy", path=os.pathsep.join(folders))
