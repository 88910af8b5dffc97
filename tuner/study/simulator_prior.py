"""The simulator prior: predictions of a study's configurations, and SLOs that one request alone can hardly meet.

In a simulated study, these predictions would equal the measurements. Its sampler therefore gets predictions from fitted
parameters that are off by `UNKNOWN_CARD`. Predictions of a card that nobody has measured are about as wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from records.trials import Provenance, StudyRecord, TrialRecord
from search_spaces import HardwareProfile, ModelShape, Price, SpaceError, hardware_named, version_tuple
from search_spaces.render import gpus_of, instances_of
from tuner.engines.base import EngineInfo
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.engines.simulator.learning import moved
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_of, perturbed
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.prediction import Platform, Predictions, build_server
from tuner.engines.simulator.serve_config import find_shape
from tuner.errors import TunerError
from tuner.sampler.encoding import Params
from tuner.sampler.prior import Prediction, Prior
from tuner.scoring.cost import per_gpu_metrics, token_costs
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, Goals
from tuner.study.specification.spec import StudySpec
from tuner.workloads.spec import ClosedLoop, SingleWorkload, Suite, Workload, read_workload

_log = logging.getLogger(__name__)

UNKNOWN_CARD = 0.2
"""Standard deviation of the logarithm of each fitted parameter's factor in the predictions of a simulated study."""

REFUSED = (TunerError, SpaceError, ConfigRefused, StartFailed)
"""What is raised for a configuration that is not predicted to run."""

BROKEN = (ArithmeticError, LookupError, ValueError)
"""What an error of the simulator itself raises, which ends neither a study nor a report."""

PREDICTED_FAILURE = Prediction(None, {FAILED: FAILED_VIOLATION})


def simulator_prior(spec: StudySpec, engine: EngineInfo) -> Prior | None:
    """Return the prior of a study; None if the simulator cannot predict it.

    The simulator needs the arithmetic of the GPU, the shape of the model and the version of the engine. It predicts a
    single workload, no capacity, and nothing in a study of several engines.
    """
    context = spec.space.context
    platform = _platform_of(spec, engine)
    if platform is None or context.model is None or spec.engines:
        return None
    if engine.provenance is Provenance.SIMULATED:
        platform = _as_unknown(platform, spec)
    simulator, shape = _simulator(platform, spec, spec.searched_workload), context.model
    if simulator is None:
        return None
    return lambda params: simulator.guard(lambda: simulator.predict(*server_with(spec, params, shape)), params)


def server_with(
    spec: StudySpec, config: Params, shape: ModelShape
) -> tuple[tuple[str, ...], dict[str, str], ModelShape]:
    """Return the arguments, the environment and the model's shape of a configuration's server; `shape` is the study's.

    Raises:
        SpaceError: for a configuration that is not in the space.
        NotSimulated: for a checkpoint whose shape is not known.
    """
    rendered = spec.space.render(config)
    environment = {**spec.server.environment, **rendered.environment}
    served = shape if rendered.model is None else find_shape(rendered.model)
    return (*spec.server.arguments, *rendered.argv), environment, served


def simulator_of(spec: StudySpec, engine: EngineInfo) -> SimulatorPrior | None:
    """Return predictions of a study's whole workload, also for a simulated study; None as in `simulator_prior`."""
    platform = _platform_of(spec, engine)
    return None if platform is None else _simulator(platform, spec, spec.workload)


def simulator_prior_of_source(
    study: StudyRecord, spec: StudySpec, packages: frozenset[str] | None
) -> Callable[[TrialRecord], Prediction | None] | None:
    """Return a function that predicts the trials of a source study; None as in `simulator_prior`.

    Args:
        study: the source study; its trials are predicted with the commands that launched them.
        spec: the new study, whose objectives, SLOs and deadlines apply.
        packages: assumed to have been installed beside vLLM.
    """
    premise = study.premise
    try:
        card, version = hardware_named(str(study.facts["hardware"])), premise["engine"]["version"]
        platform = _platform(card, version, packages, int(study.facts.get("gpus", 1)))
    except (KeyError, SpaceError):
        return None
    workload = read_workload(premise["workload"]).model_copy(update=premise.get("search", {}))
    own_price = replace(spec, price=Price.from_dict(study.facts.get("price")))
    if platform is not None and study.provenance is Provenance.SIMULATED:
        platform = _as_unknown(platform, spec)
    simulator = None if platform is None else _simulator(platform, own_price, workload)
    if simulator is None:
        return None

    def predict(record: TrialRecord) -> Prediction | None:
        outcome = record.outcome
        if outcome is None or outcome.served is None:
            return None
        model, argv = outcome.served
        return simulator.guard(lambda: simulator.predict(argv, outcome.environment, find_shape(model)), record.config)

    return predict


def _as_unknown(platform: Platform, spec: StudySpec) -> Platform:
    """Return the platform as someone predicts it who has not measured its card; the study's seed says how far off."""
    parameters = perturbed(platform.parameters, platform.card.key, spec.search.seed, UNKNOWN_CARD)
    return replace(platform, parameters=parameters)


def _platform_of(spec: StudySpec, engine: EngineInfo) -> Platform | None:
    """Return the platform of a study's servers, with what was learned of their hosts.

    None if the simulator lacks it, as for every engine but vLLM.
    """
    if not kind_of(engine.name).can(Feature.PREDICTED):
        return None
    platform = _platform(spec.space.context.hardware, engine.version, engine.packages, spec.gpus)
    return platform if platform is None or spec.learned is None else moved(platform, spec.learned.point)


def _platform(card: HardwareProfile, version: str, packages: frozenset[str] | None, gpus: int) -> Platform | None:
    """Return the platform of the servers; None if the simulator lacks the GPU or the version."""
    try:
        known = version_tuple(version.partition("+")[0])
    except ValueError:
        return None
    if not (card.tflops.get("float16") and card.bandwidth_gbs and card.compute_capability):
        return None
    return Platform(card, parameters_of(card.key), known, packages or frozenset(), gpus)


def _simulator(platform: Platform, spec: StudySpec, workload: Workload) -> SimulatorPrior | None:
    """Return the prior of a workload; None for a suite of workloads and where the capacity is an objective."""
    if isinstance(workload, Suite) or spec.goals.has_objective("capacity"):
        return None
    return SimulatorPrior(platform, spec.goals, workload, spec.limits.benchmark_s, spec.price, spec.gpus)


@dataclass
class SimulatorPrior:
    """Predictions of one workload on one platform; `limit_s` is the deadline of a benchmark, in simulated seconds."""

    platform: Platform
    goals: Goals
    workload: SingleWorkload
    limit_s: float
    price: Price | None = None
    gpus: int = 1
    _warned: bool = field(default=False, init=False)
    _predictions: Predictions = field(init=False)

    def __post_init__(self) -> None:
        self._predictions = Predictions(self.workload, self.limit_s)

    def guard(self, predict: Callable[[], Prediction], params: Params) -> Prediction | None:
        """Return a prediction; None if the simulator does not support a flag, or has an error, which is logged once."""
        try:
            return predict()
        except NotSimulated:
            return None
        except (ConfigRefused, StartFailed):
            return PREDICTED_FAILURE
        except TunerError:
            return None
        except BROKEN as error:
            if not self._warned:  # An error for one configuration is likely one for hundreds.
                cause, detail = f"{type(error).__name__}: {error}", _log.isEnabledFor(logging.DEBUG)
                _log.warning("no prediction of %s, the simulator failed: %s", dict(params), cause, exc_info=detail)
            self._warned = True
            return None

    def predict(self, argv: Sequence[str], environment: Mapping[str, str], shape: ModelShape) -> Prediction:
        """Return the prediction of a server; arguments and errors as in `metrics`."""
        metrics = self.metrics(argv, environment, shape)
        if metrics is None:
            return PREDICTED_FAILURE
        goals = self.goals
        values = [metrics.get(objective.metric) for objective in goals.objectives]
        known = tuple(value for value in values if value is not None)
        # Nothing predicts the answers; they are taken as kept, so that an SLO on them rules nothing out.
        known_metrics = {"quality": 1.0, **metrics}
        constraints = {str(slo): slo.violation(known_metrics.get(slo.metric)) for slo in goals.slos}
        return Prediction(known, constraints) if len(known) == len(values) else PREDICTED_FAILURE

    def metrics(
        self, argv: Sequence[str], environment: Mapping[str, str], shape: ModelShape
    ) -> dict[str, float | None] | None:
        """Return the predicted metrics of `vllm serve MODEL argv`; None if no request would be completed.

        Raises:
            ConfigRefused: if vLLM would refuse the arguments.
            StartFailed: if the server would not start.
        """
        metrics = self._predictions.of(build_server(self.platform, argv, environment, shape)).metrics
        if metrics is None:
            return None
        used = min(gpus_of(argv) * instances_of(argv), self.gpus)
        shared = per_gpu_metrics(metrics, used) if self.gpus > 1 else {}
        price = None if self.price is None else self.price.per_gpu_hour * used
        return {**metrics, **shared, **token_costs(metrics, price)}


LEAST_SHARE = 0.5
"""Other flags, and errors of the prediction, may halve what the defaults are predicted to need; more is unlikely."""

_LATENCIES = ("_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms")


def hardly_met_slos(spec: StudySpec, engine: EngineInfo) -> Iterator[str]:
    """Yield a line for each upper bound on a latency that is far below that of one request on an idle server.

    Nothing is yielded where the simulator does not predict the study, as on a CPU.
    """
    load = ClosedLoop(
        max_concurrency=1, num_prompts=2, input_len=spec.workload.input_len, output_len=spec.workload.output_len
    )
    simulator, shape = simulator_of(replace(spec, workload=load), engine), spec.space.context.model
    if simulator is None or shape is None:
        return
    try:
        metrics = simulator.metrics(spec.server.arguments, spec.server.environment, shape) or {}
    except (*REFUSED, *BROKEN):
        return  # a warning is worth no failed study
    for slo in spec.goals.slos:
        name = slo.metric.rpartition(".")[2]
        idle = metrics.get(name) if name.endswith(_LATENCIES) and not name.startswith("std") else None
        if idle is not None and slo.threshold < LEAST_SHARE * idle:
            yield (
                f"SLO {slo} can hardly be met: one request alone, with the defaults, is predicted to have {idle:.4g}; "
                "Ctrl-C, and give a higher bound"
            )
