"""The models of this process: built from the store, kept in memory, and brought up to date before they propose."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from storage.service.optimizations.records import Proposal
from storage.service.store import ServiceStore
from tuner.service.optimizer.settings import OptimizerSettings

if TYPE_CHECKING:
    from tuner.service.optimizer.model import Model

MOST_MODELS = 64
"""Models in memory; the one that was used longest ago is built again when it is needed."""


MOST_TRIALS = 50_000
"""Trials of all models in memory, at about 3 kB each."""


class Models:
    """Proposes configurations of optimizations; one thread at a time uses one model."""

    def __init__(self, service: ServiceStore) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._models: OrderedDict[int, tuple[threading.Lock, Model]] = OrderedDict()

    def propose(self, optimization: int, settings: OptimizerSettings, count: int, late: bool = False) -> Proposal:
        """Return configurations for new trials.

        Args:
            optimization: its row number.
            settings: of the optimization.
            count: of configurations.
            late: see `Proposal`.
        """
        lock, model = self._model(optimization, settings)
        with lock:
            model.update(self._service.changed_trials(optimization, model.suggested, model.ended))
            return Proposal(model.suggested, model.propose(count), late)

    def _model(self, optimization: int, settings: OptimizerSettings) -> tuple[threading.Lock, Model]:
        from tuner.service.optimizer.model import Model  # loads Optuna and SciPy

        with self._lock:
            if optimization not in self._models:
                self._models[optimization] = threading.Lock(), Model(settings)
            self._models.move_to_end(optimization)
            while len(self._models) > 1 and (len(self._models) > MOST_MODELS or self._trials() > MOST_TRIALS):
                self._models.popitem(last=False)
            return self._models[optimization]

    def _trials(self) -> int:
        return sum(model.suggested for _, model in self._models.values())
