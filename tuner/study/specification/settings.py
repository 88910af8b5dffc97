"""Settings of a study and of one run of it, as the command line and the Python API give them.

None and empty collections leave a choice to the preset. `tuner.study.specification.builder` turns settings into a
`StudySpec`. Errors name a setting by the keyword of `tuner.optimize` (`tuner.errors.SettingError`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.rendering.shape import INSTANCES, gpus_of, instances_of, nodes_of, tensor_parallel_size, wrong_size
from tuner.errors import SettingError
from tuner.specs import Limits

AUTO, RESIDUAL, TPE = "auto", "residual", "tpe"
SAMPLERS = (AUTO, RESIDUAL, TPE)
"""`auto` is `residual` with source studies and for measured trials, which take minutes, compared with a tenth of a
second for its suggestions; otherwise it is `tpe`."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

DEFAULT_PRESET = "qwen2.5-0.5b-t4"
SCRIPT = Path("best_serve.sh")


@dataclass(frozen=True)
class ModelSettings:
    """The model that is served, and models that configurations may use beside it.

    `name` and `tokenizer` are folders or hub names; the tokenizer is the load generator's, by default the model's.
    `checkpoints` maps a quantization method to a quantized checkpoint; `draft_model` drafts speculative tokens.
    `others` are the models of further engines: `ENGINE=MODEL`, or a model in the engine's format.
    """

    name: str | None = None
    tokenizer: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    draft_model: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkloadSettings:
    """The workload: that of the preset, or of traffic files, which are sent one after another.

    `rate` is the mean of arrivals in requests per second. `max_concurrency`, `num_prompts`, `input_len` and
    `output_len` (tokens) replace fields of a closed loop; `temperature` is set on the server.
    """

    files: tuple[str, ...] = ()
    rate: float | None = None
    max_concurrency: int | None = None
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    temperature: float | None = None

    @property
    def replacements(self) -> dict[str, int | float]:
        """The given fields of the workload, by their names there."""
        names = ("max_concurrency", "num_prompts", "input_len", "output_len", "temperature")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class GoalSettings:
    """Objectives (`METRIC` or `METRIC:WEIGHT`) and SLOs (such as `p99_tpot_ms<50`).

    `quality_task` is a JSONL file of questions, for an SLO on `quality`.
    """

    objectives: tuple[str, ...] = ()
    slos: tuple[str, ...] = ()
    quality_task: str | None = None


@dataclass(frozen=True)
class SpaceSettings:
    """The search space: the name of a shipped one or a YAML file.

    `only` restricts it to the named parameters; `keep_answers` leaves out parameters that change the model's
    answers. `enqueue` are configurations that are measured before the search, by name or as JSON. `bunched_tokens`
    offers parameters that change how tokens arrive at a user; without it they need an SLO on ITL. `baseline` is what
    the user runs today, by name, as JSON or as flags. `others` are the spaces of further engines, as `ENGINE=SPACE`;
    `enqueue` and `baseline` name an engine in the same way.
    """

    name: str | None = None
    only: tuple[str, ...] = ()
    keep_answers: bool = False
    enqueue: tuple[str, ...] = ()
    bunched_tokens: bool = False
    baseline: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchSettings:
    """The search: `repeats` is benchmarks of a trial, `learn_from` names source studies of the same database."""

    seed: int = 0
    sampler: str = AUTO
    learn_from: tuple[str, ...] = ()
    repeats: int = 1


@dataclass(frozen=True)
class ConfirmationSettings:
    """The confirmation: the number of `rounds`, and of `finalists` besides the defaults.

    `baseline_repeats` is benchmarks of the defaults, and of each measurement in a round; 0: no defaults. `reduce`
    exports the smallest form of the winner that is as good.
    """

    finalists: int = 3
    rounds: int = 3
    baseline_repeats: int = 3
    reduce: bool = True


@dataclass(frozen=True)
class ServerSettings:
    """Flags and environment variables of every server.

    `${NAME}` in a flag or a value refers to a variable of the command's environment. `secrets` names variables and
    flags that are secrets, beside those whose names say so. In `arguments`, flags after a word `ENGINE=` are those of
    that engine. `command` has the words of the user's own command, for the engine `openai`; it runs in `folder`.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    folder: str | None = None


@dataclass(frozen=True)
class StudySettings:
    """Settings of a study; the preset provides those that are not given.

    `name` is the study's, by default from preset, model, card and workload. `search_load` is the share of a closed
    loop's requests that the search sends; the rounds send all. `price` is that of a GPU-hour in any currency, by
    default the card's list price. `gpus_per_trial` is the GPUs of each worker, by default those that the server's own
    arguments need, and `nodes_per_trial` is the nodes over which they are spread evenly.
    """

    preset: str = DEFAULT_PRESET
    name: str | None = None
    model: ModelSettings = field(default_factory=ModelSettings)
    workload: WorkloadSettings = field(default_factory=WorkloadSettings)
    search_load: float = 1.0
    goals: GoalSettings = field(default_factory=GoalSettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    confirmation: ConfirmationSettings = field(default_factory=ConfirmationSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: Limits = field(default_factory=Limits)
    price: float | None = None
    gpus_per_trial: int | None = None
    nodes_per_trial: int = 1

    @property
    def gpus(self) -> int:
        """The GPUs of a trial; at least one on each node."""
        if self.gpus_per_trial is not None:
            return self.gpus_per_trial
        return max(gpus_of(self.server.arguments), self.nodes_per_trial)

    @property
    def needed_flags(self) -> tuple[str, ...]:
        """The flags that the installed engine must have."""
        return (*self.server.arguments, *(() if self.nodes_per_trial == 1 else ("--nnodes",)))


def check_nodes(settings: StudySettings) -> None:
    """Refuse GPUs that cannot be spread over the nodes of a trial, and servers that start on one machine.

    Raises:
        SettingError: with the value.
    """
    nodes, gpus, arguments = settings.nodes_per_trial, settings.gpus, settings.server.arguments
    if nodes < 1:
        raise SettingError("nodes_per_trial", nodes, "at least 1 is needed")
    if gpus % nodes:
        rule = f"each node of a trial has as many GPUs, and {nodes} nodes do not divide them"
        raise SettingError("gpus_per_trial", gpus, rule, f"give a multiple of {nodes}")
    if nodes == 1:
        return
    if instances_of(arguments) > 1:
        rule = f"instances start on one machine, and a trial has {nodes} nodes"
        raise SettingError("server_arguments", INSTANCES, rule, "leave it out, or leave out {nodes_per_trial}")
    needed, used = gpus_of(arguments), nodes_of(arguments, gpus // nodes, nodes)
    if needed % used:
        rule = f"the server's own flags need {needed} GPUs, which {used} nodes cannot share evenly"
        raise SettingError("nodes_per_trial", nodes, rule, "give a divisor, or change the flags")


def check_gpus(settings: StudySettings, heads: int | None) -> None:
    """Refuse servers that do not fit into the GPUs of a trial, and tensor parallelism that vLLM refuses.

    Args:
        settings: of the study.
        heads: attention heads of the model; None: unknown.

    Raises:
        SettingError: for less than one GPU, flags that need more than a trial has, or heads that cannot be divided.
    """
    given, arguments = settings.gpus_per_trial, settings.server.arguments
    if given is not None and given < 1:
        raise SettingError("gpus_per_trial", given, "at least 1 is needed")
    wrong = wrong_size(arguments)
    if wrong is not None:
        raise SettingError(
            "server_arguments", wrong, "a whole number of at least 1 is needed", "give one after the flag"
        )
    needed, size = gpus_of(arguments), tensor_parallel_size(arguments)
    if given is not None and needed > given:
        rule = f"the server's own flags need {needed} GPUs"
        raise SettingError("gpus_per_trial", given, rule, f"give {needed}, or leave it out")
    check_nodes(settings)
    if heads is not None and heads % size:
        rule = f"the model has {heads} attention heads, which {size} does not divide"
        raise SettingError("server_arguments", f"--tensor-parallel-size {size}", rule, "choose a divisor")


@dataclass(frozen=True)
class Budget:
    """What a run of a study may spend.

    `trials` counts every trial of the study, the defaults and trials of earlier runs included. `timeout_s` is the
    wall-clock time of this run in seconds, the confirmation included. `attempts` bounds the launches of a trial
    that fails for reasons of infrastructure. The search ends once the maximum expected improvement stays below
    `min_gain`, a share of the score. `ablate` adds one trial for each flag of the best configuration.
    """

    trials: int = 60
    timeout_s: float | None = None
    attempts: int = 3
    min_gain: float = 0.0
    ablate: bool = False


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a run and its location.

    `engine` is `vllm`, `llama.cpp`, `sglang`, `tensorrt-llm`, `openai`, `simulated`, or `auto`: simulated without a
    GPU. `vllm`, `llama_server` and `trtllm_serve` are the executables, `sglang` is the Python that has SGLang. `gpu`
    and `vllm_version` are for a simulation. `workers` is as many as the GPUs allow by default. `warm_start` forks
    servers from a process that has imported vLLM. `ray_address` is the Ray cluster, None for this machine.
    `server_command` is the command of `openai`, with `{port}` for the port. `others` are
    further engines of the study, of which `engine` is the default.
    """

    engine: str = "auto"
    vllm: str | None = None
    gpu: str | None = None
    vllm_version: str | None = None
    workers: int | None = None
    warm_start: bool = True
    ray_address: str | None = None
    llama_server: str | None = None
    server_command: str | None = None
    sglang: str | None = None
    trtllm_serve: str | None = None
    others: tuple[str, ...] = ()

    @property
    def engines(self) -> tuple[str, ...]:
        """Every engine of the study, the default engine first."""
        return (self.engine, *self.others)


@dataclass(frozen=True)
class RunSettings:
    """Settings of one run, which may differ when the study is resumed.

    `storage` is a file or an SQLAlchemy URL, None for the default database; `output` is the script of the winner.
    """

    budget: Budget = field(default_factory=Budget)
    engine: EngineChoice = field(default_factory=EngineChoice)
    storage: str | None = None
    output: Path = SCRIPT


def read_duration(field: str, text: str) -> float:
    """Return the seconds of a duration such as `90`, `45s`, `30m`, `2h` or `1h30m`.

    Raises:
        SettingError: about the setting `field`, for another form and for 0.
    """
    remedy = "give for example 90s, 45m or 2h"
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)", text.strip())
    if not parts or re.sub(r"\s", "", text) != "".join(number + unit for number, unit in parts):
        raise SettingError(field, text, "not a duration", remedy)
    seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise SettingError(field, text, "a duration is longer than 0", remedy)
    return seconds
