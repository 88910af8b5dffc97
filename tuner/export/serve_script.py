"""`best_serve.sh`: a script that starts the server of a trial, for use in production.

No name or value can run as code. Each word is quoted by `shlex.quote`, header text is escaped to one line, and the
template is filled in a single pass, so that a value is never taken for a placeholder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from storage.metrics import Direction, metric
from storage.records import Provenance
from tuner.files import write_output
from tuner.processes.secrets import shell_word
from tuner.scoring.slo import Slo

PORT_PLACEHOLDER = "\0port\0"
"""Stands for the server's port, as a word of `bench_argv` or within one; no real argument can contain NUL."""

RESULTS_PLACEHOLDER = "\0results\0"
"""Stands for the folder of the benchmark's result file."""

SEED_PLACEHOLDER = "\0seed\0"
"""Stands for the seed of one repeat of the benchmark, as a whole word."""

_TEMPLATE = Path(__file__).with_name("serve_script.sh.tmpl")
_PLACEHOLDER_VALUES = {PORT_PLACEHOLDER: '"$port"', RESULTS_PLACEHOLDER: '"$results"', SEED_PLACEHOLDER: '"$seed"'}
_TRIAL_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_TRIAL_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_TRIAL_VARIABLES = re.compile(r"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|CUDA_VISIBLE_DEVICES")
_SCRIPT_VARIABLES = frozenset({"HOST", "PORT", "VLLM", "PYTHON", "VERIFY_STARTUP_S", "VERIFY_STOP_S"})
_UNQUOTED = re.compile(r"[\w./:-]+", re.ASCII)
_KEYWORDS = frozenset(
    {
        *("case", "do", "done", "elif", "else", "esac", "fi", "for", "function"),
        *("if", "in", "select", "then", "time", "until", "while"),
    }
)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Reference:
    """A metric's recorded value and the interval within which a verification must measure it, in the metric's unit."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: if a number is not finite, or the interval does not contain the value.
        """
        if not all(map(math.isfinite, (self.value, self.low, self.high))) or not self.low <= self.value <= self.high:
            raise ValueError(f"a reference needs finite low <= value <= high, got {self}")


@dataclass(frozen=True)
class ServeScript:
    """The contents of a script.

    Attributes:
        study: name of the study.
        trial: number of the trial.
        model: argument of `vllm serve`.
        served_name: name of the model in requests.
        argv: further arguments of `vllm serve`. The trial's host, port and log settings in it are left out.
        environment: variables that the trial set. Its log and cache settings and its GPU are left out.
        vllm_version: version that the study ran.
        device: GPU or CPU that the trial ran on.
        date: day of the trial.
        provenance: of the recorded numbers.
        numbers: (label, value) pairs for the header.
        slos: SLOs that `--verify` checks.
        verdict: result of the study, for the header.
        bench_argv: arguments of `vllm` that run the benchmark (`bench serve …`), with `PORT_PLACEHOLDER`,
            `RESULTS_PLACEHOLDER` and `SEED_PLACEHOLDER`. Empty if vLLM's client cannot send the workload; `--verify`
            then reports that.
        warmup_argv: arguments of `vllm` that run the warm-up; empty without a warm-up.
        repeats: benchmarks of `--verify`; it compares medians over them.
        first_seed: seed of the first benchmark, the next ones count up. The study used none of these seeds.
        reference: metric names to what `--verify` compares them with.
        executable: the vllm that the study ran, for machines without one on the PATH.
        flag_effects: lines for the header: the effect of each flag.
        answers: line for the header: what is known about the answers, if a flag may change them.
        references: variables of the caller's environment that `argv` and `environment` refer to as `${NAME}`.
        missed: lines for the header: the SLOs that the trial misses; empty if it meets them.
    """

    study: str
    trial: int
    model: str
    served_name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    vllm_version: str
    device: str
    date: date
    provenance: Provenance
    numbers: tuple[tuple[str, str], ...]
    slos: tuple[Slo, ...]
    verdict: str
    bench_argv: tuple[str, ...]
    warmup_argv: tuple[str, ...] = ()
    repeats: int = 1
    first_seed: int = 0
    reference: Mapping[str, Reference] = field(default_factory=dict)
    executable: str | None = None
    flag_effects: tuple[str, ...] = ()
    references: frozenset[str] = frozenset()
    answers: str | None = None
    missed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that a shell script can hold the words and variables.

        Raises:
            ValueError: if a word contains NUL, or the name of a variable is invalid or used by the script itself.
            KeyError: if `reference` has an unknown metric.
        """
        for word in (self.model, self.served_name, self.vllm_version, *self.argv, *self.environment.values()):
            if "\0" in word:
                raise ValueError(f"a script cannot contain a NUL byte: {word!r}")
        for name in (*self.environment, *self.references):
            if not _VARIABLE_NAME.fullmatch(name) or name in _SCRIPT_VARIABLES:
                raise ValueError(f"the script cannot set the environment variable {name!r}")
        for name in self.reference:
            metric(name)


def without_trial_settings(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without host, port and log settings, given as `--flag value` or as `--flag=value`."""
    remaining: list[str] = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0]
        if flag in _TRIAL_SWITCHES:
            continue
        if flag in _TRIAL_FLAGS:
            if flag == word:
                next(words, None)
            continue
        remaining.append(word)
    return tuple(remaining)


def escape_unprintable(text: str) -> str:
    """Return `text` with unprintable characters escaped, so that it stays on the line of a comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quote_word(word: str, references: Collection[str] = ()) -> str:
    """Quote one word for bash; the placeholders and `references` in it become variables of the script."""
    parts = re.split(f"({PORT_PLACEHOLDER}|{RESULTS_PLACEHOLDER}|{SEED_PLACEHOLDER})", word)
    return "".join(_PLACEHOLDER_VALUES.get(part) or _quoted(part, references) for part in parts if part) or "''"


def _quoted(text: str, references: Collection[str] = ()) -> str:
    """Quote like shlex, and also words such as `a=b` and `a,b`, for which shellcheck warns."""
    quoted = shell_word(text, references)
    plain = _UNQUOTED.fullmatch(text) and text not in _KEYWORDS
    return f"'{text}'" if quoted == text and not plain else quoted


def _array(words: Iterable[str], indent: str, references: Collection[str] = ()) -> str:
    """Format words as the lines of a bash array: one word on each line, a flag and its value together."""
    lines: list[list[str]] = []
    for word in words:
        previous = lines[-1][-1] if lines else ""
        value_of_flag = bool(lines) and len(lines[-1]) == 1 and previous.startswith("--") and not word.startswith("--")
        if value_of_flag:
            lines[-1].append(word)
        else:
            lines.append([word])
    return "\n".join(indent + " ".join(quote_word(word, references) for word in line) for line in lines)


def _server(script: ServeScript) -> str:
    words = ["serve", script.model]
    if script.served_name != script.model:
        words += ["--served-model-name", script.served_name]
    return _array([*words, *without_trial_settings(script.argv)], "  ", script.references)


def _exports(script: ServeScript) -> str:
    return "".join(
        f"export {name}={_quoted(value, script.references)}\n"
        for name, value in sorted(script.environment.items())
        if not _TRIAL_VARIABLES.fullmatch(name)
    )


def _required(script: ServeScript) -> str:
    """Return the lines that end the script if a variable that it refers to is not set; the usage needs none."""
    if not script.references:
        return ""
    checks = "".join(
        f'[[ -n "${{{name}:-}}" ]] || {{\n'
        f"  printf 'best_serve.sh: the server needs the secret {name}; set it: export {name}=...\\n' >&2\n"
        "  exit 2\n}\n"
        for name in sorted(script.references)
    )
    return f'case "${{1:-}}" in --help | -h) usage && exit ;; esac\n{checks}\n'


def _header(script: ServeScript) -> str:
    rows = [
        ("study", f"{script.study}, trial {script.trial}"),
        ("verdict", script.verdict),
        ("model", script.model),
        *((script.provenance.value, f"{label}: {value}") for label, value in script.numbers),
        *(("SLO", str(slo)) for slo in script.slos),
        *([] if script.answers is None else [("answers", script.answers)]),
        *(("missed", line) for line in script.missed),
        *(("flags", line) for line in script.flag_effects),
        ("vLLM", script.vllm_version + (f" ({script.executable})" if script.executable else "")),
        ("GPU", script.device),
        ("date", script.date.isoformat()),
    ]
    simulated = script.provenance is Provenance.SIMULATED
    warning = ["# Simulated, not measured: the numbers below are predictions of the simulator."] if simulated else []
    if script.missed:
        warning.append("# This server does NOT meet the SLOs of its study; the lines below say by how much.")
    title = "# Starts the vLLM server of a tuner study. --help shows the usage, --verify measures the server again."
    return "\n".join([*warning, title, "#", *(f"# {escape_unprintable(f'{label:<10}{text}')}" for label, text in rows)])


def _reference(script: ServeScript) -> str:
    metrics = {
        name: {
            "value": recorded.value,
            "low": recorded.low,
            "high": recorded.high,
            "up": metric(name).direction is Direction.MAXIMIZE,
        }
        for name, recorded in script.reference.items()
    }
    slos = [[slo.metric, slo.op, slo.threshold] for slo in script.slos if slo.metric != "quality"]
    return _quoted(json.dumps({"metrics": metrics, "slos": slos}))


def render_serve_script(script: ServeScript) -> str:
    """Return the text of the script; shellcheck finds nothing in it."""
    parts: dict[str, Callable[[], str]] = {
        "HEADER": lambda: _header(script),
        "VERSION": lambda: _quoted(script.vllm_version),
        "VERIFIABLE": lambda: "yes" if script.bench_argv else "no",
        "EXECUTABLE": lambda: _quoted(script.executable or ""),
        "SERVER": lambda: _server(script),
        "REQUIRED": lambda: _required(script),
        "EXPORTS": lambda: _exports(script),
        "WARMUP": lambda: _array(script.warmup_argv, "    "),
        "REPEATS": lambda: str(script.repeats),
        "SEED": lambda: str(script.first_seed),
        "BENCH": lambda: _array(script.bench_argv, "    "),
        "REFERENCE": lambda: _reference(script),
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]](), template)


def write_serve_script(script: ServeScript, path: Path) -> None:
    """Write the script to `path` as an executable file (mode 0755) in one step; a device or FIFO is written through.

    Raises:
        OSError: if the folder does not exist or cannot be written.
    """
    write_output(path, render_serve_script(script), mode=0o755, errors="surrogateescape")
