"""Every setting of a study, declared once: name, type, default, rule, help, panel, and what a service takes of it.

The options of the commands, the keywords of `tuner.optimize` and `tuner.Client.submit`, the body of `POST /v1/studies`
with its schema, and the settings of the study itself are these classes. A setting in `AskedSettings` can be submitted
to a service (`tuner.settings.submit`). The others name programs, files or places of a machine, which a service never
takes from a request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tuner.settings.declared import (
    CONFIRMATION,
    DURATION,
    GOALS,
    MODEL,
    NAME,
    OUTPUT,
    RUN,
    SEARCH,
    SPACE,
    STUDY,
    WORKLOAD,
    Entries,
    Number,
    Setting,
    Settings,
    Text,
)

AUTO, RESIDUAL, TPE = "auto", "residual", "tpe"
_SAMPLERS = (AUTO, RESIDUAL, TPE)
"""`auto` is `residual` with source studies and for measured trials, which take minutes, compared with a tenth of a
second for its suggestions; otherwise it is `tpe`."""

DEFAULT_PRESET = "qwen2.5-0.5b-t4"
SCRIPT_FILE = "best_serve.sh"

LARGEST_CONTENT = 1_000_000
"""Most characters of a file's content that a service takes."""

MOST_GPUS = 1024
"""Most GPUs of a service's study."""

_CONTENT = Text(LARGEST_CONTENT)
_MODEL = Text(4096)
_GPUS = Number(1, MOST_GPUS)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """How a study searches."""

    sampler: Annotated[
        str,
        Setting(
            SEARCH,
            "NAME",
            "residual, which auto stands for, or Optuna's tpe.",
            choices=_SAMPLERS,
            limit=NAME,
        ),
    ] = AUTO
    seed: Annotated[int, Setting(SEARCH, "INTEGER", "Seed of the search.", least=0, limit=Number(0, 2**63 - 1))] = 0
    learn_from: Annotated[
        Sequence[str],
        Setting(SEARCH, "STUDY", "Source study; it may have another card, model or workload.", limit=Entries(20, 300)),
    ] = ()
    recipes: Annotated[
        bool, Setting(SEARCH, "", "Measure first what the search space's recipes say for this model, card and load.")
    ] = True
    cut_short: Annotated[
        bool, Setting(SEARCH, "", "End a trial of the search while its requests run, once it can no longer win.")
    ] = True
    repeats: Annotated[
        int,
        Setting(SEARCH, "INTEGER", "Benchmarks per trial, each with its own seed.", least=1, limit=Number(1, 100)),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class ConfirmationSettings(Settings):
    """How a study measures its finalists again."""

    finalists: Annotated[
        int,
        Setting(
            CONFIRMATION,
            "INTEGER",
            "Best configurations of the search that are measured again.",
            least=1,
            limit=Number(1, 100),
        ),
    ] = 3
    confirm_rounds: Annotated[
        int,
        Setting(
            CONFIRMATION,
            "INTEGER",
            "Rounds of the finalists and the defaults; at most twice as many where forms compete; 0: none.",
            least=0,
            limit=Number(0, 100),
        ),
    ] = 3
    baseline_repeats: Annotated[
        int,
        Setting(
            CONFIRMATION,
            "INTEGER",
            "Benchmarks of the defaults, and of each measurement in a round; 0: no defaults.",
            least=0,
            limit=Number(0, 100),
        ),
    ] = 3
    reduce: Annotated[
        bool,
        Setting(
            CONFIRMATION, "", "Measure the winner with fewer flags, too, and export the smallest form that is as good."
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class GoalSettings(Settings):
    """What a study aims at."""

    objective: Annotated[
        Sequence[str],
        Setting(
            GOALS,
            "METRIC[:WEIGHT]",
            "Metric to optimise, with its weight in the score.",
            shown="the workload's",
            limit=Entries(20, 200),
        ),
    ] = ()
    slo: Annotated[
        Sequence[str],
        Setting(
            GOALS,
            "'METRIC<VALUE'",
            "Bound on a metric, such as 'p99_ttft_ms<500'.",
            shown="the workload's",
            limit=Entries(50, 200),
        ),
    ] = ()
    quality_task: Annotated[
        str | None,
        Setting(
            GOALS,
            "FILE|TASK",
            "Questions that quality is measured with: JSONL lines with `prompt`, `answer` and optionally `regex`, or a "
            "task of lm-evaluation-harness such as `lm-eval:gsm8k`.",
            shown="none",
            limit=_CONTENT,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings(Settings):
    """What is sent to the server: the workload of the preset or of traffic files, with other values of its fields."""

    workload: Annotated[
        Sequence[str | os.PathLike[str]],
        Setting(
            WORKLOAD,
            "FILE",
            "Traffic, a YAML file; several are run in turn.",
            shown="the preset's",
            limit=Entries(20, LARGEST_CONTENT),
        ),
    ] = ()
    rate: Annotated[
        float | None,
        Setting(
            WORKLOAD,
            "NUMBER",
            "Mean request rate of traffic, in requests per second.",
            shown="the workload's",
            limit=Number(0, 1e6),
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        Setting(
            WORKLOAD,
            "INTEGER",
            "Users of a closed loop: requests that are sent at the same time.",
            shown="the preset's",
            limit=Number(1, 100_000),
            option="users",
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        Setting(
            WORKLOAD,
            "INTEGER",
            "Requests of one benchmark.",
            shown="the preset's",
            limit=Number(1, 1_000_000),
            option="prompts",
        ),
    ] = None
    input_len: Annotated[
        int | None,
        Setting(
            WORKLOAD,
            "TOKENS",
            "Input length of each request of a closed loop.",
            shown="the preset's",
            limit=Number(1, 10_000_000),
        ),
    ] = None
    output_len: Annotated[
        int | None,
        Setting(
            WORKLOAD,
            "TOKENS",
            "Output length of each request of a closed loop.",
            shown="the preset's",
            limit=Number(1, 10_000_000),
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Setting(
            WORKLOAD, "NUMBER", "Sampling temperature, set on the server.", shown="the workload's", limit=Number(0, 100)
        ),
    ] = None

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the traffic files."""
        return tuple(os.fspath(each) for each in self.workload)

    @property
    def replacements(self) -> dict[str, int | float]:
        """The given fields of the workload, by their names there."""
        names = ("max_concurrency", "num_prompts", "input_len", "output_len", "temperature")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class AskedSettings(WorkloadSettings, GoalSettings, SearchSettings, ConfirmationSettings):
    """What is asked of a study, wherever it runs: all that a service takes."""

    preset: Annotated[
        str,
        Setting(
            STUDY,
            "NAME",
            "Model, workload and SLOs by a name of `tuner study presets`.",
            limit=NAME,
        ),
    ] = DEFAULT_PRESET
    trials: Annotated[
        int,
        Setting(
            STUDY,
            "INTEGER",
            "Trials of all runs.",
            limit=Number(1, 10_000),
        ),
    ] = 60
    timeout: Annotated[
        float | str | None,
        Setting(
            STUDY,
            DURATION,
            "Time limit of this run with its confirmation, such as 2h.",
            shown="no limit",
            limit=Number(0, 366 * 86400.0),
        ),
    ] = None
    model: Annotated[
        str | None,
        Setting(
            MODEL,
            "DIR|NAME|FILE",
            "Model: a folder or a hub name, of llama.cpp a GGUF file.",
            shown="the preset's",
            limit=_MODEL,
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Setting(
            MODEL,
            "DIR|NAME",
            "Tokenizer of the load generator: a folder or a hub name.",
            shown="the model's",
            limit=_MODEL,
        ),
    ] = None
    engine: Annotated[
        str,
        Setting(
            MODEL,
            "ENGINE",
            "vllm, llama.cpp, sglang, tensorrt-llm, openai, simulated, or auto, which simulates if there is no GPU.",
            limit=NAME,
        ),
    ] = AUTO
    gpu: Annotated[
        str | None,
        Setting(
            MODEL,
            "CARD|FILE",
            "Card to simulate: a name such as h200, or a YAML file.",
            shown="the preset's",
            limit=NAME,
        ),
    ] = None
    price: Annotated[
        float | None,
        Setting(
            MODEL,
            "NUMBER",
            "Price of one GPU for an hour, in any currency, for the cost of tokens.",
            shown="the card's list price",
            limit=Number(0, 1e6),
        ),
    ] = None
    vllm_version: Annotated[
        str | None,
        Setting(MODEL, "VERSION", "vLLM version to simulate, such as 0.25.1.", shown="depends on the card", limit=NAME),
    ] = None
    env: Annotated[
        Mapping[str, str],
        Setting(MODEL, "NAME=VALUE", "Environment variable of every server.", limit=Entries(100, 10_000)),
    ] = field(default_factory=dict)
    secret: Annotated[
        Sequence[str],
        Setting(
            MODEL,
            "NAME",
            "Variable or flag of the server that is a secret, beside those named KEY, TOKEN, PASSWORD, SECRET, "
            "CREDENTIAL.",
            limit=Entries(50, 300),
        ),
    ] = ()
    server_arguments: Annotated[
        Sequence[str], Setting(MODEL, "FLAG", "Flags of every server.", limit=Entries(200, 10_000))
    ] = ()
    space: Annotated[
        str | None,
        Setting(
            SPACE, "NAME|FILE", "Search space: a shipped one or a YAML file.", shown="the preset's", limit=_CONTENT
        ),
    ] = None
    only: Annotated[
        Sequence[str], Setting(SPACE, "PARAMETER", "Search only this parameter.", limit=Entries(500, 300))
    ] = ()
    keep_answers: Annotated[bool, Setting(SPACE, "", "Leave out parameters that change the model's answers.")] = False
    bunched_tokens: Annotated[
        bool,
        Setting(
            SPACE,
            "",
            "Offer parameters that send tokens to users in groups, also without an SLO on ITL.",
            option="allow-bunched-tokens",
        ),
    ] = False
    enqueue: Annotated[
        Sequence[str],
        Setting(
            SPACE,
            "NAME|JSON",
            "Configuration to measure before the search: a name from `tuner study space`, or JSON.",
            limit=Entries(200, 10_000),
        ),
    ] = ()
    baseline: Annotated[
        str | None,
        Setting(
            SPACE,
            "NAME|JSON|FLAGS",
            "What runs today: a name of `tuner study space`, JSON, or quoted flags.",
            shown="the defaults",
            limit=Text(10_000),
        ),
    ] = None
    search_load: Annotated[
        float,
        Setting(
            SEARCH,
            "SHARE",
            "Share of a closed loop's requests that a trial of the search sends; the rounds send all.",
            least=0,
            most=1,
        ),
    ] = 0.5
    min_gain: Annotated[
        float,
        Setting(
            SEARCH,
            "PERCENT",
            "End the search once 15 trials in a row (25 after a gain, or where the defaults miss an SLO) have raised "
            "the best score by less; 0: never.",
            least=0,
            limit=Number(0, 1000),
        ),
    ] = 5.0
    ablate: Annotated[
        bool,
        Setting(
            SEARCH, "", "After the search, measure the best configuration without each flag: one more trial per flag."
        ),
    ] = False
    gpus_per_trial: Annotated[
        int | None,
        Setting(
            RUN,
            "INTEGER",
            "GPUs of each trial, of which a configuration uses some or all.",
            shown="what the server's flags need",
            least=1,
            limit=_GPUS,
        ),
    ] = None
    nodes_per_trial: Annotated[
        int,
        Setting(
            RUN, "INTEGER", "Nodes of the cluster over which each trial's GPUs are spread evenly.", least=1, limit=_GPUS
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class StudySettings(AskedSettings):
    """Settings of a study and of one run of it, on this machine or on a cluster.

    Storage, output, workers and the programs may differ when the study is resumed.
    """

    study: Annotated[
        str | None,
        Setting(
            STUDY,
            "NAME",
            "Name of the study; one that exists is continued.",
            shown="from the settings",
        ),
    ] = None
    checkpoint: Annotated[
        Mapping[str, str],
        Setting(
            MODEL, "METHOD=MODEL", "Quantized checkpoint of the model, for a quantization method of the search space."
        ),
    ] = field(default_factory=dict)
    draft_model: Annotated[str | None, Setting(MODEL, "DIR|NAME", "Draft model for speculative decoding.")] = None
    other_models: Annotated[
        Sequence[str],
        Setting(MODEL, "", "With several engines one for each format, or ENGINE=MODEL.", more_of="model"),
    ] = ()
    other_engines: Annotated[
        Sequence[str],
        Setting(
            MODEL,
            "",
            "Several of the first three are ranked in one study.",
            more_of="engine",
        ),
    ] = ()
    other_spaces: Annotated[Sequence[str], Setting(SPACE, "", "Of another engine, ENGINE=SPACE.", more_of="space")] = ()
    vllm: Annotated[
        str | None, Setting(MODEL, "FILE", "The vllm executable.", shown="$TUNER_VLLM, else the one on PATH")
    ] = None
    llama_server: Annotated[
        str | None,
        Setting(
            MODEL,
            "FILE",
            "The llama-server executable.",
            shown="$TUNER_LLAMA_SERVER, else the one on PATH, else the package xllamacpp",
        ),
    ] = None
    sglang: Annotated[
        str | None,
        Setting(
            MODEL,
            "FILE",
            "The Python that has SGLang.",
            shown="$TUNER_SGLANG, else this Python, else the one beside sglang on PATH",
        ),
    ] = None
    trtllm_serve: Annotated[
        str | None,
        Setting(
            MODEL,
            "FILE",
            "The trtllm-serve executable of TensorRT-LLM.",
            shown="$TUNER_TRTLLM_SERVE, else the one on PATH",
        ),
    ] = None
    server_command: Annotated[
        str | None,
        Setting(
            MODEL,
            "COMMAND",
            "Command of the engine openai, which serves an OpenAI-compatible API. {{port}}, {{host}}, {{model}} and "
            "{{flags}} in it are replaced; no shell runs it.",
            shown="none",
        ),
    ] = None
    workers: Annotated[
        int | None,
        Setting(RUN, "INTEGER", "Trials that run at the same time.", shown="as many as the GPUs allow", least=1),
    ] = None
    warm_start: Annotated[
        bool, Setting(RUN, "", "Fork each server from a process that has imported vLLM, for a faster start-up.")
    ] = True
    startup_timeout: Annotated[float | str, Setting(RUN, DURATION, "Time limit of a server's start-up.")] = "15m"
    ray_address: Annotated[
        str | None, Setting(RUN, "ADDRESS", "Ray cluster that runs the trials.", shown="this machine")
    ] = None
    storage: Annotated[
        str | None,
        Setting(OUTPUT, "FILE|URL", "Database of studies: a file or an SQLAlchemy URL.", shown="tuner_study/tuner.db"),
    ] = None
    output: Annotated[
        str | os.PathLike[str],
        Setting(OUTPUT, "FILE", "Bash script to write; best_serve-STUDY.sh where best_serve.sh is another file."),
    ] = SCRIPT_FILE

    @property
    def engines(self) -> tuple[str, ...]:
        """Every engine of the study, the default engine first."""
        return (self.engine, *self.other_engines)
