"""Derive a typed `Failure` from a log of llama.cpp's server, an exit code and a phase.

The server logs the cause of a failed start first, as a line of level E, and its consequences after it. A start is tried
twice, once to fit the parameters into the memory of the device, so that the lines repeat. The texts are those of
xllamacpp 2026.10.11549, provoked with the server itself; `tests/data/logs/llama.cpp` has the logs.
"""

from __future__ import annotations

import re

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures.classify import EVIDENCE_CHARS, EVIDENCE_LINES, MESSAGE_CHARS, without_cause
from tuner.engines.server.failures.table import LOADED, STARTING, FailurePattern, rows

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s+)?(?:[\d.]+\s+)?(?:(?P<level>[EWID])\s+)?(?:(?:srv|slot|cmn|que)\s+)?"
    r"(?:operator\(\): )?\s*"
)
"""Time, level and subsystem, of which a build or the start of the server may write any or none."""

_ERROR = re.compile(
    r"^error: |^error while handling argument|"
    r"^terminate called|what\(\): |GGML_ASSERT|error loading model|error while loading|failed to |unable to |"
    r"(?:CUDA|ROCm|HIP|Vulkan) error"
)
"""What states an error in a line without a level, beside the texts of the table."""

_FUNCTION = re.compile(r"^\w+(?:\(\))?: ")

_OUT_OF_MEMORY = (
    r"insufficient memory \(attempted to allocate",
    r"failed to allocate (?:buffer|CPU|compute|\S+ buffer)",
    r"unable to allocate \S+ buffer",
    r"(?:cuda|hip)Malloc failed: out of memory",
    r"(?:CUDA|ROCm|HIP|Vulkan) error:? .*out of memory|ErrorOutOfDeviceMemory|OutOfHostMemory",
    r"failed to allocate|failed to create (?:cuda|CUDA) (?:graph|memory) pool",
    r"std::bad_alloc|bad allocation|Cannot allocate memory",
)

CAUSES: tuple[FailurePattern, ...] = (
    *rows(FailureKind.PORT_TAKEN, r"couldn't bind|address already in use", message="another program took the port"),
    *rows(FailureKind.DISK_FULL, r"No space left on device", message="no space left on disk"),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"failed to open (?:GGUF file|\S+)|No such file or directory|unable to (?:open|load) model",
        r"no kernel image is available|cannot open shared object|unsupported toolchain",
        r"(?:invalid|bad) magic",
        r"this GGUF file is version",
        r"model is corrupted or incomplete|unexpectedly reached end of file|failed to read (?:magic|header|tensor|key)",
        r"unknown model architecture",
        r"error loading model hyperparameters",
        r"error loading model vocabulary",
        r"missing tensor|wrong number of tensors|wrong shape|invalid ggml type",
        r"GGUF split|invalid split file|read error",
        r"the package xllamacpp is not installed",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^error: |^(?:unknown|invalid) argument|^error while handling argument",
        r"quantized V cache requires flash_attn",
        r"V cache quantization requires flash_attn",
        r"n_seq_max must be <=",
        r"cache type .* (?:does not|not) support",
        r"does not divide n_embd_head",
        r"failed to initialize the context",
        r"unsupported cache type",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"no CUDA-capable|driver version is insufficient|no usable GPU found|ggml_cuda_init: failed",
        general=True,  # the server goes on without the GPU
    ),
)
"""For each causal line of a log, the first matching row applies; a row that names phases applies only in those.

A general row applies where no other row applies to any line.
"""

CONSEQUENCES = re.compile(
    r"failed to (?:load model|create.context|create context)|exiting due to|error loading model: llama_model_loader|"
    r"encountered an error while trying to fit params|failed to fit params|task id = \d+, error:"
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
    lines = [_COLOUR.sub("", line) for line in log_text.splitlines()]
    errors = [line for line in lines if _is_error(line) and not CONSEQUENCES.search(line)]
    causes = list(dict.fromkeys(_plain(line) for line in errors))
    evidence = "\n".join(causes[:EVIDENCE_LINES])[:EVIDENCE_CHARS] or None
    for general in (False, True):
        for cause in causes:
            row = next((row for row in CAUSES if row.general is general and row.matches(cause, phase)), None)
            if row is not None:
                return Failure(row.kind, phase, row.message or _shown(cause), evidence, exit_code)
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
    text = _FUNCTION.sub("", cause.removeprefix("error: "))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"
