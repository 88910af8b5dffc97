"""What the simulated engine predicts of a study's configurations: where the search for real measurements begins.

A simulated study has no such prior: it would be told its own answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from search_spaces import HardwareProfile, ModelShape, SpaceError, hardware_named, version_tuple
from storage.records import Provenance, StudyRecord, TrialRecord
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config.model_shape import find_shape
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform, any_completed, build_server, client_metrics, run_workload
from tuner.errors import TunerError
from tuner.sampler.prior.prior_cache import Prediction, Prior
from tuner.sampler.surrogate.encoding import Params
from tuner.scoring.judge import FAILED, FAILED_VIOLATION, Judge
from tuner.study.spec import StudySpec
from tuner.workloads.spec import SingleWorkload, Workload, read_workload
from tuner.workloads.suite import Suite

_log = logging.getLogger(__name__)

FAILS = Prediction(None, {FAILED: FAILED_VIOLATION})


def simulator_prior(spec: StudySpec, engine: EngineInfo) -> Prior | None:
    """Return what predicts a configuration of a study; None where the simulator knows too little.

    It has to know the card's arithmetic, the model's shape and the version, and the load has to be one load.
    """
    context = spec.space.context
    site = _site(context.hardware, engine.version, engine.packages)
    if engine.provenance is not Provenance.MEASURED or site is None or context.model is None:
        return None
    physics = _physics(site, spec.judge, spec.searched_workload, spec.limits.benchmark_s)
    shape = context.model

    def predict(physics: SimulatorPrior, params: Params) -> Prediction:
        rendered = spec.space.render(params)
        words = (*spec.server.arguments, *rendered.argv)
        environment = {**spec.server.environment, **rendered.environment}
        return physics.foreseen(words, environment, shape if rendered.model is None else find_shape(rendered.model))

    return None if physics is None else lambda params: physics.safely(lambda: predict(physics, params), params)


def simulator_prior_of_source(
    study: StudyRecord, spec: StudySpec, packages: frozenset[str] | None
) -> Callable[[TrialRecord], Prediction | None] | None:
    """Return what predicts the trials of a source study by the objectives of another; None as in `simulator_prior`.

    Args:
        study: the earlier one; its trials are predicted as they were launched.
        spec: whose judge and deadlines hold.
        packages: what is taken to have been installed beside vLLM.
    """
    premise = study.premise
    try:
        site = _site(hardware_named(str(study.facts["hardware"])), premise["engine"]["version"], packages)
    except (KeyError, SpaceError):
        return None
    load = read_workload(premise["workload"]).model_copy(update=premise.get("search", {}))
    physics = None if site is None else _physics(site, spec.judge, load, spec.limits.benchmark_s)
    if physics is None:
        return None

    def predict(record: TrialRecord) -> Prediction | None:
        outcome = record.outcome
        if outcome is None or "serve" not in outcome.argv:
            return None
        _, model, *words = outcome.argv[outcome.argv.index("serve") :]
        return physics.safely(
            lambda: physics.foreseen(tuple(words), outcome.environment, find_shape(model)), record.config
        )

    return predict


def _site(card: HardwareProfile, version: str, packages: frozenset[str] | None) -> Platform | None:
    """Return where servers run, if the simulator knows the card and the version."""
    try:
        known = version_tuple(version.partition("+")[0])
    except ValueError:
        return None
    if not (card.tflops.get("float16") and card.bandwidth_gbs and card.compute_capability):
        return None
    return Platform(card, parameters_of(card.key), known, packages or frozenset())


def _physics(site: Platform, judge: Judge, load: Workload, limit_s: float) -> SimulatorPrior | None:
    """Return what predicts one load; None for several one after another, and for a search for the highest rate."""
    return None if isinstance(load, Suite) or judge.wants("capacity") else SimulatorPrior(site, judge, load, limit_s)


class SimulatorPrior:
    """Predictions of one load on one card."""

    def __init__(self, site: Platform, judge: Judge, load: SingleWorkload, limit_s: float) -> None:
        self._site, self._judge, self._load, self._limit_s = site, judge, load, limit_s
        self._told = False

    def safely(self, predict: Callable[[], Prediction], params: Params) -> Prediction | None:
        """Return a prediction; None where the simulator does not know a flag, or breaks."""
        try:
            return predict()
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

    def foreseen(self, words: Sequence[str], environment: Mapping[str, str], shape: ModelShape) -> Prediction:
        """Return what is predicted of a command."""
        machine = build_server(self._site, words, environment, shape)
        run = run_workload(machine, self._load, self._load.repeat_seed(0), self._limit_s)
        return self._judged(client_metrics(self._load, run, machine) if any_completed(run) else None)

    def _judged(self, metrics: dict[str, float | None] | None) -> Prediction:
        if metrics is None:
            return FAILS
        judge = self._judge
        values = [metrics.get(objective.metric) for objective in judge.objectives]
        known = tuple(value for value in values if value is not None)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in judge.slos}
        return Prediction(known, constraints) if len(known) == len(values) else FAILS
