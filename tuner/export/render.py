"""Write `best_serve.sh`, the script that starts the server of a trial, for use in production.

No name or value can run as code: `tuner.export.quoting` quotes them, and each template is filled in a single pass, so
that a value is never taken for a placeholder.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from storage.metrics import Direction, metric
from tuner.errors import EXIT_INCONCLUSIVE
from tuner.export.carried_traffic import CarriedTraffic
from tuner.export.comparison import INCONCLUSIVE, NOISY, NOISY_BENCHMARKS
from tuner.export.deployment import Deployment
from tuner.export.formats.packages import installed_notes
from tuner.export.header import header_lines, header_rows
from tuner.export.program_parts import program_parts, rank_check
from tuner.export.quoting import array_lines, escape_unprintable, quote_word, quoted_text
from tuner.export.serve_script import ServeScript
from tuner.files import write_output
from tuner.study.specification.settings import Budget

LOAD_SEED_STRIDE = 100
"""Between the seeds of two repeats of traffic; each workload of a suite takes the next seed."""

_TEMPLATES = Path(__file__).parent
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BASH_VARIABLES = frozenset(
    {
        *("_", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS"),
        *("HISTCMD", "IFS", "LINENO", "OPTARG", "OPTIND", "PATH", "PIPESTATUS", "POSIXLY_CORRECT", "PPID", "PWD"),
        *("LANG", "OLDPWD", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID"),
    }
)
"""Variables that bash itself reads, sets or protects."""


def _server(script: ServeScript) -> str:
    return array_lines(script.plain_words, "  ", script.references)


def _exports(script: ServeScript) -> str:
    lines = [
        f"  export {name}={quoted_text(value, script.references)}"
        for name, value in script.variables.items()
        if _exportable(name)
    ]
    return "\n".join(lines or ["  :"])


def _assigned(script: ServeScript) -> str:
    """Return the command that sets the variables that bash cannot export."""
    words = [
        quoted_text(f"{name}={value}", script.references)
        for name, value in script.variables.items()
        if not _exportable(name)
    ]
    return " ".join(["env", *words, ""]) if words else ""


def _exportable(name: str) -> bool:
    """Return whether the script can export a variable; its own arrays and constants have lower-case names."""
    if not _VARIABLE_NAME.fullmatch(name) or name in _BASH_VARIABLES:
        return False
    return not name.startswith(("BASH", "LC_", "recorded_", "server_words"))


def _required(script: ServeScript) -> str:
    """Return the lines that end the script if a variable that it refers to is not set; the usage needs none."""
    if not script.references and script.nodes == 1:
        return ""
    checks = "" if script.nodes == 1 else rank_check(script.nodes)
    checks += "".join(
        f'[[ -n "${{{name}:-}}" ]] || {{\n'
        f"  printf 'best_serve.sh: the server needs the secret {name}; set it: export {name}=...\\n' >&2\n"
        "  exit 2\n}\n"
        for name in sorted(script.references)
    )
    return f'case "${{1:-}}" in --help | -h) usage && exit ;; esac\n{checks}\n'


def _header(script: ServeScript) -> str:
    engine = script.program.engine
    usage = "--help shows the usage, --verify measures the server again."
    title = f"Starts the {engine} server of a tuner study. {usage}"
    needed = (("needs", line) for line in installed_notes(Deployment(script)))
    rows = [*header_rows(script), *needed, *(("traffic", line) for line in _carried(script))]
    return "\n".join(header_lines(script, title, rows))


def _reference(script: ServeScript) -> str:
    metrics = {
        name: {
            "value": recorded.value,
            "low": recorded.low,
            "high": recorded.high,
            "tells": recorded.tells,
            "up": metric(name).direction is Direction.MAXIMIZE,
        }
        for name, recorded in script.verification.reference.items()
    }
    slos = [[slo.metric, slo.op, slo.threshold] for slo in script.slos if slo.metric != "quality"]
    texts = {"inconclusive": INCONCLUSIVE, "noisy": NOISY_BENCHMARKS, "variation": NOISY}
    return quoted_text(json.dumps({"metrics": metrics, "slos": slos, **texts}))


def _carried(script: ServeScript) -> list[str]:
    """Return lines that say which of the user's files the script carries, because it may be passed on."""
    traffic = script.verification.traffic
    if traffic is None:
        return []
    carried = [f"this script carries the content of {path}" for path in traffic.sources.values()]
    return [*carried, *(f"--verify needs {path}, which the script does not carry" for path in traffic.needed)]


def _traffic(traffic: CarriedTraffic) -> str:
    """Return the lines that write the traffic to the folder `$work/traffic`."""
    lines = [
        f'  printf %s {quoted_text(text)} >"$work/traffic/"{quote_word(name)}'
        for name, text in traffic.workloads.items()
    ]
    for name, content in traffic.files.items():
        # the alphabet of base64 has no underscore
        encoded = base64.encodebytes(content).decode("ascii")
        lines.append(
            f"  base64 -d <<'END_OF_FILE' | gzip -d >\"$work/traffic/\"{quote_word(name)}\n{encoded}END_OF_FILE"
        )
    return "\n".join(lines)


def _needed(traffic: CarriedTraffic) -> str:
    return "".join(f"  need_file {quoted_text(path)} {digest}\n" for path, digest in traffic.needed.items())


def _unverified(script: ServeScript) -> str:
    return "".join(
        f"  printf '%s\\n' {quoted_text(escape_unprintable(line))}\n" for line in script.verification.unverified
    )


_USAGE_OF_TUNER = """\
  TUNER              --verify: the tuner that sends the traffic (default: on PATH, else the one that exported this)
"""
_USAGE_WITHOUT_TUNER = "  3  no tuner is installed, which sends the traffic\n"


def _filled(template: str, parts: Mapping[str, Callable[[], str]]) -> str:
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]](), text)


def _bench_client(script: ServeScript) -> str:
    parts: dict[str, Callable[[], str]] = {
        "WARMUP": lambda: array_lines(script.verification.warmup_argv, "    "),
        "REPEATS": lambda: str(script.verification.repeats),
        "SEED": lambda: str(script.verification.first_seed),
        "BENCH": lambda: array_lines(script.verification.bench_argv, "    "),
    }
    return _filled("bench_client.sh.tmpl", parts)


def _load_client(script: ServeScript, traffic: CarriedTraffic) -> str:
    parts: dict[str, Callable[[], str]] = {
        "TUNER": lambda: quoted_text(script.tuner or ""),
        "NEEDED": lambda: _needed(traffic),
        "TRAFFIC": lambda: _traffic(traffic),
        "REPEATS": lambda: str(script.verification.repeats),
        "ATTEMPTS": lambda: str(Budget.attempts),
        "STRIDE": lambda: str(LOAD_SEED_STRIDE),
        "SEED": lambda: str(script.verification.first_seed),
        "LOAD": lambda: array_lines(script.verification.load_argv, "        "),
    }
    return _filled("load_client.sh.tmpl", parts)


def render_serve_script(script: ServeScript) -> str:
    """Return the text of the script; shellcheck finds nothing in it."""
    traffic = script.verification.traffic
    parts: dict[str, Callable[[], str]] = {
        **program_parts(script),
        "HEADER": lambda: _header(script),
        "VERSION": lambda: quoted_text(script.vllm_version),
        "EXECUTABLE": lambda: quoted_text(script.executable or ""),
        "DEVICE": lambda: quoted_text("" if script.device == "cpu" else script.card),
        "DRIVERS": lambda: quoted_text(" ".join(script.drivers)),
        "USAGE": lambda: _USAGE_OF_TUNER if traffic else "",
        "USAGECODES": lambda: _USAGE_WITHOUT_TUNER if traffic else "",
        "SERVER": lambda: _server(script),
        "REQUIRED": lambda: _required(script),
        "EXPORTS": lambda: _exports(script),
        "ASSIGNED": lambda: _assigned(script),
        "CLIENT": lambda: _load_client(script, traffic) if traffic else _bench_client(script),
        "INCONCLUSIVE": lambda: str(EXIT_INCONCLUSIVE),
        "REPEATS": lambda: str(script.verification.repeats),
        "REFERENCE": lambda: _reference(script),
        "UNVERIFIED": lambda: _unverified(script),
    }
    return _filled("serve_script.sh.tmpl", parts)


def write_serve_script(script: ServeScript, path: Path) -> None:
    """Write the script to `path` as an executable file (mode 0755) in one step; a device or FIFO is written through.

    Raises:
        OSError: if the folder does not exist or cannot be written.
    """
    write_output(path, render_serve_script(script), mode=0o700, errors="surrogateescape")
