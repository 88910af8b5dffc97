"""The engine `openai`: start any command that serves an OpenAI-compatible API, and read its failures.

The cause of a failure is the last line of the log that a row of the failure table matches: the server may have survived
earlier ones. The table has texts of Linux, CUDA, HIP, PyTorch and of parsers of command lines, not of one engine. Where
no row matches, the exceptions of a Python server have their types by the rows that engines of Python share.

A prompt is a text, which every completions API takes. The package `tokenizers` makes texts of exact lengths from the
model's tokenizer. A GGUF file has no tokenizer that this package reads: its prompts are lists of token ids.

A cache of answers may outlive a server, such as that of a proxy. All trials of a study would otherwise send the same
prompts, and all but the first would be answered from the cache. The prompts therefore differ between servers: their
lengths and times are the same, and their words are others.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from tuner.engines import user_command as command
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.kind import Found
from tuner.engines.openai import kind
from tuner.engines.server.causes import (
    CARD,
    DRIVER,
    GPUS,
    LOADED,
    MISSING_PACKAGE,
    MODEL_FILES,
    REINSTALL,
    STARTING,
    FailurePattern,
    broken,
    rows,
)
from tuner.engines.server.devices import WorkerDevice, worker_devices
from tuner.engines.server.failures import EVIDENCE_CHARS, EVIDENCE_LINES, shortened, signal_of
from tuner.engines.server.failures import classify as classify_exceptions
from tuner.engines.server.program_engine import ProgramEngine
from tuner.engines.server.running_server import HEALTH_S, HOST, GeneratorServer, Readings
from tuner.engines.server.token_prompts import GGUF_SUFFIX, LibraryTools, find_tokenizer, gguf_tools
from tuner.engines.server.traffic import PromptTools
from tuner.engines.vllm.texts import METRICS as VLLM_METRICS
from tuner.engines.vllm.texts import TEXTS as VLLM_TEXTS
from tuner.errors import FREE_SPACE, SettingError, trial_failed
from tuner.http import get_local
from tuner.loadgen.plan import Prompt
from tuner.processes.readiness import NO_ENDPOINT
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, TrialSpec
from tuner.workloads.results import RequestRecord

READ_LINES = 400
"""Only the last lines of a log are searched."""

_OUT_OF_MEMORY = (
    r"OutOfMemoryError",
    r"(?:CUDA|HIP|GPU|device)(?: error:)? out of memory",
    r"cudaMalloc failed: out of memory",
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"can't allocate memory|Cannot allocate memory|model requires more system memory|unable to allocate \S+ buffer",
    r"^MemoryError\b|std::bad_alloc|CUDA runtime error\b.*out of memory|Not enough memory to handle \d+ prefill tokens",
)

CAUSES: tuple[FailurePattern, ...] = (
    *rows(
        FailureKind.PORT_TAKEN,
        r"address already in use|address in use|EADDRINUSE|Errno 98\b|os error 98\b|couldn't bind",
        r"port is already allocated|Only one usage of each socket address",
        message="another program took the port",
    ),
    *rows(
        FailureKind.DISK_FULL,
        r"No space left on device|Disk quota exceeded|Errno (?:28|122)\b",
        message="no space left on disk",
        step=FREE_SPACE,
    ),
    *rows(
        FailureKind.SERVER_KILLED,
        r"signaled to shutdown with signal (?:1|2|9|15)\b|has terminated: signal: (?:killed|terminated)",
        r"Failed with result 'oom-kill'",
    ),
    *rows(FailureKind.STARTUP_TIMEOUT, r"timed out waiting for llama runner to start"),
    *rows(FailureKind.KV_CACHE_TOO_SMALL, r"No enough blocks|Please try to increase --mem-fraction-static"),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *broken(r"NVIDIA driver on your system is too old|CUDA driver version is insufficient", step=DRIVER),
    *broken(r"Found no NVIDIA driver|no CUDA-capable device", step=GPUS),
    *broken(r"no kernel image is available", step=CARD),
    *broken(r"cannot open shared object file|undefined symbol", step=REINSTALL),
    *broken(r"^ModuleNotFoundError: ", step=MISSING_PACKAGE),
    *broken(r"failed to open GGUF file", step=MODEL_FILES),
    *broken(
        r"uncorrectable ECC error|fallen off the bus",
        r"command not found|^(?:\S+: )*exec: .*not found",
        r"^ImportError: ",
        r"Too many open files|Errno 24\b",
        r"unknown model architecture",
        r"Error response from daemon|Cannot connect to the Docker daemon|nvidia-container-cli: |exec format error",
        r"signaled to shutdown with signal (?:4|7)\b|Error opening engine file|^RuntimeError: weight .* does not exist",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"error: (?:unrecognized arguments|argument |ambiguous option|the following)",
        r"(?:unknown|unrecognized|unexpected|invalid) (?:option|argument|flag)|no such option",
        r"invalid choice|invalid value|^Error: ArgumentValidation\(",
        r"ValidationError: \d+ validation error",
        phases=STARTING,
    ),
)
"""For each line of a log, the last line first, the first matching row applies."""


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    lines = [line.strip() for line in log_text.splitlines() if line.strip()][-READ_LINES:]
    evidence = "\n".join(lines[-EVIDENCE_LINES:])[-EVIDENCE_CHARS:] or None
    for line, row in itertools.product(reversed(lines), CAUSES):
        if row.matches(line, phase):
            return Failure(row.kind, phase, row.shown(shortened(line)), evidence, exit_code)
    found = classify_exceptions(log_text, exit_code, phase, VLLM_TEXTS)
    if found.kind is FailureKind.ENGINE_CRASH and lines and exit_code is not None and signal_of(exit_code) is None:
        message = f"the server ended with exit code {exit_code}; its last line: {shortened(lines[-1])}"
        found = replace(found, message=message)
    return replace(found, evidence=evidence)


class TrialPrompts:
    """Makes prompts that no other server of the study is sent; see `PromptTools`.

    A user's own texts are the same for all servers.

    Args:
        tools: make the prompts.
        key: of the server: study and trial.
    """

    def __init__(self, tools: PromptTools, key: str) -> None:
        self.records = tools.records
        self._tools = tools
        self._key = key
        self._offset = zlib.crc32(key.encode()) << 32

    def prompts(self, plan: Path, log: Path) -> Sequence[tuple[Prompt, int, int | None]]:
        """See `PromptTools`."""
        content = json.loads(plan.read_text(encoding="utf-8"))
        for request in content["requests"]:
            request["shared"] = [(f"{self._key}/{name}", *part) for name, *part in request["shared"]]
            if "seed" in request:
                request["seed"] += self._offset
        plan.write_text(json.dumps(content), encoding="utf-8")
        return self._tools.prompts(plan, log)


def find_tools(tokenizer: str, url: str, records: ProcessRecords, api_key: str | None) -> PromptTools:
    """Return what makes prompts with a tokenizer.

    Args:
        tokenizer: a folder, a hub name or a GGUF file.
        url: the server's, without `/v1`.
        records: where the load generator's process is recorded.
        api_key: the key that the server requires; None: none.

    Raises:
        SettingError: if the tokenizer cannot be read.
    """
    if tokenizer.endswith(GGUF_SUFFIX):
        return gguf_tools(tokenizer, url, records, api_key)
    try:
        return LibraryTools(find_tokenizer(tokenizer), records)
    except SettingError as error:
        if error.field != "tokenizer":
            rule = "the package `tokenizers`, which makes the prompts, is not installed"
            raise SettingError("tokenizer", tokenizer, rule, "`pip install tokenizers`, or give a GGUF file") from None
        remedy = "give the model's by {tokenizer}: a folder with tokenizer.json, a hub name, or a GGUF file"
        raise SettingError("tokenizer", tokenizer, error.rule, remedy) from None


TOLERABLE_TOKENS = 8
TOLERABLE_SHARE = 0.05
"""How far the server's count of a prompt may be from the planned one: tokens, or a share of the prompt.

Servers add tokens of a beginning, or none; a limit on lengths, or another tokenizer, differs by more.
"""


class OpenAiServer(GeneratorServer):
    """See `Server`."""

    reads = Readings(classify, lambda log: ServerFacts(), VLLM_METRICS)
    health_required = False

    def __init__(self, *, prompts_key: str, **started: Any) -> None:
        """Take over a started server; its prompts depend on `prompts_key`."""
        super().__init__(**started)
        self._prompts_key = prompts_key

    def _with_metrics(self, facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float]) -> ServerFacts:
        """Return the facts of `/metrics` if it has vLLM's names."""
        return super()._with_metrics(facts, before, after) if after else facts

    def _make_tools(self) -> TrialPrompts:
        tools = find_tools(self._model.tokenizer, self.url, self._records, self._api_key)
        return TrialPrompts(tools, self._prompts_key)

    def _healthy(self) -> bool:
        reply = get_local(HOST, self.port, "/health", HEALTH_S)
        if reply is None or reply.status not in NO_ENDPOINT:
            return reply is not None and reply.status == 200
        models = get_local(HOST, self.port, "/v1/models", HEALTH_S, headers=self.headers)
        return models is not None and models.status == 200

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        records = self._sent(index, phase)
        failed = next((record for record in records if record.error is not None), None)
        if repeat.completed == 0 and failed is not None:
            message = f"none of {repeat.offered} requests succeeded; the first: {failed.error}"
            raise trial_failed(FailureKind.REQUESTS_FAILED, phase, message)
        other = next((record for record in records if has_other_length(record)), None)
        if other is not None:
            message = (
                f"the server counts {other.input_tokens} tokens in a prompt of {other.planned_input}; give its model's "
                "tokenizer, and let nothing before the server change prompts"
            )
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, phase, message)


def has_other_length(record: RequestRecord) -> bool:
    """Return whether the server counted another number of prompt tokens than was sent; False without a count."""
    planned, counted = record.planned_input, record.input_tokens
    if planned is None or counted is None:
        return False
    return abs(counted - planned) > max(TOLERABLE_TOKENS, TOLERABLE_SHARE * planned)


UNKNOWN = "unknown"
"""The version of a program that does not print one."""

ANSWER_S = 10.0
"""How long a program may take to print its version."""

_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|fi)?sh|python[\d.]*|pypy[\d.]*|node|ruby|perl|java|env|uv|uvx|docker|podman|apptainer|"
    r"nice|taskset|numactl|timeout|setsid|stdbuf|mpirun"
)
"""Programs that start another one: their own version says nothing about the server."""

_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*|(?<=version: )\d[\w.]*")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


def find_program(name: str) -> Path:
    """Return the absolute path of a command's program.

    Raises:
        SettingError: if it does not exist, cannot be run, or has a name that no script can hold.
    """
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        rule = "the file is not executable" if Path(name).is_file() else "there is no such program"
        raise SettingError("server_command", name, rule, "name a program on PATH, or its file")
    if not _SAFE_NAME.fullmatch(Path(found).name):
        rule = "the name of the program's file has other characters than letters, digits and _ . + -"
        raise SettingError("server_command", name, rule, "rename it, or link to it")
    return Path(found).absolute()


@cache
def version_of(program: Path) -> str:
    """Return the version that a program prints for `--version` within `ANSWER_S` seconds; else `UNKNOWN`."""
    if _INTERPRETER.fullmatch(program.name):
        return UNKNOWN
    try:
        process = subprocess.Popen(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return UNKNOWN
    try:
        text, _ = process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return UNKNOWN
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    found = _VERSION.search(text) if process.returncode == 0 else None
    return UNKNOWN if found is None else found[0]


class OpenAiEngine(ProgramEngine[OpenAiServer]):
    """A command on one worker; see `Engine`."""

    key_variable = "TUNER_API_KEY"

    def __init__(self, settings: EngineSettings) -> None:
        """Find the program.

        Raises:
            SettingError: if there is none.
        """
        if settings.executable is None:
            raise SettingError("server_command", None, "this engine needs a command", "give {server_command} TEXT")
        self._program = find_program(settings.executable)
        super().__init__(settings, worker_devices(settings.device_index, settings.gpus))

    def info(self) -> EngineInfo:
        """Return the program; flags and packages are not known, and the version only if the program prints one."""
        version = version_of(self._program)
        return EngineInfo(kind.OPENAI.name, version, str(self._program), None, Provenance.MEASURED)

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return None: nothing is known of the program's flags."""
        return None

    def _used(self, launch: LaunchSpec) -> tuple[WorkerDevice, ...]:
        """Return all GPUs of the worker: the command may use any."""
        return self._devices

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        flags = (*launch.base_argv, *launch.argv)
        values = {command.HOST: HOST, command.PORT: str(port), command.MODEL: launch.model.name}
        return (str(self._program), *command.filled(launch.command[1:], flags, values))

    def _server(self, spec: TrialSpec, **started: Any) -> OpenAiServer:
        return OpenAiServer(prompts_key=f"{spec.study}/{spec.uid}", records=self._records, **started)


def find(given: str | None) -> Found:
    """Return the installation that a setting names, or the one of this machine for None; see `EngineKind`."""
    return Found(find_program(command.read_command(given or "")[0]))


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    """Yield what `tuner doctor` shows of an installation; see `EngineKind`."""
    yield "version", version_of(found.executable)
