"""Options that several commands share, the panels of their help, and the option of each setting."""

from __future__ import annotations

from typing import Annotated

from tuner.cli.help import flag, option

STUDY = "Study"
MODEL = "Model and engine"
WORKLOAD = "Workload"
GOALS = "Objectives and SLOs"
SPACE = "Search space"
SEARCH = "Search"
CONFIRMATION = "Confirmation"
SERVER = "Server"
RUN = "Run"
OUTPUT = "Output"

Model = Annotated[
    str | None,
    option(MODEL, "DIR|NAME", "Model: a folder or a hub name.", shown="the preset's"),
]
TrafficFile = Annotated[
    str | None,
    option(WORKLOAD, "FILE", "Traffic, a YAML file.", "--workload", shown="the preset's"),
]
Tokenizer = Annotated[
    str | None,
    option(MODEL, "DIR|NAME", "Tokenizer of the load generator: a folder or a hub name.", shown="the model's"),
]
Engine = Annotated[
    str,
    option(
        MODEL,
        "ENGINE",
        "vllm, llama.cpp, sglang, tensorrt-llm, openai, simulated, or auto, which simulates if there is no GPU.",
        "--engine",
    ),
]
Engines = Annotated[
    list[str] | None,
    option(
        MODEL,
        "ENGINE",
        "vllm, llama.cpp, sglang, tensorrt-llm, openai, simulated, or auto, which simulates if there is no GPU. "
        "Several of the first three are ranked in one study; the first is the default engine.",
        "--engine",
        shown="auto",
    ),
]
Models = Annotated[
    list[str] | None,
    option(
        MODEL,
        "DIR|NAME|FILE",
        "Model: a folder or a hub name, of llama.cpp a GGUF file. With several engines one for each format, or "
        "ENGINE=MODEL.",
        "--model",
        shown="the preset's",
    ),
]
Spaces = Annotated[
    list[str] | None,
    option(
        SPACE,
        "NAME|FILE",
        "Search space: a shipped one or a YAML file; of another engine, ENGINE=SPACE.",
        "--space",
        shown="the preset's",
    ),
]
ServerCommand = Annotated[
    str | None,
    option(
        MODEL,
        "COMMAND",
        "Command of --engine openai, which serves an OpenAI-compatible API. {port}, {host}, {model} and {flags} in it "
        "are replaced; no shell runs it.",
        "--server-command",
        shown="none",
    ),
]
LlamaServer = Annotated[
    str | None,
    option(
        MODEL,
        "FILE",
        "The llama-server executable.",
        shown="$TUNER_LLAMA_SERVER, else the one on PATH, else the package xllamacpp",
    ),
]
Sglang = Annotated[
    str | None,
    option(
        MODEL,
        "FILE",
        "The Python that has SGLang.",
        shown="$TUNER_SGLANG, else this Python, else the one beside sglang on PATH",
    ),
]
TrtllmServe = Annotated[
    str | None,
    option(
        MODEL,
        "FILE",
        "The trtllm-serve executable of TensorRT-LLM.",
        "--trtllm-serve",
        shown="$TUNER_TRTLLM_SERVE, else the one on PATH",
    ),
]
Gpu = Annotated[
    str | None,
    option(MODEL, "CARD|FILE", "Card to simulate: a name such as h200, or a YAML file.", shown="the preset's"),
]
GpusPerTrial = Annotated[
    int | None,
    option(
        RUN,
        "INTEGER",
        "GPUs of each trial, of which a configuration uses some or all.",
        "--gpus-per-trial",
        shown="what the server's flags need",
    ),
]
NodesPerTrial = Annotated[
    int,
    option(
        RUN,
        "INTEGER",
        "Nodes of the cluster over which each trial's GPUs are spread evenly.",
        "--nodes-per-trial",
    ),
]
Vllm = Annotated[
    str | None,
    option(MODEL, "FILE", "The vllm executable.", shown="$TUNER_VLLM, else the one on PATH"),
]
RayAddress = Annotated[
    str | None,
    option(RUN, "ADDRESS", "Ray cluster that runs the trials.", "--ray-address", shown="this machine"),
]
VllmVersion = Annotated[
    str | None,
    option(MODEL, "VERSION", "vLLM version to simulate, such as 0.25.1.", shown="depends on the card"),
]
Env = Annotated[
    list[str] | None,
    option(MODEL, "NAME=VALUE", "Environment variable of every server."),
]
Secret = Annotated[
    list[str] | None,
    option(
        MODEL,
        "NAME",
        "Variable or flag of the server that is a secret, beside those named KEY, TOKEN, PASSWORD, SECRET, CREDENTIAL.",
        "--secret",
    ),
]
Slos = Annotated[
    list[str] | None,
    option(GOALS, "'METRIC<VALUE'", "Bound on a metric, such as 'p99_ttft_ms<500'.", "--slo", shown="the workload's"),
]
QualityTask = Annotated[
    str | None,
    option(
        GOALS,
        "FILE|TASK",
        "Questions that quality is measured with: JSONL lines with `prompt`, `answer` and optionally `regex`, or a "
        "task of lm-evaluation-harness such as `lm-eval:gsm8k`.",
        "--quality-task",
        shown="none",
    ),
]
Price = Annotated[
    float | None,
    option(
        MODEL,
        "NUMBER",
        "Price of one GPU for an hour, in any currency, for the cost of tokens.",
        "--price",
        shown="the card's list price",
    ),
]
Rate = Annotated[
    float | None,
    option(WORKLOAD, "NUMBER", "Mean request rate of traffic, in requests per second.", shown="the workload's"),
]
Users = Annotated[
    int | None,
    option(
        WORKLOAD, "INTEGER", "Users of a closed loop: requests that are sent at the same time.", shown="the preset's"
    ),
]
Prompts = Annotated[
    int | None,
    option(WORKLOAD, "INTEGER", "Requests of one benchmark.", shown="the preset's"),
]
InputLen = Annotated[
    int | None,
    option(WORKLOAD, "TOKENS", "Input length of each request of a closed loop.", shown="the preset's"),
]
OutputLen = Annotated[
    int | None,
    option(WORKLOAD, "TOKENS", "Output length of each request of a closed loop.", shown="the preset's"),
]
Temperature = Annotated[
    float | None,
    option(WORKLOAD, "NUMBER", "Sampling temperature, set on the server.", shown="the workload's"),
]
KeepAnswers = Annotated[
    bool,
    flag(SPACE, "Leave out parameters that change the model's answers.", "--keep-answers"),
]
BunchedTokens = Annotated[
    bool,
    flag(
        SPACE,
        "Offer parameters that send tokens to users in groups, also without an SLO on ITL.",
        "--allow-bunched-tokens",
    ),
]
Storage = Annotated[
    str | None,
    option(
        OUTPUT,
        "FILE|URL",
        "Database of studies: a file or an SQLAlchemy URL.",
        "--storage",
        shown="tuner_study/tuner.db",
    ),
]
Server = Annotated[
    str | None,
    option(OUTPUT, "URL", "The `tuner serve` to ask; the token is in $TUNER_TOKEN.", "--server", shown="$TUNER_SERVER"),
]
Insecure = Annotated[
    bool,
    flag(OUTPUT, "Send the token without TLS to a server beyond this machine.", "--insecure"),
]
StudyName = Annotated[
    str | None,
    option(None, "NAME", "Name of the study.", "--study", shown="the latest"),
]
Round = Annotated[
    int,
    option(None, "INTEGER", "Measurement of this round; 0 is the trial of the search.", "--round", least=0),
]
AsJson = Annotated[bool, flag(OUTPUT, "Print JSON.", "--json")]
AsCsv = Annotated[bool, flag(OUTPUT, "Print CSV.", "--csv")]

_OPTIONS = {
    "bunched_tokens": "--allow-bunched-tokens",
    "max_concurrency": "--users",
    "name": "NAME",
    "num_prompts": "--prompts",
    "output": "-o",
    "shared": "--share",
    "server_arguments": "server argument",
}


def option_of(field: str) -> str:
    """Return the option of a setting, as error messages name it; server arguments have none and follow `--`."""
    return _OPTIONS.get(field, "--" + field.replace("_", "-"))
