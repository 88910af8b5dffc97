"""Problems of the simulated engine: the spaces, rules, loads and judges of real studies, measured in another world.

A configuration fails as the simulator lets it fail: refused by vLLM's checks, out of memory at the start, a load that
is not over in time. A trial takes its server's start, colder the first time that a study compiles something, its load
and its stop; a warm-up is left out. What is predicted (`prior`) comes from the stored parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.search.problems.best import find_best
from benchmarks.search.problems.problem import (
    Compiles,
    Config,
    Drawn,
    Outcome,
    Problem,
    Suggest,
    crashed,
    generator,
    key_of,
)
from benchmarks.search.problems.world import World, sped_up
from search_spaces import HardwareProfile, ModelShape, ParameterValue, hardware_named, version_tuple
from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config.flags import flag_names
from tuner.engines.simulator.config.model_shape import find_shape
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES, default_version
from tuner.engines.simulator.configured_server import ConfiguredServer
from tuner.engines.simulator.engine import STOP_S
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.engines.simulator.prediction import Platform, any_completed, build_server, client_metrics, run_workload
from tuner.engines.simulator.timing.startup import compile_key, kernel_key, processes_s, startup_s
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.scoring.score import score
from tuner.study.builder import Request, draft, finish
from tuner.study.resolve_workload import make_judge
from tuner.study.spec import StudySpec
from tuner.workloads.presets import load_preset, preset_names
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

Metrics = Mapping[str, float | None]
SHORT_NOISE = 1.2
"""How much more a shorter load of a search varies: assumed; most of the noise lies between launches."""


@dataclass(frozen=True)
class Ran:
    """What a simulated trial came to: its metrics (None: it failed), its seconds, and what it compiles."""

    metrics: Metrics | None
    seconds: float
    compiles: Compiles = ()


@dataclass(frozen=True)
class Rig:
    """A study and the card and the vLLM that it is simulated on."""

    spec: StudySpec
    card: HardwareProfile
    version: str
    shape: ModelShape
    packages: frozenset[str] = SIMULATED_PACKAGES
    forked: bool = True

    def run(self, config: Config, known: Parameters) -> Ran:
        """Return what becomes of a configuration, without noise."""
        rendered = self.spec.space.render(config)
        shape = self.shape if rendered.model is None else find_shape(rendered.model)
        words = (*self.spec.base_argv, *rendered.argv)
        environment = {**self.spec.base_environment, **rendered.environment}
        site = Platform(self.card, known, version_tuple(self.version), self.packages)
        try:
            machine = build_server(site, words, environment, shape)
        except ConfigRefused:
            return Ran(None, 0.0)
        except StartFailed:
            return Ran(None, processes_s(known, self.forked) / (self.card.host_speed or 1.0))
        return self._loaded(machine, known)

    def _loaded(self, machine: ConfiguredServer, known: Parameters) -> Ran:
        load = self.spec.workload
        assert not isinstance(load, Suite)
        served = machine.config
        warm = known.compile_warm_s if served.graphs.compiled else 0.0
        started = startup_s(served, machine.budget, known, warm, forked=self.forked)
        run = run_workload(machine, load, load.repeat_seed(0), self.spec.limits.benchmark_s)
        seconds = started + max((job.end_s or 0.0 for job in run.jobs), default=0.0) + STOP_S
        metrics = client_metrics(load, run, machine) if any_completed(run) else None
        return Ran(metrics, seconds, _compiles(served, known))


def _compiles(served: ServeConfig, known: Parameters) -> Compiles:
    """Return what a server compiles if no earlier one did: its own graphs, and with them the kernels of its model."""
    if not served.graphs.compiled:
        return ()
    speed = served.card.host_speed or 1.0
    new, cold = known.compile_new_s - known.compile_warm_s, known.compile_cold_s - known.compile_new_s
    return ((compile_key(served), new / speed), (kernel_key(served), cold / speed))


class SimulatedProblem(Problem):
    """One study, simulated. Where its defaults do not run, the first drawn configuration that does is the reference."""

    family = "simulated"

    def __init__(self, name: str, rig: Rig, world: World, prior: str = "right") -> None:
        super().__init__(prior)
        self.name = name
        self.rig = rig
        self.world = world
        self.space = rig.spec.space
        judge = rig.spec.judge
        self.objectives, self.scored, self._slos = judge.objectives, judge.scored, judge.slos
        self.constraint_names = tuple(str(slo) for slo in judge.slos)
        self._stored = parameters_of(rig.card.key)
        self._true = world.parameters(self._stored, rig.card.key)
        self._hints = self.space.engine_defaults()
        self._searched = replace(rig, spec=replace(rig.spec, workload=rig.spec.searched_workload))
        self._shorter = rig.spec.searched_workload != rig.spec.workload
        self._ran: dict[tuple[str, bool], Ran] = {}

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """See `Problem`."""
        return self.space.suggest(trial)

    def define_fixed(self, trial: Suggest, known: Config) -> None:
        """See `Problem`."""
        self.space.suggest_fixed(trial, known)

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """See `Problem`."""
        return {}, dict(self._hints)

    def allowed(self, config: Config) -> bool:
        """See `Problem`."""
        return not self.space.violations(config)

    def true_run(self, config: Config, searched: bool = False) -> Ran:
        """Return what becomes of a configuration in this world, without noise, sent the search's load or all of it."""
        searched = searched and self._shorter
        key = (key_of(config), searched)
        if key not in self._ran:
            ran = (self._searched if searched else self.rig).run(config, self._true)
            if ran.metrics is not None:
                speed = self.world.speed(self.space, {**self._hints, **config}, self.name)
                ran = replace(ran, metrics=sped_up(ran.metrics, speed))
            self._ran[key] = ran
        return self._ran[key]

    def judged(self, ran: Ran, metrics: Metrics | None, reference: Metrics | None) -> Outcome:
        """Return the outcome of a run that shows such metrics."""
        if metrics is None:
            return crashed(ran.seconds)
        known = self._values(metrics)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in self._slos}
        if known is None:
            lost = {**constraints, FAILED: FAILED_VIOLATION}
            return Outcome(None, lost, None, ran.seconds, ran.compiles)
        relative = None if reference is None else score(metrics, reference, self.scored)
        return Outcome(known, constraints, relative, ran.seconds, ran.compiles)

    def measure(self, config: Config, seed: int) -> Outcome:
        """See `Problem`."""
        ran = self.true_run(config, searched=True)
        if ran.metrics is None:
            return self.judged(ran, None, None)
        world = replace(self.world, noise=self.world.noise * SHORT_NOISE) if self._shorter else self.world
        shown = world.measured(ran.metrics, generator(key_of(config), seed))
        return self.judged(ran, shown, self.true_run(self._reference_config, searched=True).metrics)

    def find_truth(self, config: Config) -> float | None:
        """See `Problem`."""
        ran = self.true_run(config)
        found = self.judged(ran, ran.metrics, self._true_reference)
        return found.score if found.feasible else None

    def find_prior(self, config: Config) -> Outcome | None:
        """See `Problem`."""
        ran = self.rig.run(config, self._stored)
        return self.judged(ran, ran.metrics, self._predicted_metrics)

    @cached_property
    def _reference_config(self) -> Config:
        """What scores are relative to: the defaults if they run, as in a study."""
        random = generator("reference", self.name)
        config: Config = {}
        while self.true_run(config).metrics is None:
            config = self.define(Drawn(random))
        return config

    @cached_property
    def _true_reference(self) -> Metrics | None:
        return self.true_run(self._reference_config).metrics

    @cached_property
    def _predicted_metrics(self) -> Metrics | None:
        """What is predicted of the reference; what is true of it, if it is predicted not to run."""
        return self.rig.run(self._reference_config, self._stored).metrics or self._true_reference

    @cached_property
    def reference(self) -> tuple[float, ...] | None:
        """See `Problem`."""
        return self._values(self._true_reference)

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """See `Problem`."""
        return self._values(self._predicted_metrics)

    def _values(self, metrics: Metrics | None) -> tuple[float, ...] | None:
        values = [(metrics or {}).get(objective.metric) for objective in self.objectives]
        known = tuple(value for value in values if value is not None)
        return known if len(known) == len(values) else None

    @cached_property
    def best(self) -> float:
        """See `Problem`: found by a long search, and kept in a file of the user's."""
        return find_best(self, self.identity)

    @property
    def identity(self) -> str:
        """What the best score depends on."""
        return f"{self.name} {self.rig.card.key} {self.rig.version} {self.world} {self.rig.spec.workload!r}"


def make_rig(request: Request, card: HardwareProfile, load: SingleWorkload | None = None) -> Rig:
    """Return the rig of a request; `load` is another load than the preset's, judged by `B7_SLOS`."""
    plan = draft(request, on_cpu=False, simulated=True)
    if load is not None:
        plan = replace(plan, workload=load, judge=make_judge(B7_OBJECTIVES, B7_SLOS))
    elif request.rate is not None and isinstance(plan.workload, Traffic):
        plan = replace(plan, workload=plan.workload.model_copy(update={"requests": round(SPAN_S * request.rate)}))
    version = default_version(card)
    info = EngineInfo("simulated vllm", version, None, flag_names(), Provenance.SIMULATED, SIMULATED_PACKAGES)
    spec = finish(plan, info, card, Path("artifacts"))
    assert plan.shape is not None
    return Rig(spec, card, version, plan.shape)


SPAN_S = 15.0
"""Seconds in which a preset's traffic arrives where it is sent at another rate than its own."""
B7_OBJECTIVES = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
B7_SLOS = ("p99_tpot_ms<15", "p99_ttft_ms<500", "success_rate>=1")
"""Within reach of the defaults where the table was measured (13 ms and 200 ms), and easily broken."""
B7_LOAD = {
    "arrivals": {"process": "poisson", "rate": 20},
    "requests": 240,
    "max_in_flight": 256,
    "classes": {"all": {"input": {"uniform": [308, 1740]}, "output": {"uniform": [77, 435]}}},
}
"""The load of the table `h200-b7`: 1024 tokens in and 256 out, 70 % more or less."""


def _preset(preset: str, card: str | None = None, rate: float | None = None) -> Rig:
    return make_rig(Request(preset=preset, rate=rate), hardware_named(card or load_preset(preset).hardware))


def _seven_billion() -> Rig:
    request = Request(model="Qwen/Qwen2.5-7B-Instruct")
    return make_rig(request, hardware_named("h200"), Traffic.model_validate(B7_LOAD))


RIGS: dict[str, Callable[[], Rig]] = {
    "sim-t4": lambda: _preset("qwen2.5-0.5b-t4"),
    "sim-t4-greedy": lambda: _preset("qwen2.5-0.5b-t4-greedy"),
    "sim-l4-phi4": lambda: _preset("phi4-mini-l4", rate=25),
    "sim-ada-mixed": lambda: _preset("qwen2.5-14b-ada-mixed", rate=14),
    "sim-h200": lambda: _preset("qwen2.5-0.5b-t4", "h200"),
    "sim-h200-7b": _seven_billion,
}
"""The studies that are simulated, by name. Two presets overload their card so that in this world no configuration keeps
their SLOs; at these rates one drawn configuration in seven does for Phi-4, and one in thirteen for the mix."""


def simulated(
    name: str, world: World, prior: str = "right", forked: bool = True, search_load: float = 1.0
) -> SimulatedProblem:
    """Return a problem by its name, or by `PRESET@CARD`.

    `forked` says how its servers are started, `search_load` what share of its load a trial sends.

    Raises:
        KeyError: if there is none of that name.
    """
    preset, at, card = name.partition("@")
    if name not in RIGS and (not at or preset not in preset_names()):
        raise KeyError(name)
    rig = RIGS[name]() if name in RIGS else _preset(preset, card)
    load = rig.spec.workload
    spec = rig.spec
    if isinstance(load, ClosedLoop) and search_load < 1:
        spec = replace(spec, search_prompts=load.shortened(search_load).num_prompts)
    return SimulatedProblem(name, replace(rig, spec=spec, forked=forked), world, prior)
