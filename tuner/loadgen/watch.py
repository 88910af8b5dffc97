"""How late the load generator itself is: the part of every latency that is its own doing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

PERIOD_S = 0.005


class LoopWatch:
    """Wakes up every 5 ms and notes how late; an event loop that is kept busy stamps tokens as late as that."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.lags_s.append(max(0.0, loop.time() - due))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
