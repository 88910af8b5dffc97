"""Derive a typed `Failure` from a log of llama.cpp's server, an exit code and a phase.

The server logs the cause of a failed start first, as a line of level E, and its consequences after it. A start is tried
twice, once to fit the parameters into the memory of the device, so that the lines repeat. The texts are those of
xllamacpp 2026.10.11549, provoked with the server itself; `tests/data/logs/llama.cpp` has the logs.
"""

from __future__ import annotations

import re

from storage.records import Failure, FailureKind, Phase
from tuner.engines.vllm.failures.classify import EVIDENCE_CHARS, EVIDENCE_LINES, MESSAGE_CHARS, without_cause
from tuner.engines.vllm.failures.table import LOADED, STARTING, FailurePattern, rows

_ERROR = re.compile(
    r"^(?:[\d.]+ E |error: |terminate called)|GGML_ASSERT|error loading model|failed to |couldn't bind|"
    r"requires flash_attn"
)
"""Lines that state an error; a build may log them without time and level."""

_LEVEL = re.compile(r"^[\d.]+ E (?:(?:srv|slot|cmn|que)\s+)?(?:operator\(\): )?\s*")
_FUNCTION = re.compile(r"^\w+(?:\(\))?: ")

_OUT_OF_MEMORY = (
    r"insufficient memory \(attempted to allocate",
    r"failed to allocate (?:buffer|CPU|compute|\S+ buffer)",
    r"unable to allocate \S+ buffer",
    r"cudaMalloc failed: out of memory",
    r"CUDA error: out of memory",
    r"std::bad_alloc|bad allocation",
)

CAUSES: tuple[FailurePattern, ...] = (
    *rows(FailureKind.PORT_TAKEN, r"couldn't bind HTTP server socket", message="another program took the port"),
    *rows(FailureKind.DISK_FULL, r"No space left on device", message="no space left on disk"),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"failed to open GGUF file",
        r"invalid magic characters",
        r"this GGUF file is version",
        r"model is corrupted or incomplete",
        r"unknown model architecture",
        r"error loading model hyperparameters",
        r"error loading model vocabulary",
        r"missing tensor|wrong number of tensors|wrong shape",
        r"the package xllamacpp is not installed",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^error: ",
        r"quantized V cache requires flash_attn",
        r"V cache quantization requires flash_attn",
        r"n_seq_max must be <=",
        r"cache type .* (?:does not|not) support",
        r"does not divide n_embd_head",
        r"failed to initialize the context",
        r"Unsupported cache type",
    ),
)
"""For each causal line of a log, the first matching row applies; a row that names phases applies only in those."""

CONSEQUENCES = re.compile(
    r"failed to (?:load model|create.context|create context)|exiting due to|error loading model: llama_model_loader|"
    r"encountered an error while trying to fit params|task id = \d+, error:"
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
    errors = [line for line in log_text.splitlines() if _ERROR.match(line)]
    causes = list(dict.fromkeys(_plain(line) for line in errors if not CONSEQUENCES.search(line)))
    evidence = "\n".join(causes[:EVIDENCE_LINES])[:EVIDENCE_CHARS] or None
    for cause in causes:
        for row in CAUSES:
            if row.matches(cause, phase):
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


def _plain(line: str) -> str:
    """Return a line of the log without time, level and subsystem."""
    return _LEVEL.sub("", line).strip()


def _shown(cause: str) -> str:
    text = _FUNCTION.sub("", cause.removeprefix("error: "))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"
