"""`best_serve.sh`: the winning configuration as a script that a user starts in production.

Whatever a name or a value holds, it stays data: each word is quoted by `shlex.quote`, header text is escaped to one
line, and the text of the template is filled in one pass, so that a value is never read as a placeholder.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from storage.metrics import Direction, metric
from storage.records import Provenance
from tuner.scoring.slo import Slo

PORT = "\0port\0"
"""Stands for the server's port, alone or within a word of a client's argv; NUL can be in no real argument."""

RESULTS = "\0results\0"
"""Stands for the folder of the benchmark's result file."""

SEED = "\0seed\0"
"""Stands for the seed of one repeat of the benchmark, as a word of its own."""

_TEMPLATE = Path(__file__).with_name("serve_script.sh.tmpl")
_VARIABLES = {PORT: '"$port"', RESULTS: '"$results"', SEED: '"$seed"'}
_OWN_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_OWN_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_OWN_ENVIRONMENT = re.compile(r"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|CUDA_VISIBLE_DEVICES")
_RESERVED = frozenset({"HOST", "PORT", "VLLM", "PYTHON", "VERIFY_STARTUP_S", "VERIFY_STOP_S"})
_PLAIN = re.compile(r"[\w./:-]+", re.ASCII)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Reference:
    """What the study measured for one metric, in the metric's unit, and the interval that a verification must meet."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse an interval that does not hold its value.

        Raises:
            ValueError: also for a number that is not finite.
        """
        if not all(map(math.isfinite, (self.value, self.low, self.high))) or not self.low <= self.value <= self.high:
            raise ValueError(f"a reference needs finite low <= value <= high, got {self}")


@dataclass(frozen=True)
class ServeScript:
    """All that the script says and does.

    `argv` is the search's and the study's flags for `vllm serve MODEL`, `environment` what the trial set; the trial's
    own host, port, log and cache settings and its GPU are left out of both. `numbers` are (label, value) for the
    header. `bench_argv` and `warmup_argv` are the words after `vllm` (`bench serve …`), with `PORT`, `RESULTS` and
    `SEED` where those belong. The benchmark runs `repeats` times, with `first_seed` and those after it, which the study
    did not use; medians over them are compared. An empty `warmup_argv` sends no warm-up;
    an empty `bench_argv` says that vLLM's client cannot send the study's load, and `--verify` that it cannot verify.
    `reference` maps names of `storage.metrics.METRICS` to what `--verify` compares with. `executable` is the vllm that
    the study ran, used where none is on the PATH. `earned` are lines for the header: what each flag earns.
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
    earned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no shell script can say.

        Raises:
            ValueError: for a NUL in a word, or an environment name that is invalid or one of the script's own.
            KeyError: for a reference to an unknown metric.
        """
        for word in (self.model, self.served_name, self.vllm_version, *self.argv, *self.environment.values()):
            if "\0" in word:
                raise ValueError(f"a NUL byte cannot be in a script: {word!r}")
        for name in self.environment:
            if not _VARIABLE_NAME.fullmatch(name) or name in _RESERVED:
                raise ValueError(f"the environment variable {name!r} cannot be set by the script")
        for name in self.reference:
            metric(name)


def without_trial_settings(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without host, port and log settings, as `--flag value` and as `--flag=value`."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0]
        if flag in _OWN_SWITCHES:
            continue
        if flag in _OWN_FLAGS:
            if flag == word:
                next(words, None)
            continue
        kept.append(word)
    return tuple(kept)


def one_line(text: str) -> str:
    """Return `text` with everything that is not printable escaped, so that it cannot leave a comment's line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quote_word(word: str) -> str:
    """Quote one word for bash; `PORT`, `RESULTS` and `SEED` within it become the script's variables."""
    parts = re.split(f"({PORT}|{RESULTS}|{SEED})", word)
    return "".join(_VARIABLES.get(part) or _quoted(part) for part in parts if part) or "''"


def _quoted(text: str) -> str:
    """Quote as shlex does, and also `=`, `a=b` and `a,b`, which shellcheck takes for slips."""
    quoted = shlex.quote(text)
    return f"'{text}'" if quoted == text and not _PLAIN.fullmatch(text) else quoted


def _array(words: Iterable[str], indent: str) -> str:
    """Lay words out one a line, a flag and its value on one."""
    lines: list[list[str]] = []
    for word in words:
        previous = lines[-1][-1] if lines else ""
        value_of_flag = bool(lines) and len(lines[-1]) == 1 and previous.startswith("--") and not word.startswith("--")
        if value_of_flag:
            lines[-1].append(word)
        else:
            lines.append([word])
    return "\n".join(indent + " ".join(map(quote_word, line)) for line in lines)


def _server(script: ServeScript) -> str:
    words = ["serve", script.model]
    if script.served_name != script.model:
        words += ["--served-model-name", script.served_name]
    return _array([*words, *without_trial_settings(script.argv)], "  ")


def _exports(script: ServeScript) -> str:
    return "".join(
        f"export {name}={_quoted(value)}\n"
        for name, value in sorted(script.environment.items())
        if not _OWN_ENVIRONMENT.fullmatch(name)
    )


def _header(script: ServeScript) -> str:
    predicted = script.provenance is Provenance.SIMULATED
    rows = [
        ("study", f"{script.study}, trial {script.trial}"),
        ("verdict", script.verdict),
        ("model", script.model),
        *((f"{'predicted' if predicted else 'measured'}", f"{label}: {value}") for label, value in script.numbers),
        *(("SLO", str(slo)) for slo in script.slos),
        *(("flags", line) for line in script.earned),
        ("vLLM", script.vllm_version + (f" ({script.executable})" if script.executable else "")),
        ("GPU", script.device),
        ("date", script.date.isoformat()),
    ]
    first = ["# predicted, not measured: the figures below come from a simulation."] if predicted else []
    title = "# Starts the vLLM server that tuner's study chose; --help says how, --verify checks its figures."
    return "\n".join([*first, title, "#", *(f"# {one_line(f'{label:<10}{text}')}" for label, text in rows)])


def _reference(script: ServeScript) -> str:
    metrics = {
        name: {
            "value": known.value,
            "low": known.low,
            "high": known.high,
            "up": metric(name).direction is Direction.MAXIMIZE,
        }
        for name, known in script.reference.items()
    }
    slos = [[slo.metric, slo.op, slo.threshold] for slo in script.slos]
    return _quoted(json.dumps({"metrics": metrics, "slos": slos}))


def render(script: ServeScript) -> str:
    """Return the script's text, clean under shellcheck."""
    parts: dict[str, Callable[[], str]] = {
        "HEADER": lambda: _header(script),
        "VERSION": lambda: _quoted(script.vllm_version),
        "VERIFIABLE": lambda: "yes" if script.bench_argv else "no",
        "EXECUTABLE": lambda: _quoted(script.executable or ""),
        "SERVER": lambda: _server(script),
        "EXPORTS": lambda: _exports(script),
        "WARMUP": lambda: _array(script.warmup_argv, "    "),
        "REPEATS": lambda: str(script.repeats),
        "SEED": lambda: str(script.first_seed),
        "BENCH": lambda: _array(script.bench_argv, "    "),
        "REFERENCE": lambda: _reference(script),
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@@([A-Z]+)@@", lambda found: parts[found[1]](), template)


def write(script: ServeScript, path: Path) -> None:
    """Write the script to `path`, executable (0755), all of it or nothing.

    Raises:
        OSError: if the folder is missing or cannot be written.
    """
    text = render(script)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o755)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
