"""Predictions for the next choice, asked for beside the trial that runs: hardly a choice waits for the simulator."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from optuna.study import StudyDirection

from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Params

FIRST, LATER = 19, 0
"""Niceness: a trial is being measured beside it. The first takes half a minute, beside a load; a later one a second or
two, while a server starts. That one is not behind the servers, which have 0, because a choice waits for the prediction
that is being made: at 19 beside busy cores that would take seconds."""


class BackgroundPredictions:
    """Asks for what a sampler wants in another thread, in the order in which it was wanted."""

    def __init__(self, sampler: ResidualSampler, directions: Sequence[StudyDirection]) -> None:
        self._sampler = sampler
        self._directions = directions
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._niceness = FIRST

    def begin(self, tried: Sequence[Params] = ()) -> None:
        """Begin, once what was begun before is done; `tried` are configurations that the sampler did not choose."""
        self._sampler.want(tried)
        self._thread = threading.Thread(target=self._run, args=(self._thread, self._niceness), daemon=True)
        self._niceness = LATER
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is wanted any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stop(self) -> None:
        """End with the prediction that is being made: the sampler's next choice begins with those that are left.

        So the order stays, and a study repeats exactly however long its trials take. Those before the first choice are
        waited for.
        """
        self._stopped.set()
        self.wait()
        self._stopped.clear()

    def _run(self, before: threading.Thread | None, niceness: int) -> None:
        if before is not None:
            before.join()
        own = threading.get_native_id()
        # who was started with a lower priority may not have this one
        os.setpriority(os.PRIO_PROCESS, own, max(niceness, os.getpriority(os.PRIO_PROCESS, own)))
        self._sampler.prepare(self._directions, self._stopped.is_set)
