"""Derive a typed `Failure` from a log, an exit code and a phase, by a table from texts to failure kinds (`causes.py`).

A server of several Python processes logs one failure several times: in the process where it happened, then in each
parent, then in the API server with a text of its own. The first traceback after the first line of the `anchor`, such as
"failed to start", is the cause; the later ones repeat it. Without such a line, the API server itself failed: its last
traceback is the cause, and it handled the errors before.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from records.trials import Failure, FailureKind, Phase
from tuner.engines.server.causes import CAUSES, STARTING, FailurePattern, rows
from tuner.processes.secrets import Secrets

CONSEQUENCES = re.compile(
    r"Engine core initialization failed|EngineDeadError|WorkerProc initialization failed|died unexpectedly|"
    r"EngineCore encountered an issue|Executor failed|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|"
    r"EngineGenerateError|ConnectionResetError|cancelled|Failed core proc|leaked (?:semaphore|shared_memory)|"
    r"task \S+: Exited with|reentrant call inside"
)
"""Lines that are consequences of a failure and never its cause."""


@dataclass(frozen=True)
class LogTexts:
    """How an engine of Python logs a failure.

    Attributes:
        causes: the table; the first row that matches a causal line applies.
        consequences: lines that are never the cause.
        died: lines that state the end of a child process without its cause.
        prefix: what stands before the text of a line.
        anchor: the line after which the cause stands; lines before it are errors that were handled.
    """

    causes: tuple[FailurePattern, ...]
    consequences: re.Pattern[str]
    died: re.Pattern[str]
    prefix: re.Pattern[str]
    anchor: re.Pattern[str]


def with_shared_rows(
    causes: Sequence[FailurePattern], consequences: str, died: str, prefix: str, anchor: str
) -> LogTexts:
    """Return the texts of an engine of Python whose own rows and consequences come before the shared ones.

    An assertion at the start that no row names is a refusal.
    See `LogTexts` for the arguments.
    """
    refused = rows(FailureKind.INVALID_CONFIGURATION, r"^AssertionError\b", phases=STARTING, general=True)
    never = re.compile(f"{CONSEQUENCES.pattern}|{consequences}")
    return LogTexts((*causes, *CAUSES, *refused), never, re.compile(died), re.compile(prefix), re.compile(anchor))


MESSAGE_CHARS = 400
EVIDENCE_LINES = 6
EVIDENCE_CHARS = 2000
_TAIL_BYTES = 2_000_000
_LINE_CHARS = 4000
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*)?(?:Error|Exception|Interrupt|Exit|NotFound|OutOfResources|Timeout)\b(?::|$)|"
    r"^[a-z]\w*\.(?:\w+\.)*(?:[A-Z]\w+|\w*error): "
)
_ARGUMENT = re.compile(r"^(?:\S+ ){0,2}\S+: error: ")
"""How argparse begins a line: the program's name, a colon, and `error: `."""
_OTHER = re.compile(
    r"address already in use|No space left on device|died unexpectedly|Segfault encountered|Fatal Python error|"
    r"insufficient shared memory|Watchdog caught collective operation timeout|watchdog timeout \(|"
    r"(?:CUDA runtime error|Exception in aoti_torch)\b.*out of memory|Memory access fault by GPU|\bexec format error|"
    r"^\S*python[\d.]*: (?:No module named|Error while finding module spec)",
    re.IGNORECASE,
)
_NCCL_WARNING = re.compile(r"NCCL WARN .+")
_ABORTED = re.compile(r"(?<=what\(\):)\s+\S.*|Failed to initialize executor on rank \d+: .+")
"""What C++ prints of the exception that ends a process, and TensorRT-LLM of the one that ends a worker."""
_LAST_ERROR = "Last error:"
_NCCL_LINES = 400
"""How far before an error NCCL's warnings are its own reasons, in lines."""
_PYDANTIC = re.compile(r"^\s+(?:Value error|Assertion failed), (.*)$|^\s+(Input should be .*)$")
_CHAINED = re.compile(r"^During handling of the above exception|^The above exception was the direct cause")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CARRIER = re.compile(
    r"^(?:[\w.-]+ +\| )?(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]+ (?:std(?:out|err) [FP] )?|"
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [^\s\[]+\[\d+\]: )?"
)
"""What Compose, Docker, Kubernetes and systemd's journal write before a line."""
_FIELD = re.compile(r"^[\w.]+$")
_SOLUTION = re.compile(r"^Possible solutions:|^\d\. (?:set|disable|enable|reduce|increase|lower)\b")
"""What SGLang lists below an error of its CUDA graphs, one flag a line."""
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


def classify(log_text: str, exit_code: int | None, phase: Phase, texts: LogTexts) -> Failure:
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
        return Failure(row.kind, phase, row.shown(error_summary(cause.text)), evidence, exit_code)
    root_causes = [cause for cause in causes if not texts.consequences.search(cause.text)]
    if root_causes:
        return Failure(FailureKind.ENGINE_CRASH, phase, error_summary(root_causes[0].text), evidence, exit_code)
    return without_cause(log_text, exit_code, phase, evidence, texts.died)


def _matches(
    chains: Sequence[Sequence[_Cause]], phase: Phase, texts: LogTexts
) -> Iterator[tuple[_Cause, FailurePattern]]:
    """Yield the causes with the rows that apply to them, the likeliest first.

    A general row applies to the likeliest chain alone, after all others: to an error of validation, say, that was
    raised from one of the hub.
    """
    usual = [row for row in texts.causes if not row.general]
    rest = [row for row in texts.causes if row.general]
    of_consequences = (all(texts.consequences.search(cause.text) for cause in chain) for chain in chains)
    likeliest = next((place for place, is_one in enumerate(of_consequences) if not is_one), None)
    for place, chain in enumerate(chains):
        outwards = chain[::-1]
        yield from ((cause, row) for cause in outwards for row in usual if row.matches(cause.text, phase, cause.file))
        if place == likeliest:
            yield from (
                (cause, row) for row in rest for cause in outwards if row.matches(cause.text, phase, cause.file)
            )


def bare(line: str) -> str:
    """Return a line of a log as the server wrote it, without colours and spaces at its end."""
    return _CARRIER.sub("", _COLOUR.sub("", line)).rstrip()


def redacted(failure: Failure, secrets: Secrets) -> Failure:
    """Return the failure with references for the values of secrets in its texts."""
    evidence = None if failure.evidence is None else secrets.redact(failure.evidence)
    return replace(failure, message=secrets.redact(failure.message), evidence=evidence)


_OF_THE_MACHINE: dict[int, str] = {
    signal.SIGILL: "its build uses instructions that this processor lacks",
    signal.SIGBUS: "/dev/shm is full, or a file of the model is cut off; enlarge it (in a container `--shm-size`)",
}
"""Signals that no flag can mend, and what they say."""


def without_cause(
    log_text: str,
    exit_code: int | None,
    phase: Phase,
    evidence: str | None,
    died: re.Pattern[str] | None = None,
) -> Failure:
    """Return the typed failure if the log has no cause; `died` are lines that state the end of a child process."""
    codes = [int(code) for found in _ENDED.findall(log_text) for code in re.findall(r": (-?\d{1,3})\b", found)]
    number = signal_of(exit_code) or signal_of(min(codes, default=None))
    if number is not None:
        name = signal_name(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            message = (
                f"the server was killed from outside ({name}); the kernel sends SIGKILL when the machine lacks memory"
            )
            return Failure(FailureKind.SERVER_KILLED, phase, message, evidence, exit_code)
        if number in _OF_THE_MACHINE:
            message = f"the server crashed ({name}): {_OF_THE_MACHINE[number]}"
            return Failure(FailureKind.ENVIRONMENT_BROKEN, phase, message, evidence, exit_code)
        return Failure(FailureKind.ENGINE_CRASH, phase, f"the server crashed ({name})", evidence, exit_code)
    if died is not None and died.search(log_text) and not codes:
        message = "a process of the server was killed from outside: it logged no error"
        return Failure(FailureKind.SERVER_KILLED, phase, message, evidence, exit_code)
    state = "does not answer" if exit_code is None else f"ended with exit code {exit_code}"
    return Failure(FailureKind.ENGINE_CRASH, phase, f"the server {state} and its log has no cause", evidence, exit_code)


_ENDED = re.compile(r"Failed core proc\(s\): \{([^}]*)")
"""Processes of vLLM with their exit codes."""

_FIRST_SIGNAL = 128
_SHELL_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}
)
"""A shell script ends with 128 + one of these if a signal ended its server."""


def signal_of(exit_code: int | None) -> int | None:
    """Return the signal that ended a server, by its exit code or that of a shell script; None if none did."""
    if exit_code is not None and exit_code < 0:
        return -exit_code
    number = (exit_code or 0) - _FIRST_SIGNAL
    return number if number in _SHELL_SIGNALS else None


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; `signal N` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class _Cause:
    """A line that states an error, with its continuation lines, and the source file in which it was raised."""

    text: str
    file: str = ""


def _chains(log_text: str, texts: LogTexts) -> list[list[_Cause]]:
    """Return the lines that state an error, each with its continuation lines, the likeliest cause first.

    Exceptions that were raised from one another form one chain, in the order in which they were raised.
    """
    lines = [texts.prefix.sub("", bare(line), count=1) for line in log_text.splitlines()]
    start = next((index for index, line in enumerate(lines) if texts.anchor.search(line)), None)
    chains: list[list[_Cause]] = []
    chained = False
    for index, line in enumerate(lines):
        if start is not None and index < start and not _OTHER.search(line):
            continue
        chained = chained or _CHAINED.match(line) is not None
        of_nccl = _NCCL_WARNING.search(line) or (index and lines[index - 1] == _LAST_ERROR)
        other = _OTHER.search(line) is not None and not of_nccl
        if _EXCEPTION.match(line) or _ARGUMENT.match(line) or other:
            cause = _cause(lines, index)
            if chained and chains:
                chains[-1].append(cause)
            else:
                chains.append([cause])
            chained = False
    if all(texts.consequences.search(cause.text) for chain in chains for cause in chain):
        if start:  # the process that failed wrote its traceback before its log said so
            return _chains("\n".join(lines[:start]), texts)
        found = (_ABORTED.search(line) or _NCCL_WARNING.search(line) for line in reversed(lines))
        return [[_Cause(each[0].strip())] for each in found if each]
    return chains if start is not None else chains[::-1]


_FRAME = re.compile(r'^\s+File "([^"]+)", line \d+')
_TRACEBACK_LINES = 12
"""How far above an error its innermost frame stands at most, in lines: a statement may take several."""


def _cause(lines: Sequence[str], index: int) -> _Cause:
    """Return an error with the file that raised it. An assertion without words gets its statement."""
    text, above = _joined(lines, index), range(index - 1, max(-1, index - _TRACEBACK_LINES), -1)
    place = next((at for at in above if _FRAME.match(lines[at])), None)
    if place is None or any(lines[at].startswith("Traceback") for at in range(place, index)):
        return _Cause(text)
    found = _FRAME.match(lines[place])
    assert found is not None
    statement = lines[place + 1].strip() if place + 1 < index else ""
    bare_assertion = text.rstrip(": ") == "AssertionError" and statement.startswith("assert ")
    return _Cause(f"AssertionError: {statement}" if bare_assertion else text, found[1])


def _joined(lines: Sequence[str], index: int) -> str:
    """Return a line and its continuation.

    Pydantic prints a field's name and the error's text on the lines below, and a text may begin after a line's end.
    """
    parts = [lines[index]]
    validation = "validation error" in lines[index]
    for line in lines[index + 1 : index + 5]:
        continues = (
            line.startswith("  ")
            or (validation and _FIELD.match(line) is not None)
            or parts[-1].endswith(":")
            or _SOLUTION.match(line) is not None
        )
        if not continues or line.lstrip().startswith(("File ", "For further", "Traceback (")):
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
    return shortened(text)


def shortened(text: str) -> str:
    """Return at most `MESSAGE_CHARS` characters of a text."""
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def _evidence(causes: Sequence[_Cause]) -> str | None:
    """Return the distinct causal lines in their order, at most `EVIDENCE_LINES`; None if there are none."""
    lines = list(dict.fromkeys(line for cause in causes for line in cause.text.splitlines()))
    return "\n".join(lines[:EVIDENCE_LINES])[:EVIDENCE_CHARS] or None


def _last_lines(log_text: str) -> str | None:
    lines = [line for line in log_text.splitlines() if line.strip()]
    return "\n".join(lines[-EVIDENCE_LINES:])[-EVIDENCE_CHARS:] or None
