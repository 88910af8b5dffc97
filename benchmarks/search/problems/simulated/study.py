"""Studies that are simulated: the spaces, rules, workloads and objectives of real studies on one card each.

A configuration fails as the simulator fails it: vLLM refuses its flags, memory runs out at the start, or the benchmark
exceeds its time limit. A trial takes the server's start-up, the benchmark and the stop; warm-up is left out. Start-up
takes longer when the server compiles something for the first time in a study.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.search.problems.problem import Compilations, MetricsByName
from records.trials import Config, Provenance
from search_spaces import HardwareProfile, ModelShape, hardware_named, version_tuple
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.engine import STOP_S
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, default_version, flag_names
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Platform, Predictions, build_server
from tuner.engines.simulator.serve_config import ServeConfig, find_shape
from tuner.engines.simulator.startup import compile_key, kernel_key, processes_s, startup_s
from tuner.scoring.goals import Goals
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import StudySpec
from tuner.workloads.presets import load_preset, preset_names
from tuner.workloads.spec import ClosedLoop, SingleWorkload, Suite
from tuner.workloads.traffic import Traffic

RATE_SPAN_S = 15.0
"""Seconds over which a preset's traffic arrives if its request rate is changed."""
H200_7B_OBJECTIVES = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
H200_7B_SLOS = ("p99_tpot_ms<15", "p99_ttft_ms<500", "success_rate>=1")
"""The defaults satisfy these where the table was measured (13 ms and 200 ms); many configurations do not."""
H200_7B_TRAFFIC = {
    "arrivals": {"process": "poisson", "rate": 20},
    "requests": 240,
    "max_in_flight": 256,
    "classes": {"all": {"input": {"uniform": [308, 1740]}, "output": {"uniform": [77, 435]}}},
}
"""The workload of the table `h200-b7`: 1024 input and 256 output tokens, each ± 70 %."""
MIX_OBJECTIVES = ("goodput:40", "p99_tpot_ms", "p99_ttft_ms")
MIX_SLOS = ("p99_tpot_ms<30", "p99_ttft_ms<300", "success_rate>=1")
"""The defaults satisfy these; many configurations do not."""


def mix_traffic(rate: float) -> Traffic:
    """Return five seconds of chats, questions about shared documents, summaries and labels, with limits of latency."""
    classes = {
        "chat": {
            "weight": 5,
            "input": {"lognormal": {"mean": 300, "cv": 0.8, "max": 2000}},
            "output": {"lognormal": {"mean": 200, "cv": 0.6, "max": 600}},
        },
        "documents": {
            "weight": 3,
            "input": {"uniform": [40, 120]},
            "output": {"uniform": [64, 256]},
            "prefix": {"tokens": 2000, "documents": 30, "zipf": 1},
        },
        "summary": {"weight": 1, "input": {"uniform": [2000, 4000]}, "output": {"uniform": [100, 300]}},
        "label": {"weight": 3, "input": {"uniform": [100, 400]}, "output": {"uniform": [4, 16]}},
    }
    limits = {
        "chat": {"ttft_ms": 250, "tpot_ms": 15},
        "documents": {"ttft_ms": 300, "tpot_ms": 15},
        "summary": {"ttft_ms": 600, "tpot_ms": 20},
        "label": {"e2el_ms": 400},
    }
    return Traffic.model_validate(
        {
            "arrivals": {"process": "poisson", "rate": rate},
            "requests": round(5 * rate),
            "max_in_flight": 256,
            "system_prompt": 64,
            "classes": classes,
            "slo": limits,
        }
    )


@dataclass(frozen=True)
class SimulatedTrial:
    """The result of one simulated trial.

    Attributes:
        metrics: the metrics without noise; None if the trial failed.
        seconds: wall-clock seconds without compilation.
        compiles: the artifacts that the server compiles.
    """

    metrics: MetricsByName | None
    seconds: float
    compiles: Compilations = ()


@dataclass(frozen=True)
class SimulatedStudy:
    """A study, and the card and the vLLM version that simulate it.

    Attributes:
        spec: the study.
        card: the simulated GPU.
        version: the vLLM version.
        shape: the model's shape.
        packages: optional packages that are installed beside vLLM.
        forked: whether servers are forked from a process that has imported vLLM; otherwise each is a new command.
    """

    spec: StudySpec
    card: HardwareProfile
    version: str
    shape: ModelShape
    packages: frozenset[str] = SIMULATED_PACKAGES
    forked: bool = True

    def run(self, config: Config, parameters: Parameters) -> SimulatedTrial:
        """Return the trial of a configuration, without noise."""
        rendered = self.spec.space.render(config)
        shape = self.shape if rendered.model is None else find_shape(rendered.model)
        words = (*self.spec.server.arguments, *rendered.argv)
        environment = {**self.spec.server.environment, **rendered.environment}
        platform = Platform(self.card, parameters, version_tuple(self.version), self.packages, self.spec.gpus)
        try:
            server = build_server(platform, words, environment, shape)
        except ConfigRefused:
            return SimulatedTrial(None, 0.0)
        except StartFailed:
            return SimulatedTrial(None, processes_s(parameters, self.forked) / (self.card.host_speed or 1.0))
        return self._benchmark(server, parameters)

    def _benchmark(self, server: ConfiguredServer, parameters: Parameters) -> SimulatedTrial:
        config = server.config
        warm = parameters.compile_warm_s if config.graphs.compiled else 0.0
        started = startup_s(config, server.budget, parameters, warm, forked=self.forked)
        run = self._predictions.of(server)
        return SimulatedTrial(run.metrics, started + run.seconds + STOP_S, _compilations(config, parameters))

    @cached_property
    def _predictions(self) -> Predictions:
        assert not isinstance(self.spec.workload, Suite)
        return Predictions(self.spec.workload, self.spec.limits.benchmark_s)


def _compilations(config: ServeConfig, parameters: Parameters) -> Compilations:
    """Return the compilations of a server with an empty cache: its own graphs and the kernels of its model."""
    if not config.graphs.compiled:
        return ()
    speed = config.card.host_speed or 1.0
    new = parameters.compile_new_s - parameters.compile_warm_s
    cold = parameters.compile_cold_s - parameters.compile_new_s
    return ((compile_key(config), new / speed), (kernel_key(config), cold / speed))


def _simulate(
    settings: StudySettings,
    card: HardwareProfile,
    workload: SingleWorkload | None = None,
    goals: Goals | None = None,
) -> SimulatedStudy:
    """Return the simulated study of settings.

    Args:
        settings: the settings of the study.
        card: the simulated GPU.
        workload: replaces the preset's workload, together with `goals`.
        goals: the objectives and SLOs.
    """
    plan = plan_study(settings, simulated=True)
    if workload is not None and goals is not None:
        plan = replace(plan, workload=workload, goals=goals)
    elif settings.rate is not None and isinstance(plan.workload, Traffic):
        requests = round(RATE_SPAN_S * settings.rate)
        plan = replace(plan, workload=plan.workload.model_copy(update={"requests": requests}))
    version = default_version(card)
    info = EngineInfo("simulated vllm", version, None, flag_names(), Provenance.SIMULATED, SIMULATED_PACKAGES)
    spec = build_spec(plan, info, card, Path("artifacts"))
    assert plan.shape is not None
    return SimulatedStudy(spec, card, version, plan.shape)


def _simulate_preset(preset: str, card: str | None = None, rate: float | None = None) -> SimulatedStudy:
    settings = StudySettings(preset=preset, rate=rate, search_load=1.0)
    return _simulate(settings, hardware_named(card or load_preset(preset).hardware))


def _simulate_7b() -> SimulatedStudy:
    settings = StudySettings(model="Qwen/Qwen2.5-7B-Instruct", search_load=1.0)
    goals = make_goals(H200_7B_OBJECTIVES, H200_7B_SLOS)
    return _simulate(settings, hardware_named("h200"), Traffic.model_validate(H200_7B_TRAFFIC), goals)


def _simulate_mix(model: str, gpus: int, rate: float) -> SimulatedStudy:
    settings = StudySettings(model=model, gpus_per_trial=gpus, search_load=1.0)
    return _simulate(settings, hardware_named("h200"), mix_traffic(rate), make_goals(MIX_OBJECTIVES, MIX_SLOS))


SIMULATED_STUDIES: dict[str, Callable[[], SimulatedStudy]] = {
    "sim-t4": lambda: _simulate_preset("qwen2.5-0.5b-t4"),
    "sim-t4-greedy": lambda: _simulate_preset("qwen2.5-0.5b-t4-greedy"),
    "sim-l4-phi4": lambda: _simulate_preset("phi4-mini-l4", rate=25),
    "sim-ada-mixed": lambda: _simulate_preset("qwen2.5-14b-ada-mixed", rate=14),
    "sim-h200": lambda: _simulate_preset("qwen2.5-0.5b-t4", "h200"),
    "sim-h200-7b": _simulate_7b,
    "sim-h200-moe": lambda: _simulate_mix("Qwen/Qwen3-30B-A3B", 2, rate=8),
    "sim-h200-mla": lambda: _simulate_mix("deepseek-ai/DeepSeek-V2-Lite", 1, rate=48),
    "sim-h200-mxfp4": lambda: _simulate_mix("openai/gpt-oss-120b", 1, rate=16),
}
"""The simulated studies by name. The last three have experts, and get their mix near the knee.

Two presets overload their card, so that no configuration is feasible with the perturbed parameters. At the request
rates given here few are: of random ones, 12 of 1,180 for Phi-4."""


def find_simulated_study(name: str, forked: bool = True, workload_share: float = 1.0) -> SimulatedStudy:
    """Return a simulated study by its name, or by `PRESET@CARD`.

    Args:
        name: of the study.
        forked: see `SimulatedStudy`.
        workload_share: share of a closed loop's prompts that a trial of the search sends.

    Raises:
        KeyError: if no study has that name.
    """
    preset, at, card = name.partition("@")
    if name not in SIMULATED_STUDIES and (not at or preset not in preset_names()):
        raise KeyError(name)
    study = SIMULATED_STUDIES[name]() if name in SIMULATED_STUDIES else _simulate_preset(preset, card)
    spec = study.spec
    if isinstance(spec.workload, ClosedLoop) and workload_share < 1:
        spec = replace(spec, search_prompts=spec.workload.shortened(workload_share).num_prompts)
    return replace(study, spec=spec, forked=forked)
