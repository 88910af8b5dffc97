"""Compute the predictions for the next suggestion, in a background thread while a trial runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from optuna.study import StudyDirection

from tuner.sampler.candidates import CandidateSpace, few_changes
from tuner.sampler.encoding import Params
from tuner.sampler.prior import PriorCache, import_forest, rank_by_prediction
from tuner.sampler.transfer import Transfer

BEST_PREDICTIONS = 12
"""Best predicted configurations whose neighbours the initial predictions explore."""
DRAWS_PER_PREDICTION = 20
"""Draws per initial prediction before the exploration gives up, in a space with few configurations."""
FIRST_NICENESS, LATER_NICENESS = 19, 0
"""Niceness of the first run and of later runs of the thread.

The first run takes half a minute beside a benchmark, which it must not disturb. Later runs take a second or two while a
server starts. The next suggestion waits for the prediction in progress, and computes the rest at its own priority.
"""


class BackgroundPredictions:
    """Owns the queue of configurations to predict and the thread that predicts them.

    Predictions are computed in the order of the queue, in whichever thread: a study repeats exactly, however long its
    trials take.
    """

    def __init__(
        self,
        cache: PriorCache,
        space: CandidateSpace,
        transfer: Transfer,
        weights: Sequence[float] | None,
        initial: int,
    ) -> None:
        self._cache, self._space, self._transfer = cache, space, transfer
        self._weights, self._initial = weights, initial
        self._queue: list[Params] = []
        self._exploring: Iterator[None] | None = None
        self._explored = False
        self._thread: threading.Thread | None = None
        self._stopped, self._abandoned = threading.Event(), threading.Event()
        self._niceness = FIRST_NICENESS

    def enqueue(self, configs: Iterable[Params]) -> None:
        """Add configurations to the queue, if there is a prior."""
        if self._cache.exists:
            self._queue += configs

    def start(self, directions: Sequence[StudyDirection]) -> None:
        """Compute everything that is queued in a thread, after a run that is still in progress."""
        if not self._cache.exists:
            return
        arguments = self._thread, self._niceness, directions
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._niceness = LATER_NICENESS
        self._thread.start()

    def wait(self) -> None:
        """Wait until the thread has computed everything that is queued."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """End the thread after the prediction in progress; nothing is predicted any more."""
        self._abandoned.set()
        self.wait()

    def finish(self, directions: Sequence[StudyDirection]) -> None:
        """Stop the thread after the prediction in progress and compute the rest in the calling thread."""
        self._stopped.set()
        self.wait()
        self._stopped.clear()
        self._compute(directions, lambda: False)

    def _run(self, before: threading.Thread | None, niceness: int, directions: Sequence[StudyDirection]) -> None:
        if before is not None:
            before.join()
        if not self._explored:
            import_forest()  # before the priority is lowered, because a suggestion may wait for the thread
        thread = threading.get_native_id()
        # A process that was started with a lower priority may not raise the thread's.
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
        self._compute(directions, self._stopped.is_set)

    def _compute(self, directions: Sequence[StudyDirection], stopped: Callable[[], bool]) -> None:
        if not self._cache.exists or not self._space.is_known:
            return
        if self._exploring is None:
            self._exploring = explore(self._cache, self._space, directions, self._weights, self._initial)
        for _ in self._exploring:
            if stopped() or self._abandoned.is_set():
                return
        if not self._explored:
            self._explored = True
            self._transfer.predict_sources()
        while self._queue and not (stopped() or self._abandoned.is_set()):
            self._cache.predict(self._queue.pop(0))


def explore(
    cache: PriorCache,
    space: CandidateSpace,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
    count: int,
) -> Iterator[None]:
    """Predict `count` configurations: a third drawn at random, then neighbours of the best predicted ones.

    The generator yields after each draw. The configurations are the same in every run.
    """
    rng = np.random.default_rng(0)
    leaders: list[Params] = []
    for _ in range(DRAWS_PER_PREDICTION * count):
        known = len(cache.configurations)
        if known >= count:
            break
        if known >= count // 3 and known % BEST_PREDICTIONS == 0:
            leaders = rank_by_prediction(cache, directions, weights)[:BEST_PREDICTIONS]
        if leaders:
            drawn = space.neighbour(rng, leaders[int(rng.integers(len(leaders)))], few_changes(rng))
        else:
            drawn = space.draw(rng)
        if drawn is not None:
            cache.predict(drawn)
        yield
