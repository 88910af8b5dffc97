"""Derive a typed `Failure` from a log, an exit code and a phase.

A server of several Python processes, such as vLLM's, logs one failure several times: in the process where it happened,
then in each parent, then in the API server with a text of its own. The first traceback after the first "failed to
start" or "fatal error" is the cause; the later ones repeat it. Without such a line, the API server itself failed: its
last traceback is the cause, and it handled the errors before.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures.table import VLLM_TEXTS, FailurePattern, LogTexts
from tuner.processes.secrets import Secrets

MESSAGE_CHARS = 400
EVIDENCE_LINES = 6
EVIDENCE_CHARS = 2000
_TAIL_BYTES = 2_000_000
_LINE_CHARS = 4000
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*)?(?:Error|Exception|Interrupt|Exit|NotFound|OutOfResources|Timeout)\b(?::|$)|"
    r"^[a-z]\w*\.(?:\w+\.)*[A-Z]\w+: "
)
_ARGUMENT = re.compile(r"^(?:\S+ ){0,2}\S+: error: ")
"""How argparse begins a line: the program's name, a colon, and `error: `."""
_OTHER = re.compile(
    r"address already in use|No space left on device|died unexpectedly|Segfault encountered|Fatal Python error|"
    r"insufficient shared memory|Watchdog caught collective operation timeout"
)
_NCCL_WARNING = re.compile(r"NCCL WARN .+")
_LAST_ERROR = "Last error:"
_NCCL_LINES = 400
"""How far before an error NCCL's warnings are its own reasons, in lines."""
_PYDANTIC = re.compile(r"^\s+(?:Value error|Assertion failed), (.*)$|^\s+(Input should be .*)$")
_CHAINED = re.compile(r"^During handling of the above exception|^The above exception was the direct cause")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FIELD = re.compile(r"^[\w.]+$")
_PYDANTIC_TAIL = re.compile(r" \[type=\w+, input_value=.*$")


def read_log(path: Path) -> str:
    """Return a log's text, of a very long one the beginning and the end; empty if the file does not exist.

    Lines are cut after `_LINE_CHARS` characters: the patterns that search them are quadratic in the length of a line.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            content = file.read(_TAIL_BYTES if size > 2 * _TAIL_BYTES else size)
            if size > 2 * _TAIL_BYTES:
                file.seek(-_TAIL_BYTES, 2)
                content += b"\n" + file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return ""
    text = content.decode("utf-8", "replace")
    return "".join(line[:_LINE_CHARS] + "\n" for line in text.splitlines())


def classify(log_text: str, exit_code: int | None, phase: Phase, texts: LogTexts = VLLM_TEXTS) -> Failure:
    """Return the typed failure of a server, or of its configuration check, that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
        texts: of the engine's logs.
    """
    chains = _chains(log_text, texts)
    causes = [cause for chain in chains for cause in chain]
    evidence = _evidence(causes) or _last_lines(log_text)
    for cause, row in _matches(chains, phase, texts):
        return Failure(row.kind, phase, row.message or error_summary(cause), evidence, exit_code)
    root_causes = [cause for cause in causes if not texts.consequences.search(cause)]
    if root_causes:
        return Failure(FailureKind.ENGINE_CRASH, phase, error_summary(root_causes[0]), evidence, exit_code)
    return without_cause(log_text, exit_code, phase, evidence, texts)


def _matches(chains: Sequence[Sequence[str]], phase: Phase, texts: LogTexts) -> Iterator[tuple[str, FailurePattern]]:
    """Yield the causes with the rows that apply to them, the likeliest first.

    Within a chain, a general row comes last: an error of validation, say, that was raised from one of the hub.
    """
    for chain in chains:
        for general in (False, True):
            for cause in reversed(chain):
                yield from (
                    (cause, row) for row in texts.causes if row.general is general and row.matches(cause, phase)
                )


def redacted(failure: Failure, secrets: Secrets) -> Failure:
    """Return the failure with references for the values of secrets in its texts."""
    evidence = None if failure.evidence is None else secrets.redact(failure.evidence)
    return replace(failure, message=secrets.redact(failure.message), evidence=evidence)


def without_cause(
    log_text: str, exit_code: int | None, phase: Phase, evidence: str | None, texts: LogTexts = VLLM_TEXTS
) -> Failure:
    """Return the typed failure if the log has no cause."""
    if exit_code is not None and exit_code < 0:
        name = signal_name(-exit_code)
        if -exit_code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            message = (
                f"the server was killed from outside ({name}); the kernel sends SIGKILL when the machine lacks memory"
            )
            return Failure(FailureKind.SERVER_KILLED, phase, message, evidence, exit_code)
        if -exit_code == signal.SIGILL:
            message = f"the server crashed ({name}): its build uses instructions that this processor lacks"
            return Failure(FailureKind.ENVIRONMENT_BROKEN, phase, message, evidence, exit_code)
        return Failure(FailureKind.ENGINE_CRASH, phase, f"the server crashed ({name})", evidence, exit_code)
    if texts.died.search(log_text):
        message = "a process of the server was killed from outside: it logged no error"
        return Failure(FailureKind.SERVER_KILLED, phase, message, evidence, exit_code)
    state = "does not answer" if exit_code is None else f"ended with exit code {exit_code}"
    return Failure(FailureKind.ENGINE_CRASH, phase, f"the server {state} and its log has no cause", evidence, exit_code)


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; `signal N` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _chains(log_text: str, texts: LogTexts) -> list[list[str]]:
    """Return the lines that state an error, each with its continuation lines, the likeliest cause first.

    Exceptions that were raised from one another form one chain, in the order in which they were raised.
    """
    lines = [texts.prefix.sub("", _COLOUR.sub("", line).rstrip(), count=1) for line in log_text.splitlines()]
    start = next((index for index, line in enumerate(lines) if texts.anchor.search(line)), None)
    chains: list[list[str]] = []
    chained = False
    for index, line in enumerate(lines):
        if start is not None and index < start and not _OTHER.search(line):
            continue
        chained = chained or _CHAINED.match(line) is not None
        of_nccl = _NCCL_WARNING.search(line) or (index and lines[index - 1] == _LAST_ERROR)
        other = _OTHER.search(line) is not None and not of_nccl
        if _EXCEPTION.match(line) or _ARGUMENT.match(line) or other:
            cause = _joined(lines, index)
            if chained and chains:
                chains[-1].append(cause)
            else:
                chains.append([cause])
            chained = False
    if not chains:
        return [[found[0]] for line in lines if (found := _NCCL_WARNING.search(line))]
    return chains if start is not None else chains[::-1]


def _joined(lines: Sequence[str], index: int) -> str:
    """Return a line and its continuation: pydantic prints a field's name and the error's text on the lines below."""
    parts = [lines[index]]
    validation = "validation error" in lines[index]
    for line in lines[index + 1 : index + 4]:
        continues = line.startswith("  ") or (validation and _FIELD.match(line) is not None)
        if not continues or line.lstrip().startswith(("File ", "For further")):
            break
        parts.append(line)
    return "\n".join([*parts, *(_nccl_reasons(lines, index) if "nccl" in lines[index].lower() else ())])


def _nccl_reasons(lines: Sequence[str], index: int) -> Iterator[str]:
    """Yield what NCCL says of an error, whose own text has no reason: its last warning and its last error."""
    before, after = lines[max(0, index - _NCCL_LINES) : index], lines[index + 1 : index + 6]
    warned = [found[0] for line in before if (found := _NCCL_WARNING.search(line))]
    yield from (f"  {reason}" for reason in warned[-1:])
    if _LAST_ERROR in after[:-1]:
        yield f"  NCCL: {after[after.index(_LAST_ERROR) + 1]}"


def error_summary(cause: str) -> str:
    """Return an error's text as one line, without pydantic's wrapping and argparse's program name."""
    lines = cause.splitlines() or [""]
    head = lines[0] if _EXCEPTION.match(lines[0]) else _ARGUMENT.sub("", lines[0])
    text = " ".join([head, *(line.strip() for line in lines[1:])])
    for above, line in itertools.pairwise(lines):
        match = _PYDANTIC.match(line)
        if match is not None:
            reason = _PYDANTIC_TAIL.sub("", match[1] or match[2])
            text = f"{above}: {reason}" if _FIELD.match(above) else reason
            break
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def _evidence(causes: Sequence[str]) -> str | None:
    """Return the distinct causal lines in their order, at most `EVIDENCE_LINES`; None if there are none."""
    lines = list(dict.fromkeys(line for cause in causes for line in cause.splitlines()))
    return "\n".join(lines[:EVIDENCE_LINES])[:EVIDENCE_CHARS] or None


def _last_lines(log_text: str) -> str | None:
    lines = [line for line in log_text.splitlines() if line.strip()]
    return "\n".join(lines[-EVIDENCE_LINES:])[-EVIDENCE_CHARS:] or None
