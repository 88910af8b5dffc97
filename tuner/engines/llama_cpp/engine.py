"""The llama.cpp engine: find the server, check configurations, start servers, and read their facts and failures.

The server logs the cause of a failed start first, as a line of level E, and its consequences after it. A start is tried
twice, once to fit the parameters into the memory of the device, so that the lines repeat. The failure table has texts
of xllamacpp 2026.10.11549, provoked with the server itself; `tests/data/logs/llama.cpp` has the logs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance, ServerFacts
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.kind import Found
from tuner.engines.llama_cpp.kind import LAUNCHER, LLAMA_CPP, PROGRAM
from tuner.engines.server.causes import (
    CARD,
    DRIVER,
    GPUS,
    LOADED,
    MODEL_FILES,
    REINSTALL,
    RIGHTS,
    STARTING,
    FailurePattern,
    broken,
    rows,
)
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.failures import EVIDENCE_CHARS, EVIDENCE_LINES, bare, read_log, shortened, without_cause
from tuner.engines.server.metrics import MetricNames
from tuner.engines.server.program_engine import ProgramEngine, find_named
from tuner.engines.server.running_server import HOST, GeneratorServer, Readings
from tuner.engines.server.token_prompts import TokenTools, gguf_tools
from tuner.errors import FREE_SPACE, SettingError, UserError, reason_of
from tuner.specs import LaunchSpec, TrialSpec
from tuner.workloads.results import RequestRecord

_PREFIX = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s+)?(?:[\d.]+\s+)?(?:(?P<level>[EWID])\s+)?(?:(?:srv|slot|cmn|que)\s+)?"
    r"(?:operator\(\): )?\s*"
)
"""Time, level and subsystem, of which a build or the start of the server may write any or none."""

_ERROR = re.compile(
    r"^error: |^error while handling argument|"
    r"^terminate called|what\(\): |GGML_ASSERT|error loading model|error while loading|failed to |unable to |"
    r"(?:CUDA|ROCm|HIP|Vulkan) error|: Assertion .* failed|device lost"
)
"""What states an error in a line without a level, beside the texts of the table."""

_FUNCTION = re.compile(r"^\w+(?:\(\))?: +")

_OUT_OF_MEMORY = (
    r"insufficient memory \(attempted to allocate",
    r"failed to allocate (?:buffer|CPU|compute|\S+ buffer)",
    r"unable to allocate \S+ buffer",
    r"(?:cuda|hip)Malloc failed: out of memory",
    r"(?:CUDA|ROCm|HIP|Vulkan) error:? .*out of memory|ErrorOutOfDeviceMemory|OutOfHostMemory",
    r"failed to allocate|failed to create (?:cuda|CUDA) (?:graph|memory) pool",
    r"std::bad_alloc|bad allocation|Cannot allocate memory|CommandBufferCallbackErrorOutOfMemory",
)

CAUSES: tuple[FailurePattern, ...] = (
    *rows(FailureKind.PORT_TAKEN, r"couldn't bind|address already in use", message="another program took the port"),
    *rows(FailureKind.DISK_FULL, r"No space left on device", message="no space left on disk", step=FREE_SPACE),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *broken(r"Permission denied", step=RIGHTS),
    *broken(
        r"cannot open shared object|loading shared libraries|undefined symbol|version `\S+' not found", step=REINSTALL
    ),
    *broken(
        r"failed to open (?:GGUF file|\S+)|No such file or directory|unable to (?:open|load) model",
        r"model is corrupted or incomplete|unexpectedly reached end of file|failed to read (?:magic|header|tensor|key)",
        r"(?:invalid|bad) magic|GGUF split|invalid split file|read error",
        step=MODEL_FILES,
    ),
    *broken(r"no kernel image is available|kernel image is invalid|invalid device function", step=CARD),
    *broken(
        r"missing tensor|tensor '\S+' not found|wrong number of tensors|wrong shape|invalid ggml type",
        r"this GGUF file is version|GGUFv1 is no longer supported|unknown model architecture|unknown projector type",
        step="install a newer llama.cpp, or convert the model anew",
    ),
    *broken(
        r"rocBLAS error: Cannot read|unsupported toolchain|ErrorIncompatibleDriver",
        r"error loading model hyperparameters|error loading model vocabulary|failed to load CLIP model",
        r"the package xllamacpp is not installed",
        r"[Cc]ould(?: not|n't) resolve host|built without (?:CURL|SSL)|HTTPS is not supported",
        r"failed to (?:get|download) |invalid http status code|from HF API|(?:response code|failed, status): [45]\d\d",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^error: |^(?:unknown|invalid) argument|^error while handling argument",
        r"quantized V cache requires flash_attn",
        r"V cache quantization requires flash_attn",
        r"n_seq_max must be <=|n_batch and n_ubatch cannot",
        r"cache type .* (?:does not|not) support",
        r"does not divide n_embd_head",
        r"failed to initialize the context",
        r"unsupported cache type",
    ),
    *broken(r"driver version is insufficient", general=True, step=DRIVER),
    *broken(r"no CUDA-capable", general=True, step=GPUS),
    *broken(
        r"no usable GPU found|ggml_cuda_init: failed",
        r"Unable to find any vulkan device",
        r"error loading model: ",
        general=True,  # the server goes on without the GPU, and memory can be why a model is not loaded
    ),
)
"""For each causal line of a log, the first matching row applies; a row that names phases applies only in those.

A general row applies where no other row applies to any line.
"""

CONSEQUENCES = re.compile(
    r"failed to (?:load model(?! '[^']*': )|create.context|create context)|exiting due to|"
    r"error loading model: llama_model_loader|"
    r"encountered an error while trying to fit params|failed to fit params|task id = \d+, error:|"
    r"llocate .*pinned memory|load_backend: failed|normal during memory fitting|failed to create draft context"
)
"""Lines that are consequences of a failure, or are about one request, and never the cause of a server's end."""

_TOO_LONG = re.compile(r"request \(\d+ tokens\) exceeds the available context size \(\d+ tokens\)")
_EXCEEDED = re.compile(r"Context size has been exceeded")
_CUT_OFF = re.compile(r"stop processing: n_tokens = (\d+), truncated = 1")


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    lines = [bare(line) for line in log_text.splitlines()]
    errors = [line for line in lines if _is_error(line) and not CONSEQUENCES.search(line)]
    causes = list(dict.fromkeys(_plain(line) for line in errors))
    evidence = "\n".join(causes[:EVIDENCE_LINES])[:EVIDENCE_CHARS] or None
    for general in (False, True):
        for cause in causes:
            row = next((row for row in CAUSES if row.general is general and row.matches(cause, phase)), None)
            if row is not None:
                return Failure(row.kind, phase, row.shown(_shown(cause)), evidence, exit_code)
    if causes and exit_code is not None and exit_code >= 0:
        return Failure(FailureKind.ENGINE_CRASH, phase, _shown(causes[0]), evidence, exit_code)
    return without_cause(log_text, exit_code, phase, evidence)


def context_problem(log_text: str) -> str | None:
    """Return why requests do not fit into the server's context, as its log says; None if it says nothing of it."""
    too_long = _TOO_LONG.search(log_text)
    if too_long is not None:
        return too_long[0]
    if _EXCEEDED.search(log_text):
        return "the requests of all slots together exceed the shared context"
    cut_off = _CUT_OFF.search(log_text)
    return None if cut_off is None else f"answers were cut off at {cut_off[1]} tokens, the context of a slot"


def _is_error(line: str) -> bool:
    """Return whether a line states an error: by its level, and if it has none, by its words."""
    prefix = _PREFIX.match(line)
    level = None if prefix is None else prefix["level"]
    words = _plain(line)
    if level is not None or words.startswith("warning"):
        return level == "E"
    return _ERROR.search(words) is not None or any(row.pattern.search(words) for row in CAUSES)


def _plain(line: str) -> str:
    """Return a line of the log without time, level and subsystem."""
    return _PREFIX.sub("", line).strip()


def _shown(cause: str) -> str:
    return shortened(_FUNCTION.sub("", cause.removeprefix("error: ")))


METRICS = MetricNames(
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    prefix_hits="llamacpp:prompt_tokens_cached_total",
    prefix_misses="llamacpp:prompt_tokens_total",
    drafts="llamacpp:spec_decode_num_drafts_total",
    draft_tokens="llamacpp:spec_decode_num_draft_tokens_total",
    accepted="llamacpp:spec_decode_num_accepted_tokens_total",
    hides_zeros=True,
)

_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of the log: the size of the KV cache in tokens, and how many longest requests fit into it."""
    found = _SLOTS.search(text)
    if found is None:
        return ServerFacts()
    slots, tokens, unified = int(found[1]), int(found[2]), found[3] == "true"
    fitting = 1 if unified else slots
    return ServerFacts(kv_cache_tokens=fitting * tokens, max_concurrency=float(fitting))


class LlamaCppServer(GeneratorServer):
    """See `Server`."""

    reads = Readings(classify, facts_from_log, METRICS)

    def _make_tools(self) -> TokenTools:
        return gguf_tools(self._model.tokenizer, self.url, self._records, self._api_key)

    def _length_problem(self, records: Sequence[RequestRecord]) -> str | None:
        return context_problem(read_log(self._log))


VARIABLE = "TUNER_LLAMA_SERVER"
PACKAGE = "xllamacpp"

_ANSWER_S = 60.0
_VERSION = re.compile(r"^version: *(\d[\w.]*)", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_DEVICE = re.compile(r"^ +(\w+): .+\(\d+ MiB", re.MULTILINE)


def find_server(given: str | None) -> Path:
    """Return the server to run: the given one, TUNER_LLAMA_SERVER, the one on PATH, or that of the package `xllamacpp`.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    remedy = "name the llama-server program itself"
    found = find_named("llama_server", given, VARIABLE, remedy, PROGRAM.name)
    if found is not None:
        return found
    beside = Path(sys.executable).with_name(LAUNCHER)
    if importlib.util.find_spec(PACKAGE) is not None and os.access(beside, os.X_OK):
        return beside
    remedy = f"`pip install xllamacpp`, or put {PROGRAM.name} on PATH or its path into {VARIABLE}"
    rule = f"no llama.cpp found: no {PROGRAM.name} on PATH, and the package {PACKAGE} is not installed"
    raise SettingError("llama_server", None, rule, remedy)


@dataclass(frozen=True)
class Installation:
    """One installed server: its version, its long flags (None: unknown), and the names of its GPUs."""

    executable: Path
    version: str
    flags: frozenset[str] | None
    gpus: tuple[str, ...]


@cache
def installation(executable: Path) -> Installation:
    """Return the installation of an executable; it is run for its version, its help and its devices.

    Raises:
        UserError: if the executable prints no version.
    """
    text = _output(executable, "--version")
    version = _VERSION.search(text)
    if version is None:
        last = (text.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{executable} --version prints no version ({last}); is it {PROGRAM.name}?")
    flags = frozenset(_FLAG.findall(_output(executable, "--help")))
    gpus = tuple(_DEVICE.findall(_output(executable, "--list-devices")))
    return Installation(executable, version[1], flags or None, gpus)


def _output(executable: Path, flag: str) -> str:
    """Return what the program prints for a flag, standard error included."""
    try:
        done = subprocess.run(
            [executable, flag],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{executable} {flag} did not run ({reason_of(error)}); is it {PROGRAM.name}?") from None
    return done.stdout


class LlamaCppEngine(ProgramEngine[LlamaCppServer]):
    """llama.cpp on one worker; see `Engine`."""

    key_variable = PROGRAM.key_variable
    dropped_prefixes = LLAMA_CPP.variables

    def __init__(self, settings: EngineSettings) -> None:
        """Find the server.

        Raises:
            UserError: if there is none, or its version cannot be read.
        """
        self._found = installation(find_server(settings.executable))
        self._tokenizers = settings.tokenizers
        super().__init__(settings, worker_devices(settings.device_index) if self._found.gpus else ())

    def info(self) -> EngineInfo:
        found, measured = self._found, Provenance.MEASURED
        return EngineInfo(LLAMA_CPP.name, found.version, str(found.executable), found.flags, measured, frozenset())

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return the first flag that the server lacks; None if it has all. It has no check of values but its start."""
        known = self._found.flags
        for word in (*spec.launch.base_argv, *spec.launch.argv):
            flag = word.partition("=")[0]
            if known is not None and flag.startswith("--") and flag not in known:
                message = f"{flag} is not a flag of {LLAMA_CPP.title} {self._found.version}"
                return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, message)
        return None

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command; without `--metrics` the server would have no facts."""
        return (
            *(str(self._found.executable), "--model", launch.model.name, "--alias", launch.model.served_name),
            *("--host", HOST, "--port", str(port), "--metrics", *launch.base_argv, *launch.argv),
        )

    def _server(self, spec: TrialSpec, **started: Any) -> LlamaCppServer:
        return LlamaCppServer(records=self._records, tokenizers=self._tokenizers, **started)


def find(given: str | None) -> Found:
    """Return the installation that a setting names, or the one of this machine for None; see `EngineKind`."""
    found = installation(find_server(given))
    return Found(found.executable, bool(found.gpus))


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    """Yield what `tuner doctor` shows of an installation; see `EngineKind`."""
    installed = installation(found.executable)
    yield "version", installed.version
    yield "gpus", list(installed.gpus)
