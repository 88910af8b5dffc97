"""Predictions for the next choice, asked for beside the trial that runs: no choice waits for the simulator."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from optuna.study import StudyDirection

from tuner.study.sampling.encode import Params
from tuner.study.sampling.sampler import ResidualSampler

LOWEST_PRIORITY = 19


class Ahead:
    """Asks for what a sampler wants in another thread, at the lowest priority: a trial is being measured beside it.

    It is asked for in the order in which it was wanted, so a study repeats exactly however long its trials take.
    """

    def __init__(self, sampler: ResidualSampler, directions: Sequence[StudyDirection]) -> None:
        self._sampler = sampler
        self._directions = directions
        self._thread: threading.Thread | None = None

    def begin(self, tried: Sequence[Params] = ()) -> None:
        """Begin, once what was begun before is done; `tried` are configurations that the sampler did not choose."""
        self._sampler.want(tried)
        self._thread = threading.Thread(target=self._run, args=(self._thread,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is wanted any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        self._sampler.prepare(self._directions)
