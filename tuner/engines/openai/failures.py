"""Derive a typed `Failure` from the log of a server of unknown make, an exit code and a phase.

The last line of the log that a row of the table matches is the cause: what comes before it may have been survived. The
texts are those of Linux, CUDA, HIP, PyTorch and of parsers of command lines, not of one engine.
"""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures.classify import EVIDENCE_CHARS, EVIDENCE_LINES, MESSAGE_CHARS, without_cause
from tuner.engines.server.failures.table import LOADED, STARTING, FailurePattern, rows

READ_LINES = 400
"""Only the last lines of a log are searched."""

_OUT_OF_MEMORY = (
    r"OutOfMemoryError",
    r"(?:CUDA|HIP|GPU|device)(?: error:)? out of memory",
    r"cudaMalloc failed: out of memory",
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"can't allocate memory|Cannot allocate memory",
    r"^MemoryError\b|std::bad_alloc",
)

FIRST_SIGNAL = 128
SHELL_SIGNALS = frozenset(
    FIRST_SIGNAL + number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
)
"""Exit codes with which a shell script ends whose server was ended by a signal."""

CAUSES: tuple[FailurePattern, ...] = (
    *rows(
        FailureKind.PORT_TAKEN,
        r"address already in use|address in use|EADDRINUSE|Errno 98\b|os error 98\b|couldn't bind",
        message="another program took the port",
    ),
    *rows(
        FailureKind.DISK_FULL,
        r"No space left on device|Disk quota exceeded|Errno (?:28|122)\b",
        message="no space left on disk",
    ),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|Found no NVIDIA driver",
        r"no kernel image is available|no CUDA-capable device",
        r"uncorrectable ECC error|fallen off the bus",
        r"cannot open shared object file|undefined symbol",
        r"command not found|^(?:\S+: )*exec: .*not found",
        r"^(?:ModuleNotFoundError|ImportError): ",
        r"Too many open files|Errno 24\b",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"error: (?:unrecognized arguments|argument |ambiguous option|the following)",
        r"(?:unknown|unrecognized|unexpected|invalid) (?:option|argument|flag)|no such option",
        r"invalid choice|invalid value",
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
            return Failure(row.kind, phase, row.message or _shown(line), evidence, exit_code)
    if exit_code in SHELL_SIGNALS:
        return replace(without_cause(log_text, FIRST_SIGNAL - exit_code, phase, evidence), exit_code=exit_code)
    if lines and exit_code is not None and exit_code >= 0:
        message = f"the server ended with exit code {exit_code}; its last line: {_shown(lines[-1])}"
        return Failure(FailureKind.ENGINE_CRASH, phase, message, evidence, exit_code)
    return without_cause(log_text, exit_code, phase, evidence)


def _shown(line: str) -> str:
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"
