"""Winners drawn at random from the whole space of each engine, as a study would record them.

Eight launchers start them: vLLM on a GPU, on a CPU and over several GPUs, several instances of vLLM, llama.cpp, SGLang,
TensorRT-LLM, and a user's command. A seed gives the same winner in every process.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from records.trials import Phase, Provenance, Repeat, ServerFacts, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from search_spaces.expressions import Context
from search_spaces.loader import load_space
from search_spaces.render import INSTANCES, gpus_of
from search_spaces.resolved import ResolvedSpace
from search_spaces.schema import VLLM
from tests.contracts.space_contract import RandomTrial, engine_context, generous
from tuner.engines.command_line import program_of
from tuner.engines.kind import Program
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.export.deployment import Deployment
from tuner.export.from_study import deployment_of
from tuner.use_cases.devices import group_name
from tuner.workloads.spec import ClosedLoop

MODEL = "org/model"
COMMAND = ("serve", "{model}", "{flags}", "--listen={host}:{port}", "--", "it's")
NOW = datetime(2026, 11, 27, tzinfo=UTC)
CARDS = (("t4", "0.15.1"), ("l4", "0.25.1"), ("h200", "0.25.1"), ("a100", "0.15.1"), ("h200", "0.32.0+cpu"))
FP8 = {"fp8": "quantized/fp8"}
_LOAD = ClosedLoop(max_concurrency=50, num_prompts=200, input_len=512, output_len=512)


@dataclass(frozen=True)
class Winner:
    """A winner: its deployment, and what its space rendered.

    Attributes:
        program: that started its server.
        flags: of the server.
        environment: variables of the configuration.
        gpus: of the trial.
    """

    deployment: Deployment
    program: Program
    model: str
    flags: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: int


@dataclass(frozen=True)
class Launcher:
    """How the winners of a launcher are drawn and started."""

    engine: str
    space: str
    context: Callable[[random.Random], Context]
    path: Callable[[random.Random], str]
    chosen: Callable[[tuple[str, ...]], bool] = lambda flags: True
    instances: tuple[int, ...] = ()
    command: tuple[str, ...] = ()


def _vllm(gpus: int) -> Callable[[random.Random], Context]:
    def context(choice: random.Random) -> Context:
        card, version = choice.choice(CARDS)
        made = generous(card, version)
        packages = frozenset({*(made.packages or ()), "haproxy", "lmcache", "deep_gemm"})
        flags = frozenset({*(made.flags or ()), INSTANCES})
        return replace(made, gpus=gpus, flags=flags, packages=packages, host_memory_gib=2048.0, shm_gib=1024.0)

    return context


def _in(folder: str, *names: str) -> Callable[[random.Random], str]:
    return lambda choice: f"{folder}/{choice.choice(names)}"


def launchers(folder: str) -> dict[str, Launcher]:
    """Return the launchers by name; their programs are in a folder."""
    vllm, several = _in(folder, "vllm"), _in(folder, "tuner-vllm-instances")
    llama = engine_context("llama.cpp", "cpu", "6711")
    return {
        "vllm": Launcher(VLLM, "vllm-extra", _vllm(1), vllm),
        "vllm-cpu": Launcher(VLLM, "cpu", lambda _: generous("cpu", "0.32.0+cpu"), vllm),
        "several-gpus": Launcher(VLLM, "vllm-extra", _vllm(4), vllm, lambda flags: gpus_of(flags) > 1),
        "instances": Launcher(
            VLLM,
            "vllm-extra",
            lambda choice: _vllm(choice.choice((1, 4, 8)))(choice),
            several,
            instances=(2, 4),
        ),
        "llama.cpp": Launcher("llama.cpp", "llama.cpp", lambda _: llama, _in(folder, "llama-server", LAUNCHER)),
        "sglang": Launcher(
            "sglang",
            "sglang",
            lambda _: engine_context("SGLang", "h200", "0.5.17", "flashinfer", "sgl_kernel", checkpoints=FP8, gpus=4),
            _in(folder, "python3"),
        ),
        "tensorrt-llm": Launcher(
            "tensorrt-llm",
            "tensorrt-llm",
            lambda _: engine_context("TensorRT-LLM", "h200", "1.3.0rc7", "flashinfer", checkpoints=FP8),
            _in(folder, "trtllm-serve"),
        ),
        "command": Launcher("openai", "llama.cpp", lambda _: llama, _in(folder, "serve"), command=COMMAND),
    }


_SPACES: dict[tuple[str, str, int | None], ResolvedSpace] = {}


def _resolved(name: str, context: Context, instances: int | None) -> ResolvedSpace:
    """Return a space; it offers instances that share a GPU only to those who ask."""
    key = (name, repr(context), instances)
    if key not in _SPACES:
        wanted = {} if instances is None else {"instances": None}
        _SPACES[key] = load_space(name).resolve(context, wanted=wanted)
    return _SPACES[key]


def winner(launcher: Launcher, seed: int) -> Winner:
    """Return a winner of a launcher; configurations that break a rule of the space are drawn again."""
    choice = random.Random(seed)
    context = launcher.context(choice)
    number = choice.choice(launcher.instances) if launcher.instances else None
    resolved = _resolved(launcher.space, context, number)
    while True:
        config = resolved.suggest(RandomTrial(choice.getrandbits(32)))
        if number is not None or "instances" in config:
            config = resolved.complete({**config, "instances": number})
        if resolved.violations(config):
            continue
        rendered = resolved.render(config)
        if launcher.chosen(rendered.argv):
            return _recorded(launcher, context, rendered, launcher.path(choice), choice)


def _recorded(launcher: Launcher, context: Context, rendered: Any, path: str, choice: random.Random) -> Winner:
    program = program_of(launcher.engine, launcher.command, (path, *rendered.argv))
    model = rendered.model or MODEL
    named = choice.random() < 0.5 and not launcher.command
    words = program.listening(program.words(model, "name" if named else model, rendered.argv), "127.0.0.1", 31999)
    version = (context.engine_version or "").partition("+")[0]
    premise = {
        "model": {"name": "name" if named else model, "tokenizer": MODEL},
        "workload": _LOAD.model_dump(mode="json"),
        "objectives": ["output_throughput"],
        "slos": ["success_rate>=1"],
        "engine": {"name": launcher.engine, "version": version, "devices": [context.hardware.name]},
        "server": {"command": list(launcher.command)},
    }
    study = StudyRecord("walk", NOW, Provenance.MEASURED, premise, {"executable": path, "gpus": context.gpus})
    outcome = TrialOutcome(
        started_at=NOW,
        ended_at=NOW,
        provenance=Provenance.MEASURED,
        worker="w",
        device="cpu" if context.hardware.vendor == "cpu" else group_name(context.hardware.name, context.gpus),
        timings={Phase.READY: 30.0},
        artifacts="",
        argv=(path, *words),
        environment=rendered.environment,
        repeats=(Repeat(0, 0, 10, 10, 0, 1.0, {"output_throughput": 100.0}),),
        server=ServerFacts(weights_gib=1.0),
    )
    trial = TrialRecord("walk", 1, 0, TrialKind.SEARCH, None, {}, {}, 1, NOW, outcome)
    deployment = deployment_of(study, 1, [trial])
    return Winner(deployment, program, model, rendered.argv, rendered.environment, context.gpus)
