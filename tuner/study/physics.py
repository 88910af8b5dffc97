"""What the simulated engine predicts of a study's configurations: where the search for real measurements begins.

A simulated study has no such prior: it would be told its own answers.
"""

from __future__ import annotations

from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config import ServeConfig, resolve
from tuner.engines.simulator.figures import bench_metrics, record_of
from tuner.engines.simulator.loads import client_of
from tuner.engines.simulator.machine import Machine
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.models import find_shape, version_tuple
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.errors import TunerError
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.study.sampling.belief import Prediction, Prior
from tuner.study.sampling.encode import Params
from tuner.study.spec import StudySpec
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.spec import AnyLoad, Workload
from tuner.workloads.suite import Suite

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
        self._spec, self._version, self._packages = spec, version, packages
        self._card = spec.space.context.hardware

    def predict(self, params: Params) -> Prediction | None:
        """Return what is predicted of a configuration; None where the simulator does not know its flags."""
        try:
            config, marlin = self._config(params)
            machine = Machine(config, parameters_of(self._card.key), marlin)
        except (ConfigRefused, StartFailed):
            return FAILS
        except TunerError:
            return None
        return self._judged(self._metrics(config, machine))

    def _config(self, params: Params) -> tuple[ServeConfig, str | None]:
        spec = self._spec
        rendered = spec.space.render(params)
        environment = {**spec.base_environment, **rendered.environment}
        shape = spec.space.context.model if rendered.model is None else find_shape(rendered.model)
        assert shape is not None
        words = (*spec.base_argv, *rendered.argv)
        config = resolve(words, environment, shape, self._card, self._version, self._packages)
        return config, environment.get("VLLM_MARLIN_INPUT_DTYPE")

    def _metrics(self, config: ServeConfig, machine: Machine) -> dict[str, float | None] | None:
        """Return the predicted metrics; None where no request is answered or the load does not end."""
        load: AnyLoad = self._spec.workload  # type: ignore[assignment]
        seed = load.repeat_seed(0)
        client = client_of(load, seed, config.prefix_caching, machine.known.client_us * 1e-6)
        run = machine.run(client, seed, noise=False, limit_s=self._spec.limits.benchmark_s)
        if not any(job.status == "completed" for job in run.jobs):
            return None
        if not isinstance(load, Workload):
            records = [record_of(job, run.seen, config.stream_interval, machine.speculative) for job in run.jobs]
            return dict(repeat_of(load, records, 0).metrics)
        if any(job.in_flight or job.end_s is None for job in run.jobs):
            return None
        return bench_metrics(run.jobs, run.seen, config.stream_interval, machine.speculative, load.percentiles)

    def _judged(self, metrics: dict[str, float | None] | None) -> Prediction:
        if metrics is None:
            return FAILS
        judge = self._spec.judge
        values = [metrics.get(objective.metric) for objective in judge.objectives]
        known = tuple(value for value in values if value is not None)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in judge.slos}
        return Prediction(known, constraints) if len(known) == len(values) else FAILS
