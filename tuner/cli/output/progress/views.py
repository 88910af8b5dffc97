"""The view of a study: live on a terminal, else one line a trial."""

from __future__ import annotations

import sys

from tuner.cli.output.progress.live_view import LiveView
from tuner.cli.output.progress.plain_view import PlainView


def new_view(plain: bool) -> LiveView | PlainView:
    """Return the live view where standard error is a terminal, unless `plain`."""
    return PlainView() if plain or not sys.stderr.isatty() else LiveView()
