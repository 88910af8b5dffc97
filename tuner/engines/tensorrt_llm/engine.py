"""The TensorRT-LLM engine, never run: find it, check configurations, start servers, read facts and failures.

The texts are those of its sources and of logs in its public issues (docs/engines.md names them); no server was run. The
process that holds the model logs its traceback after "Executor worker initialization error". The server then raises
"Executor worker returned error", which is a consequence. An error of the command line is click's, with exit code 2.

The names and texts are those of its sources (docs/engines.md names the commits); none was seen on a server. What a
version does not report is None. The metrics of iterations are written when requests end.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.server import failures as python_logs
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.failures import CAUSES as PYTHON_CAUSES
from tuner.engines.server.failures import CONSEQUENCES as PYTHON_CONSEQUENCES
from tuner.engines.server.failures import STARTING, LogTexts, read_log, rows
from tuner.engines.server.flags import ServeFlags, flags_from_dump, load_flags, write_dump
from tuner.engines.server.metrics import Counters, StateMetrics, with_benchmark_metrics
from tuner.engines.server.program_engine import ProgramEngine, interpreter_of, named_program
from tuner.engines.server.running_server import HOST, GeneratorServer
from tuner.engines.server.token_prompts import LibraryTokenizer, TokenTools, find_tokenizer, ordinary_tokens
from tuner.engines.tensorrt_llm import kind
from tuner.engines.tensorrt_llm.options import FILE_FLAG, METRICS_OPTIONS, OptionError, options_text, split_options
from tuner.errors import SettingError, UserError, trial_failed
from tuner.processes.readiness import wait_ready
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
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"No GPU devices found on the node",
        r"No module named 'tensorrt_llm",
        r"No package metadata was found for tensorrt.llm",
        r"MPI_Init|MPI_Comm_spawn|libmpi\.so",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^Error: (?:No such option|Invalid value|Option .* requires|Got unexpected extra argument|Missing argument)",
        r"Failed to parse the arguments for the LLM constructor",
        r"got invalid argument",
        phases=STARTING,
    ),
    *PYTHON_CAUSES,
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:ValueError|AssertionError|NotImplementedError)\b",
        phases=STARTING,
        general=True,
    ),
)
"""For each causal line of a log, the first matching row applies; those of every server in Python are vLLM's."""

TEXTS = LogTexts(
    causes=CAUSES,
    consequences=re.compile(
        rf"{PYTHON_CONSEQUENCES.pattern}|worker initialization error: Traceback|Executor worker returned error|"
        r"Executor worker died during initialization"
    ),
    died=re.compile(r"Executor worker died during initialization|Executor worker returned error"),
    prefix=re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\] (?:\[RANK \d+\] )?\[[A-Z]\] ?"),
    anchor=re.compile(r"Executor worker initialization error"),
)

_CLICK = re.compile(r"^Error: .+", re.MULTILINE)
_USAGE = re.compile(r"^Usage: trtllm-serve", re.MULTILINE)

_TOO_LONG = re.compile(
    r"The sum of prompt length \([\d.]+\),? (?:and )?query length \(\d+\),?[^\"]{0,40}? should not exceed "
    r"max_(?:num_tokens|seq_len) \(\d+\)"
)


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    refused = _CLICK.search(log_text)
    if exit_code == 2 and refused is not None and _USAGE.search(log_text) is not None:
        return Failure(FailureKind.INVALID_CONFIGURATION, phase, refused[0], refused[0], exit_code)
    return python_logs.classify(log_text, exit_code, phase, TEXTS)


def length_problem(error: str) -> str | None:
    """Return why the server refused a request for its length, as its answer says; None if it was not that."""
    found = _TOO_LONG.search(error)
    return None if found is None else found[0]


def token_tools(tokenizer: str, records: ProcessRecords) -> TokenTools:
    """Return what makes the prompts for a server; the package `tokenizers` is needed for a user's own texts only.

    Args:
        tokenizer: a model's folder, or a hub name that is downloaded.
        records: where the load generator's process is recorded.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """

    @cache
    def library() -> LibraryTokenizer:
        try:
            return find_tokenizer(tokenizer)
        except SettingError as error:
            message = f"the user's prompts cannot be tokenized: {error.rule}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message) from None

    def tokenize(text: str, special: bool) -> list[int]:
        return library().tokens(text, special=special)

    return TokenTools(ordinary_tokens(tokenizer), records, tokenize)


PAGE = "/prometheus/metrics"
"""`/metrics` is a list of iterations in JSON, which each reader empties."""

RUNNING = "trtllm_num_requests_running"
WAITING = "trtllm_num_requests_waiting"
KV_USAGE = "trtllm_kv_cache_utilization"
REUSED = "trtllm_kv_cache_reused_blocks_total"
MISSED = "trtllm_kv_cache_missed_blocks_total"
QUEUE_SUM = "trtllm_request_queue_time_seconds_sum"
QUEUE_COUNT = "trtllm_request_queue_time_seconds_count"
DRAFT_TOKENS = "trtllm_spec_decode_num_draft_tokens_total"
ACCEPTED = "trtllm_spec_decode_num_accepted_tokens_total"

_LOOKED_UP = "looked up"
"""Blocks of prompts, reused or not; no metric of the page."""

COUNTERS = Counters("", REUSED, _LOOKED_UP, QUEUE_SUM, QUEUE_COUNT, "", DRAFT_TOKENS, ACCEPTED)
"""Preempted requests are not counted, nor are drafts, only their tokens."""

STATE = StateMetrics(
    RUNNING,
    WAITING,
    KV_USAGE,
    None,
    (RUNNING, WAITING, KV_USAGE, REUSED, MISSED, QUEUE_SUM, QUEUE_COUNT, DRAFT_TOKENS, ACCEPTED),
    page=PAGE,
)

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


def with_metrics(
    facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float], usage: list[float]
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes.

    A counter that was never raised is not on the page: without blocks that were looked up, none is known to be reused.
    """
    return with_benchmark_metrics(facts, _with_blocks(before), _with_blocks(after), usage, COUNTERS)


def _with_blocks(values: Mapping[str, float]) -> dict[str, float]:
    if REUSED not in values and MISSED not in values:
        return dict(values)
    reused, missed = values.get(REUSED, 0.0), values.get(MISSED, 0.0)
    return {**values, REUSED: reused, _LOOKED_UP: reused + missed}


class TensorRtLlmServer(GeneratorServer):
    """See `Server`."""

    state_metrics = STATE
    reuse_connections = True

    def _facts(self) -> ServerFacts:
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_metrics(facts, self._before, self._after, self._usage)

    def _wait_ready(self, cancelled: CancelToken) -> None:
        wait_ready(
            self._process,
            HOST,
            self.port,
            listed_name(self._model.name),
            self._limits.startup_s,
            cancelled,
            self._classify,
            self.headers,
        )

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _make_tools(self) -> TokenTools:
        return token_tools(self._model.tokenizer, self._records)

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        if repeat.completed:
            return
        errors = (record.error for record in self._sent(index, phase) if record.error is not None)
        problem = next((found for error in errors if (found := length_problem(error)) is not None), None)
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)


def listed_name(model: str) -> str:
    """Return the name under which `/v1/models` lists a model: that of its folder, else its hub name.

    Only versions from 1.3 on have a flag for another name. No version compares the name in a request with it.
    """
    folder = Path(model)
    return folder.name if folder.is_dir() else model


ENGINE = "TensorRT-LLM"
PROGRAM = "trtllm-serve"
VARIABLE = "TUNER_TRTLLM_SERVE"
PROBE = Path(__file__).with_name("probe.py")

_ENTRY_POINT = b"tensorrt_llm.commands.serve"
_PROBE_S = 120.0
_FLAGS_S = 600.0
_NAME_THE_PROGRAM = "name the trtllm-serve of its environment, such as VENV/bin/trtllm-serve"


def find_server(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the `trtllm-serve` to use: the given one, TUNER_TRTLLM_SERVE, or the one on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(
            given, environment, lambda rule: SettingError("trtllm_serve", given, rule, _NAME_THE_PROGRAM)
        )
    named = environment.get(VARIABLE)
    if named:
        return named_program(
            named, environment, lambda rule: UserError(f"{VARIABLE}={named!r}: {rule}; {_NAME_THE_PROGRAM}")
        )
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    if found is not None:
        return Path(found).absolute()
    remedy = (
        "install one by NVIDIA's guide in an environment of its own, or run the tuner in NVIDIA's image, and put the "
        f"program's path into {VARIABLE}"
    )
    raise SettingError("trtllm_serve", None, f"no {ENGINE} found: no {PROGRAM} on PATH", remedy)


@dataclass(frozen=True)
class Installation:
    """One installed TensorRT-LLM: its program and Python, its version, and packages of `probe.PACKAGES` beside it."""

    executable: Path
    python: Path
    version: str
    packages: frozenset[str]

    def flags(self, home: Path) -> ServeFlags | None:
        """Return the flags and options of the installed version, cached in `home`; None if it cannot be imported.

        The first call takes the time of an import, 20 s and more.
        """
        text = f"{self.executable}|{self.executable.stat().st_mtime_ns}|{self.version}"
        path = home / "tensorrt_llm" / f"flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        cached = load_flags(path, ENGINE)
        if cached is not None:
            return cached
        try:
            dump = _probed(self.python, _FLAGS_S, "--flags")
        except UserError:
            return None
        write_dump(path, {"flags": dump["flags"]})
        return flags_from_dump(dump["flags"], ENGINE)


@cache
def installation(executable: Path) -> Installation:
    """Return the installation of a program.

    Raises:
        UserError: if it is no console script of TensorRT-LLM, or its Python does not have it.
    """
    python = interpreter_of(executable, _ENTRY_POINT)
    if python is None:
        raise UserError(f"{executable} is not the script that {ENGINE} installs; {_NAME_THE_PROGRAM}")
    found = _probed(python, _PROBE_S)
    if found["version"] is None:
        raise UserError(f"{python} has no {ENGINE}; {_NAME_THE_PROGRAM}")
    return Installation(executable, python, str(found["version"]), frozenset(found["packages"]))


def _probed(python: Path, limit_s: float, *arguments: str) -> dict[str, Any]:
    """Return what the probe prints as its last line.

    Raises:
        UserError: if it does not run.
    """
    try:
        done = subprocess.run(
            [python, PROBE, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} does not run ({error}); {_NAME_THE_PROGRAM}") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} does not answer as a Python ({last}); {_NAME_THE_PROGRAM}") from None
    return found


OPTIONS_FILE = "options.yaml"
"""The file of options, among the artifacts of a trial."""


class TensorRtLlmEngine(ProgramEngine[TensorRtLlmServer]):
    """TensorRT-LLM on one worker; see `Engine`. Its PyTorch backend serves a model's folder without a build."""

    dropped_prefixes = ("TRTLLM_", "TLLM_")

    def __init__(self, settings: EngineSettings) -> None:
        """Find `trtllm-serve` and its Python.

        Raises:
            UserError: if there is none.
        """
        self._found = installation(find_server(settings.executable))
        super().__init__(settings, worker_devices(settings.device_index))

    @cached_property
    def _flags(self) -> ServeFlags | None:
        return self._found.flags(self._home)

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version imports TensorRT-LLM to read its flags and options."""
        found = self._found
        return EngineInfo(
            name=kind.TENSORRT_LLM.name,
            version=found.version,
            executable=str(found.executable),
            flags=self._flags.names if self._flags else None,
            provenance=Provenance.MEASURED,
            packages=found.packages,
            parser=self._flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the program refuses the trial's flags, as far as its parser says; None if it accepts them.

        TensorRT-LLM checks the values of options when a server starts, before it loads the model.
        """
        words = (*spec.launch.base_argv, *spec.launch.argv)
        try:
            split_options(words)
        except OptionError as error:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, str(error))
        refused = None if self._flags is None else self._flags.problem(words)
        return None if refused is None else Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)

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
        path.write_text(options_text(options), encoding="utf-8")
        return (*words, FILE_FLAG, str(path))

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> TensorRtLlmServer:
        return TensorRtLlmServer(records=self._records, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        """Return None: `trtllm-serve` checks no key."""
        return None
