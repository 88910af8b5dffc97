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

from search_spaces.schema import VLLM
from storage.metrics import Direction, metric
from tuner.engines.command_line import LLAMA_CPP, PROGRAMS, SGLANG
from tuner.export.carried_traffic import CarriedTraffic
from tuner.export.header import header_lines, header_rows
from tuner.export.quoting import array_lines, escape_unprintable, quote_word, quoted_text
from tuner.export.serve_script import ServeScript
from tuner.export.trial_settings import rank_check, rank_words
from tuner.files import write_output
from tuner.loadgen.client import API_KEY_VARIABLE
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
    return array_lines(script.server_words, "  ", script.references)


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
    rows = [*header_rows(script), *(("traffic", line) for line in _carried(script))]
    return "\n".join(header_lines(script, title, rows))


def _reference(script: ServeScript) -> str:
    metrics = {
        name: {
            "value": recorded.value,
            "low": recorded.low,
            "high": recorded.high,
            "up": metric(name).direction is Direction.MAXIMIZE,
        }
        for name, recorded in script.verification.reference.items()
    }
    slos = [[slo.metric, slo.op, slo.threshold] for slo in script.slos if slo.metric != "quality"]
    return quoted_text(json.dumps({"metrics": metrics, "slos": slos}))


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


_INSTALLED = {
    VLLM: """\
installed_version() {
  local python
  if python="$(python_beside_program)" &&
    "$python" -c 'import importlib.metadata as m; print(m.version("vllm"))' 2>/dev/null; then
    return
  fi
  timeout 120 "$VLLM" --version 2>/dev/null | tail -n 1
}
""",
    LLAMA_CPP: """\
installed_version() {
  timeout 120 "$LLAMA_SERVER" --version 2>&1 | sed -n 's/^version: *\\([^ ]*\\).*/\\1/p'
}
""",
    SGLANG: """\
installed_version() {
  "$SGLANG_PYTHON" -c 'import importlib.metadata as m; print(m.version("sglang"))' 2>/dev/null
}
""",
}
"""The function of the script that prints the version of the installed engine."""


_INSTALLED_COMMAND = """\
installed_version() {
  if [[ "$recorded_version" == unknown ]]; then
    printf 'unknown\\n'
  else
    timeout 20 "$SERVER_PROGRAM" --version 2>&1 </dev/null |
      grep -oE '[0-9]+([.][0-9]+)+[[:alnum:]_.+-]*' | sed -n 1p
  fi
}
"""

_ARRANGED_COMMAND = """\
  local host="$2" port="$4" words
  shift 4
  words=("${server_words[@]:0:@@END@@}" "$@" "${server_words[@]:@@END@@}")
  words=("${words[@]//\\{host\\}/$host}")
  words=("${words[@]//\\{port\\}/$port}")
  set -- "$(command -v "$SERVER_PROGRAM")" "${words[@]}"
  if [[ -d @@FOLDER@@ ]]; then cd -- @@FOLDER@@; fi"""
"""The arguments of the server from `--host HOST --port PORT` and further flags, which follow those of the study."""

_WITHOUT_HEALTH = """\
  case "$answer" in
    HTTP/1.?" 404"* | HTTP/1.?" 405"* | HTTP/1.?" 501"*) answer="$(answer_of /v1/models)" || return 1 ;;
  esac
"""


def _program_parts(script: ServeScript) -> dict[str, Callable[[], str]]:
    """Return the placeholders of the engine's program."""
    program = script.program
    variable = "program" if program.command else program.name.replace("-", "_")
    own = _command_parts(script) if program.command else _engine_parts(script, variable)
    return {
        "PROGRAM": lambda: program.name,
        "PROGRAMVARIABLE": lambda: variable,
        "VARIABLE": lambda: program.variable,
        "COMMAND": lambda: " ".join([program.name, *program.subcommand]),
        "PADDED": lambda: f"{program.variable:<18}",
        "PADDEDKEY": lambda: f"{program.key_variable:<18}",
        "KEY": lambda: program.key_variable,
        "ENGINE": lambda: program.engine,
        **own,
    }


def _engine_parts(script: ServeScript, variable: str) -> dict[str, Callable[[], str]]:
    program, recorded = script.program, f"$recorded_{variable}"
    installed = next(text for engine, text in _INSTALLED.items() if program is PROGRAMS[engine])
    there = f'[[ -x "{recorded}" ]]'
    test = f"if {there}" if program.recorded_first else f"if ! command -v {program.name} >/dev/null && {there}"
    on_path, ran = f"{program.name} on PATH", "the executable that the study ran"
    order = (ran, on_path) if program.recorded_first else (on_path, ran)
    reads_key = f", which {program.engine} reads itself" if program.key_variable != API_KEY_VARIABLE else ""
    ranked = rank_words(script.nodes)
    return {
        "CHOICE": lambda: f'  {test}; then {program.variable}="{recorded}"; fi',
        "ORDER": lambda: ", else ".join(order),
        "KEYREADER": lambda: reads_key,
        "ARRANGED": lambda: f'  set -- "$(command -v "${program.variable}")" "${{server_words[@]}}" {ranked}"$@"',
        "WITHOUTHEALTH": lambda: "",
        "INSTALLED": lambda: installed,
    }


def _command_parts(script: ServeScript) -> dict[str, Callable[[], str]]:
    """Return the parts for a user's command, whose program on the PATH may be another one, such as a Python."""
    end = len(script.server_words) - script.program.words_after_flags
    arranged = _ARRANGED_COMMAND.replace("@@END@@", str(end))
    return {
        "CHOICE": lambda: '  if [[ -x "$recorded_program" ]]; then SERVER_PROGRAM="$recorded_program"; fi',
        "ORDER": lambda: "the executable that the study ran, else the one on PATH",
        "KEYREADER": lambda: "",
        "ARRANGED": lambda: arranged.replace("@@FOLDER@@", quoted_text(script.folder or ".")),
        "WITHOUTHEALTH": lambda: _WITHOUT_HEALTH,
        "INSTALLED": lambda: _INSTALLED_COMMAND,
    }


def render_serve_script(script: ServeScript) -> str:
    """Return the text of the script; shellcheck finds nothing in it."""
    traffic = script.verification.traffic
    parts: dict[str, Callable[[], str]] = {
        **_program_parts(script),
        "HEADER": lambda: _header(script),
        "VERSION": lambda: quoted_text(script.vllm_version),
        "EXECUTABLE": lambda: quoted_text(script.executable or ""),
        "DEVICE": lambda: quoted_text("" if script.device == "cpu" else script.device),
        "DRIVERS": lambda: quoted_text(" ".join(script.drivers)),
        "USAGE": lambda: _USAGE_OF_TUNER if traffic else "",
        "USAGECODES": lambda: _USAGE_WITHOUT_TUNER if traffic else "",
        "SERVER": lambda: _server(script),
        "REQUIRED": lambda: _required(script),
        "EXPORTS": lambda: _exports(script),
        "ASSIGNED": lambda: _assigned(script),
        "CLIENT": lambda: _load_client(script, traffic) if traffic else _bench_client(script),
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
    write_output(path, render_serve_script(script), mode=0o755, errors="surrogateescape")
