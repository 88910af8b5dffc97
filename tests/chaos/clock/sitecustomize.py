"""Steps the date of every Python process of a study: Python imports this file first, from `PYTHONPATH`.

The file that `CHAOS_CLOCK` names has the seconds between the process's date and the machine's. The monotonic clock
stays, as it does when an administrator sets the date.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import time_machine

POLL_S = 0.2


def follow(file: Path, date_at_zero: float) -> None:
    """Step the date whenever the file's text changes.

    Args:
        file: has the seconds.
        date_at_zero: the machine's date when the monotonic clock was 0, in seconds since 1970.
    """
    travel: time_machine.travel | None = None
    step = "0"
    while True:
        if (text := file.read_text(encoding="utf-8")) and text != step:
            if travel is not None:
                travel.stop()
            step = text
            travel = time_machine.travel(date_at_zero + time.monotonic() + float(step), tick=True)
            travel.start()
        time.sleep(POLL_S)


if place := os.environ.get("CHAOS_CLOCK"):
    at_zero = time.time() - time.monotonic()
    threading.Thread(target=follow, args=(Path(place), at_zero), daemon=True).start()
