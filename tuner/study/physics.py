"""What the simulated engine predicts of a study's configurations: where the search for real measurements begins.

A simulated study has no such prior: it would be told its own answers.
"""

from __future__ import annotations

import logging

from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.models import find_shape, version_tuple
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Site, answered, metrics_of, send, set_up
from tuner.errors import TunerError
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.study.sampling.belief import Prediction, Prior
from tuner.study.sampling.encode import Params
from tuner.study.spec import StudySpec
from tuner.workloads.spec import AnyLoad
from tuner.workloads.suite import Suite

_log = logging.getLogger(__name__)

FAILS = Prediction(None, {FAILED: FAILED_VIOLATION})


def physics_of(spec: StudySpec, engine: EngineInfo) -> Prior | None:
    """Return what predicts a configuration of a study; None where the simulator knows too little.

    It has to know the card's arithmetic, the model's shape and the version, and the load has to be one load.
    """
    context = spec.space.context
    card = context.hardware
    knows_card = bool(card.tflops.get("float16") and card.bandwidth_gbs and card.compute_capability)
    one_load = not isinstance(spec.workload, Suite) and not spec.judge.wants("capacity")
    if engine.provenance is not Provenance.MEASURED or not knows_card or context.model is None or not one_load:
        return None
    try:
        version = version_tuple(engine.version.partition("+")[0])
    except ValueError:
        return None
    return Physics(spec, version, engine.packages or frozenset()).predict


class Physics:
    """Predictions for one study."""

    def __init__(self, spec: StudySpec, version: tuple[int, ...], packages: frozenset[str]) -> None:
        card = spec.space.context.hardware
        self._spec, self._site = spec, Site(card, parameters_of(card.key), version, packages)
        self._told = False

    def predict(self, params: Params) -> Prediction | None:
        """Return what is predicted of a configuration; None where the simulator does not know its flags."""
        try:
            return self._foreseen(params)
        except (ConfigRefused, StartFailed):
            return FAILS
        except TunerError:
            return None
        except (ArithmeticError, LookupError, ValueError) as error:
            if not self._told:  # once: what breaks it for one configuration does for hundreds
                what, detail = f"{type(error).__name__}: {error}", _log.isEnabledFor(logging.DEBUG)
                _log.warning("no prediction of %s, the simulator broke: %s", dict(params), what, exc_info=detail)
            self._told = True
            return None

    def _foreseen(self, params: Params) -> Prediction:
        spec = self._spec
        rendered = spec.space.render(params)
        words, environment = (*spec.base_argv, *rendered.argv), {**spec.base_environment, **rendered.environment}
        shape = spec.space.context.model if rendered.model is None else find_shape(rendered.model)
        assert shape is not None
        machine = set_up(self._site, words, environment, shape)
        load: AnyLoad = spec.searched_workload  # type: ignore[assignment]
        run = send(machine, load, load.repeat_seed(0), spec.limits.benchmark_s)
        return self._judged(metrics_of(load, run, machine) if answered(run) else None)

    def _judged(self, metrics: dict[str, float | None] | None) -> Prediction:
        if metrics is None:
            return FAILS
        judge = self._spec.judge
        values = [metrics.get(objective.metric) for objective in judge.objectives]
        known = tuple(value for value in values if value is not None)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in judge.slos}
        return Prediction(known, constraints) if len(known) == len(values) else FAILS
