"""The predictions of a study while it learns of its hosts.

The surrogate models measured minus predicted. When the predictions change, every residual has to change with them, so
the sampler then begins anew, as in a process that resumes the study: with the first predictions and those of measured
configurations (docs/design/sampler.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from tuner.cancellation import CancelToken
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.learning import HostPosterior
from tuner.sampler.prior import Prior
from tuner.study.simulator_prior import simulator_prior
from tuner.study.specification.spec import StudySpec

Learned = Callable[[], HostPosterior | None]
"""Returns what is known of a study's hosts by now: the same object until that changes."""


class LearnedPrior:
    """The simulator prior of a study, as its hosts are known by now.

    Attributes:
        prior: the predictions; None as in `simulator_prior`.
        spread: see `ResidualSampler`.
    """

    def __init__(
        self, spec: StudySpec, engine: EngineInfo, learned: Learned | None = None, stop: CancelToken | None = None
    ) -> None:
        """Begin with what is known; without `learned`, that is `spec.learned` throughout.

        Once `stop` is set, nothing is predicted: a stopped run does not wait for hundreds of predictions.
        """
        self._spec, self._engine, self._stop = spec, engine, stop or threading.Event()
        self._learned = learned or (lambda: spec.learned)
        self._use(self._learned())

    def update(self) -> bool:
        """Return whether the predictions have changed."""
        known = self._learned()
        if known is self._known:
            return False
        self._use(known)
        return True

    def _use(self, known: HostPosterior | None) -> None:
        self._known = known
        prior = simulator_prior(replace(self._spec, learned=known), self._engine)
        self.prior: Prior | None = None
        if prior is not None:
            self.prior = lambda params: None if self._stop.is_set() else prior(params)
        self.spread = 1.0 if known is None else known.spread
