"""The TensorRT-LLM engine, never run: find it, check configurations, start servers, read facts and failures.

Sources, in NVIDIA/TensorRT-LLM: `tensorrt_llm/commands/serve.py` at commit 00209af149e7 and the reference of
`trtllm-serve` 1.3.0rc7 (flags, errors), `llmapi/llm_args.py` at 000439672005 (options), `serve/openai_server.py` at
00057725d9a6 (endpoints), `metrics/collector.py` at 050f80def8df, issues 9277 and 7752 and pull request 6259 (refused
lengths, wrong options), and logs in public repositories (lines of the log). The process that holds the model logs its
traceback after "Executor worker initialization error". The server then raises "Executor worker returned error", which
is a consequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, ServerFacts
from search_spaces.yaml_file import plain_yaml
from tuner.engines.base import EngineSettings
from tuner.engines.kind import Found
from tuner.engines.server import failures
from tuner.engines.server.causes import GPUS, MISSING_PACKAGE, MODEL_VERSION, STARTING, broken, rows
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.failures import with_shared_rows
from tuner.engines.server.metrics import MetricNames
from tuner.engines.server.program_engine import find_named, interpreter_of
from tuner.engines.server.python_engine import PythonEngine, PythonInstallation, PythonPackage, python_installation
from tuner.engines.server.running_server import HOST, GeneratorServer, Readings
from tuner.engines.server.token_prompts import TokenTools, find_tokenizer, ordinary_tokens
from tuner.engines.tensorrt_llm.kind import TENSORRT_LLM
from tuner.engines.tensorrt_llm.options import FILE_FLAG, METRICS_OPTIONS, split_options
from tuner.errors import SettingError, UserError
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, TrialSpec

CAUSES = (
    *rows(
        FailureKind.PORT_TAKEN,
        r"Failed to bind socket to",
        message="another program took the port",
    ),
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"Impossible to fit in any sequence in kvCache",
        phases=STARTING,
    ),
    *rows(
        FailureKind.OUT_OF_MEMORY_STARTUP,
        r"Executor creation failed due to insufficient GPU memory",
        phases=STARTING,
    ),
    *broken(r"No GPU devices found on the node", step=GPUS),
    *broken(r"No module named '?tensorrt_llm|No package metadata was found for tensorrt.llm", step=MISSING_PACKAGE),
    *broken(r"Unknown architecture for AutoModel", step=MODEL_VERSION),
    *broken(r"MPI_Init|MPI_Comm_spawn|MPI_ERR_SPAWN|libmpi\.so"),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^Error: (?:No such option|Invalid value|Option .* requires|Got unexpected extra argument|Missing argument)",
        r"Failed to parse the arguments for the LLM constructor",
        r"got invalid argument",
        phases=STARTING,
    ),
)
"""For each causal line of a log, the first matching row applies; the shared rows follow."""

TEXTS = with_shared_rows(
    CAUSES,
    consequences=r"worker initialization error: Traceback|Executor worker returned error|"
    r"Executor worker died during initialization",
    died=r"Executor worker died during initialization|Executor worker returned error",
    prefix=r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\] (?:\[RANK \d+\] )?\[[A-Z]\] ?(?:\[\w+\] )?",
    anchor=r"Executor worker initialization error",
)

TOO_LONG = re.compile(
    r"The sum of prompt length \([\d.]+\),? (?:and )?query length \(\d+\),?[^\"]{0,40}? should not exceed "
    r"max_(?:num_tokens|seq_len) \(\d+\)"
)

classify = partial(failures.classify, texts=TEXTS)
"""Returns the typed failure of a server that ended; see `failures.classify`."""

METRICS = MetricNames(
    running="trtllm_num_requests_running",
    waiting="trtllm_num_requests_waiting",
    kv_usage="trtllm_kv_cache_utilization",
    prefix_hits="trtllm_kv_cache_reused_blocks_total",
    prefix_misses="trtllm_kv_cache_missed_blocks_total",
    queue_sum="trtllm_request_queue_time_seconds_sum",
    queue_count="trtllm_request_queue_time_seconds_count",
    draft_tokens="trtllm_spec_decode_num_draft_tokens_total",
    accepted="trtllm_spec_decode_num_accepted_tokens_total",
    page="/prometheus/metrics",
    hides_zeros=True,
)
"""`/metrics` is a list of iterations in JSON, which each reader empties. Metrics are written when requests end."""

_KV = re.compile(r"Allocated (\d+\.\d+) GiB for max tokens in paged KV cache \((\d+)\)")
_WEIGHTS = re.compile(
    r"Memory used after loading model weights \(inside torch\) in memory usage profiling: (\d+\.\d+) GiB"
)


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of a log; None for each that it lacks.

    A start allocates the KV cache twice: small for a measurement of memory, then as large as it stays.
    """
    caches, weights = _KV.findall(text), _WEIGHTS.search(text)
    size, tokens = caches[-1] if caches else (None, None)
    return ServerFacts(
        kv_cache_tokens=None if tokens is None else int(tokens),
        kv_cache_gib=None if size is None else float(size),
        weights_gib=None if weights is None else float(weights[1]),
    )


class TensorRtLlmServer(GeneratorServer):
    """See `Server`."""

    reads = Readings(classify, facts_from_log, METRICS, TOO_LONG)
    reuse_connections = True

    @property
    def listed_name(self) -> str:
        """See `RunningServer`. Only versions from 1.3 on have a flag for another name; requests may have any name."""
        return listed_name(self._model.name)

    def _make_tools(self) -> TokenTools:
        return token_tools(self._model.tokenizer, self._records)


def token_tools(tokenizer: str, records: ProcessRecords) -> TokenTools:
    """Return what makes the prompts; the package `tokenizers` tokenizes a user's own texts, which the server cannot.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """
    library = cache(lambda: find_tokenizer(tokenizer))
    return TokenTools(
        ordinary_tokens(tokenizer), records, lambda text, special: library().tokens(text, special=special)
    )


def listed_name(model: str) -> str:
    """Return the name under which `/v1/models` lists a model: that of its folder, else its hub name."""
    folder = Path(model)
    return folder.name if folder.is_dir() else model


PROGRAM = "trtllm-serve"
VARIABLE = "TUNER_TRTLLM_SERVE"
NAME_THE_PROGRAM = "name the trtllm-serve of its environment, such as VENV/bin/trtllm-serve"
PACKAGE = PythonPackage("TensorRT-LLM", Path(__file__).with_name("probe.py"), NAME_THE_PROGRAM)
_ENTRY_POINT = b"tensorrt_llm.commands.serve"


def find_server(given: str | None) -> Path:
    """Return the `trtllm-serve` to use: the given one, TUNER_TRTLLM_SERVE, or the one on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    found = find_named("trtllm_serve", given, VARIABLE, NAME_THE_PROGRAM, PROGRAM)
    if found is not None:
        return found
    remedy = (
        "install one by NVIDIA's guide in an environment of its own, or run the tuner in NVIDIA's image, and put the "
        f"program's path into {VARIABLE}"
    )
    raise SettingError("trtllm_serve", None, f"no TensorRT-LLM found: no {PROGRAM} on PATH", remedy)


@cache
def installation(executable: Path) -> PythonInstallation:
    """Return the installation of a program.

    Raises:
        UserError: if it is no console script of TensorRT-LLM, or its Python does not have it.
    """
    python = interpreter_of(executable, _ENTRY_POINT)
    if python is None:
        raise UserError(f"{executable} is not the script that TensorRT-LLM installs; {NAME_THE_PROGRAM}")
    return python_installation(PACKAGE, executable, python)


OPTIONS_FILE = "options.yaml"
"""The file of options, among the artifacts of a trial."""


class TensorRtLlmEngine(PythonEngine[TensorRtLlmServer]):
    """TensorRT-LLM on one worker; see `Engine`. Its PyTorch backend serves a model's folder without a build."""

    kind = TENSORRT_LLM
    dropped_prefixes = TENSORRT_LLM.variables

    def __init__(self, settings: EngineSettings) -> None:
        """Find `trtllm-serve` and its Python.

        Raises:
            UserError: if there is none.
        """
        found = installation(find_server(settings.executable))
        super().__init__(settings, found, worker_devices(settings.device_index))

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why no file can hold the trial's options, or the parser refuses its flags; None if neither."""
        try:
            split_options((*spec.launch.base_argv, *spec.launch.argv))
        except SettingError as error:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, f"{error.value}: {error.rule}")
        return super().check(spec)

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command as it is recorded, with options as words; without metrics there would be no facts."""
        metrics = (word for option in METRICS_OPTIONS for word in (option, "true"))
        return (
            *(str(self._found.executable), "serve", launch.model.name),
            *("--backend", "pytorch", "--host", HOST, "--port", str(port)),
            *(*metrics, *launch.base_argv, *launch.argv),
        )

    def _started(self, argv: tuple[str, ...], artifacts: Path) -> tuple[str, ...]:
        """Write the options to their file, and return the words that name it."""
        words, options = split_options(argv)
        path = artifacts / OPTIONS_FILE
        path.write_text(plain_yaml(options), encoding="utf-8")
        return (*words, FILE_FLAG, str(path))

    def _server(self, spec: TrialSpec, **started: Any) -> TensorRtLlmServer:
        return TensorRtLlmServer(records=self._records, **started)


def find(given: str | None) -> Found:
    """Return the installation that a setting names, or the one of this machine for None; see `EngineKind`."""
    return Found(installation(find_server(given)).executable)


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    """Yield what `tuner doctor` shows of an installation; see `EngineKind`."""
    yield "version", installation(found.executable).version
