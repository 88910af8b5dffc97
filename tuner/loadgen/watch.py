"""Measure how late the load generator's event loop wakes up: its own share of each latency."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

WAKE_UP_PERIOD_S = 0.005


class LoopWatch:
    """Wakes up every 5 ms and stores the delay; time stamps of tokens are late by as much."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + WAKE_UP_PERIOD_S
            await asyncio.sleep(WAKE_UP_PERIOD_S)
            self.lags_s.append(max(0.0, loop.time() - due))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
