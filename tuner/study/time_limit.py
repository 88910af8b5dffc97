"""The time limit of a run, and the time that it reserves for the confirmation, both in real seconds of the run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tuner.cancellation import Wishes
from tuner.clock import Clock
from tuner.study.loop import Loop
from tuner.study.protocols import StudyObserver
from tuner.study.specification.spec import StudySpec

LARGEST_RESERVE = 0.5
"""The largest share of the limit that is reserved: one slow trial must not end the search."""

SMALLER_FORMS = 3
"""The most smaller forms of a winner that are measured at once."""

SINGLE_FLAGS = 4
"""Flags that a reduced winner is expected to keep; each is left out once."""

_NOTED_CHANGE = 1.5
"""A reserve is noted again when it has changed by this factor, either way."""


class TimeLimit:
    """The time limit of a run, less the reserve for the confirmation.

    Args:
        spec: the study.
        timeout_s: seconds from the start of the run; None: no limit.
        loop: has the durations of the trials so far.
        slots: number of rounds that run at the same time.
        clock: the clock of the run.
        began: the start of the run by that clock.
        observer: gets a note of the reserve.
        wishes: end the time early.
    """

    def __init__(
        self,
        spec: StudySpec,
        timeout_s: float | None,
        loop: Loop,
        slots: int,
        clock: Clock,
        began: float,
        observer: StudyObserver,
        wishes: Wishes,
    ) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._loop = loop
        self._slots = slots
        self._clock = clock
        self._began = began
        self._observer = observer
        self._noted_s = 0.0
        self.wishes = wishes

    def ends_search(self) -> bool:
        """Return whether the confirmation has to begin now."""
        if self.wishes.ends_search():
            return True
        if self._timeout_s is None:
            return False
        loop = self._loop
        expected = expected_confirmation_s(self._spec, loop.trial_seconds, loop.benchmark_seconds, self._slots)
        reserve = min(expected, LARGEST_RESERVE * self._timeout_s)
        if expected > 0 and not self._noted_s / _NOTED_CHANGE < reserve < self._noted_s * _NOTED_CHANGE:
            self._noted_s = reserve
            self._observer.note(_reserve_note(self._timeout_s, reserve, expected))
        return self._elapsed_s() + reserve >= self._timeout_s

    def is_over(self) -> bool:
        """Return whether the whole limit has passed."""
        return self.wishes.ends_search() or (self._timeout_s is not None and self._elapsed_s() >= self._timeout_s)

    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._began


def _reserve_note(timeout_s: float, reserve_s: float, expected_s: float) -> str:
    """Return the reserve, and how it comes about if it is the largest one."""
    text = (
        f"time limit {_duration(timeout_s)}: the search ends {_duration(reserve_s)} before it, "
        "which are reserved for the confirmation"
    )
    if reserve_s < expected_s:
        text += f"; it is expected to take {_duration(expected_s)}, and half of the limit is the most that is reserved"
    return text


def _duration(seconds: float) -> str:
    """Return `40 s`, `35 min` or `4.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def expected_confirmation_s(
    spec: StudySpec, trial_seconds: Sequence[float], benchmark_seconds: Sequence[float], slots: int
) -> float:
    """Return the expected seconds of the confirmation, from the trials so far; 0 before the first trial.

    The estimate is `ceil(rounds / slots) * (finalists + 1)` measurements. One measurement takes the median time of a
    trial outside its benchmarks plus the median time of its benchmarks times `spec.round_cost`. The reduction adds
    `SMALLER_FORMS` and `SINGLE_FLAGS` trials, and their rounds beside the winner and the defaults.

    Args:
        spec: the study.
        trial_seconds: duration of each trial.
        benchmark_seconds: duration of each trial's benchmarks, all repeats.
        slots: number of rounds that run at the same time.
    """
    rounds = spec.confirmation.confirm_rounds
    if not trial_seconds or not rounds:
        return 0.0
    overhead = statistics.median(t - b for t, b in zip(trial_seconds, benchmark_seconds, strict=True))
    measurement = overhead + statistics.median(benchmark_seconds) * spec.round_cost
    compared, reduction_s = spec.confirmation.finalists + 1, 0.0
    if spec.confirmation.reduce:
        for forms in (SMALLER_FORMS, SINGLE_FLAGS):
            compared += forms + 2
            reduction_s += statistics.median(trial_seconds) * -(-forms // slots)
    return reduction_s + measurement * compared * -(-rounds // slots)
