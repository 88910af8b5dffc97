"""Write `best_serve.sh`, the script that starts the server of a trial, for use in production.

No name or value can run as code: `tuner.export.quoting` quotes them, and each template is filled in a single pass, so
that a value is never taken for a placeholder.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path

from records.metrics import Direction, metric, shown_unit
from tuner.engines.tensorrt_llm.options import FILE_FLAG
from tuner.engines.vllm.nodes import headless
from tuner.errors import EXIT_INCONCLUSIVE
from tuner.export.deployment import Deployment
from tuner.export.formats.document import header_lines, header_rows, installed_notes
from tuner.export.quoting import VARIABLE_NAME, array_lines, escape_unprintable, quote_word, quoted_text, quoted_within
from tuner.export.references import INCONCLUSIVE, NOISY, NOISY_BENCHMARKS
from tuner.export.verification import CarriedTraffic
from tuner.files import write_output
from tuner.loadgen.client import API_KEY_VARIABLE
from tuner.study.specification.spec import Budget

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

_ARRANGED_OPTIONS = """\
  local options
  options="$(mktemp)"
  cat >"$options" <<'END_OF_OPTIONS'
@@OPTIONS@@END_OF_OPTIONS
  exec 7<"$options"
  rm -f -- "$options"
  set -- "$(command -v "$@@VARIABLE@@")" "${server_words[@]}" @@FLAG@@ /dev/fd/7 "$@"
"""
"""The arguments of a server with a file of options, which has no name any more when the server opens it."""

_WITHOUT_HEALTH = """\
  case "$answer" in
    HTTP/1.?" 404"* | HTTP/1.?" 405"* | HTTP/1.?" 501"*) answer="$(answer_of /v1/models)" || return 1 ;;
  esac
"""


def program_parts(script: Deployment) -> dict[str, str]:
    """Return the placeholders of the engine's program."""
    program = script.program
    variable = "program" if program.command else program.name.replace("-", "_")
    own = _command_parts(script) if program.command else _engine_parts(script, variable)
    return {
        "PROGRAM": program.name,
        "PROGRAMVARIABLE": variable,
        "VARIABLE": program.variable,
        "COMMAND": " ".join([program.name, *program.subcommand]),
        "PADDED": f"{program.variable:<18}",
        "PADDEDKEY": f"{program.key_variable:<18}",
        "KEY": program.key_variable,
        "ENGINE": program.title,
        **own,
    }


def _engine_parts(script: Deployment, variable: str) -> dict[str, str]:
    program, recorded = script.program, f"$recorded_{variable}"
    there = f'[[ -x "{recorded}" ]]'
    test = f"if {there}" if program.recorded_first else f"if ! command -v {program.name} >/dev/null && {there}"
    on_path, ran = f"{program.name} on PATH", "the executable that the study ran"
    order = (ran, on_path) if program.recorded_first else (on_path, ran)
    ranks = _rank_words(script.nodes)
    arranged = (
        f'{_without_api(script)}  set -- "$(command -v "${program.variable}")" "${{server_words[@]}}" {ranks}"$@"'
    )
    if script.options is not None:
        parts = {"OPTIONS": script.options, "VARIABLE": program.variable, "FLAG": FILE_FLAG}
        arranged = re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], _ARRANGED_OPTIONS).rstrip("\n")
    reads_key = f", which {program.title} reads itself" if program.key_variable != API_KEY_VARIABLE else ""
    return {
        "CHOICE": f'  {test}; then {program.variable}="{recorded}"; fi',
        "LAUNCHER": "".join(
            f'export {name}="${{{name}:-{quoted_within(value)}}}"\n'
            for name, value in script.launcher_variables.items()
        ),
        "ORDER": ", else ".join(order),
        "KEYREADER": reads_key,
        "ARRANGED": arranged,
        "WITHOUTHEALTH": "",
        "INSTALLED": program.version,
    }


def _command_parts(script: Deployment) -> dict[str, str]:
    """Return the parts for a user's command, whose program on the PATH may be another one, such as a Python."""
    end = len(script.server_words) - script.program.words_after_flags
    arranged = _ARRANGED_COMMAND.replace("@@END@@", str(end))
    return {
        "CHOICE": '  if [[ -x "$recorded_program" ]]; then SERVER_PROGRAM="$recorded_program"; fi',
        "LAUNCHER": "",
        "ORDER": "the executable that the study ran, else the one on PATH",
        "KEYREADER": "",
        "ARRANGED": arranged.replace("@@FOLDER@@", quoted_text(script.folder or ".")),
        "WITHOUTHEALTH": _WITHOUT_HEALTH,
        "INSTALLED": _INSTALLED_COMMAND,
    }


def rank_check(nodes: int) -> str:
    """Return the lines of a script that refuse a start without its node's rank and the address of rank 0."""
    return (
        'if ! [[ "${NODE_RANK:-}" =~ ^[0-9]+$ && -n "${MASTER_ADDR:-}" ]] ||'
        f" ((10#$NODE_RANK >= {nodes})); then\n"
        f"  printf 'best_serve.sh: the server runs on {nodes} nodes; start this on each, with NODE_RANK=0 to "
        f"{nodes - 1}, and MASTER_ADDR=address of rank 0\\n' >&2\n"
        "  exit 2\nfi\n"
        'if ((10#$NODE_RANK > 0)) && [[ "${1:-}" == --verify ]]; then\n'
        "  printf 'best_serve.sh: --verify runs on the node of rank 0; start the others without it\\n' >&2\n"
        "  exit 2\nfi\n"
        "rank=(); if ((10#$NODE_RANK > 0)); then rank=(--headless); fi\n"
    )


def _without_api(script: Deployment) -> str:
    """Return the line that gives ranks without an API server their arguments; empty if they have those of rank 0."""
    words = headless(script.server_words)
    if script.nodes == 1 or words == script.server_words:
        return ""
    return f"  if ((10#$NODE_RANK > 0)); then server_words=({' '.join(map(quoted_text, words))}); fi\n"


def _rank_words(nodes: int) -> str:
    """Return the words of a script's command by which a rank meets the others; empty for a server on one node."""
    if nodes == 1:
        return ""
    meeting = '--master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29501}"'
    return f'--nnodes {nodes} --node-rank "$NODE_RANK" {meeting} "${{rank[@]}}" '


LOAD_SEED_STRIDE = 100
"""Between the seeds of two repeats of traffic; each workload of a suite takes the next seed."""

_TEMPLATES = Path(__file__).parent
_BASH_VARIABLES = frozenset(
    {
        *("_", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS"),
        *("HISTCMD", "IFS", "LINENO", "OPTARG", "OPTIND", "PATH", "PIPESTATUS", "POSIXLY_CORRECT", "PPID", "PWD"),
        *("LANG", "OLDPWD", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID"),
    }
)
"""Variables that bash itself reads, sets or protects."""


def _server(script: Deployment) -> str:
    return array_lines(script.plain_words, "  ", script.references)


def _exports(script: Deployment) -> str:
    lines = [
        f"  export {name}={quoted_text(value, script.references)}"
        for name, value in script.variables.items()
        if _exportable(name)
    ]
    return "\n".join(lines or ["  :"])


def _assigned(script: Deployment) -> str:
    """Return the command that sets the variables that bash cannot export."""
    words = [
        quoted_text(f"{name}={value}", script.references)
        for name, value in script.variables.items()
        if not _exportable(name)
    ]
    return " ".join(["env", *words, ""]) if words else ""


def _exportable(name: str) -> bool:
    """Return whether the script can export a variable; its own arrays and constants have lower-case names."""
    if not VARIABLE_NAME.fullmatch(name) or name in _BASH_VARIABLES:
        return False
    return not name.startswith(("BASH", "LC_", "recorded_", "server_words"))


def _required(script: Deployment) -> str:
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


def _header(script: Deployment) -> str:
    engine = script.program.title
    usage = "--help shows the usage, --verify measures the server again."
    title = f"Starts the {engine} server of a tuner study. {usage}"
    needed = (("needs", line) for line in installed_notes(script))
    rows = [*header_rows(script), *needed, *(("traffic", line) for line in _carried(script))]
    return "\n".join(header_lines(script, title, rows))


def _reference(script: Deployment) -> str:
    metrics = {
        name: {
            "value": recorded.value,
            "low": recorded.low,
            "high": recorded.high,
            "tells": recorded.tells,
            "unit": shown_unit(name),
            "up": metric(name).direction is Direction.MAXIMIZE,
        }
        for name, recorded in script.verification.reference.items()
    }
    slos = [[slo.metric, slo.op, slo.threshold] for slo in script.slos if slo.metric != "quality"]
    texts = {"inconclusive": INCONCLUSIVE, "noisy": NOISY_BENCHMARKS, "variation": NOISY}
    return quoted_text(json.dumps({"metrics": metrics, "slos": slos, **texts}))


def _carried(script: Deployment) -> list[str]:
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


def _unverified(script: Deployment) -> str:
    return "".join(
        f"  printf '%s\\n' {quoted_text(escape_unprintable(line))}\n" for line in script.verification.unverified
    )


_USAGE_OF_TUNER = """\
  TUNER              --verify: the tuner that sends the traffic (default: on PATH, else the one that exported this)
"""
_USAGE_WITHOUT_TUNER = "  3  no tuner is installed, which sends the traffic\n"


def _filled(template: str, parts: Mapping[str, str]) -> str:
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], text)


def _bench_client(script: Deployment) -> str:
    parts: dict[str, str] = {
        "WARMUP": array_lines(script.verification.warmup_argv, "    "),
        "REPEATS": str(script.verification.repeats),
        "SEED": str(script.verification.first_seed),
        "BENCH": array_lines(script.verification.bench_argv, "    "),
    }
    return _filled("bench_client.sh.tmpl", parts)


def _load_client(script: Deployment, traffic: CarriedTraffic) -> str:
    parts: dict[str, str] = {
        "TUNER": quoted_text(script.tuner or ""),
        "NEEDED": _needed(traffic),
        "TRAFFIC": _traffic(traffic),
        "REPEATS": str(script.verification.repeats),
        "ATTEMPTS": str(Budget.attempts),
        "STRIDE": str(LOAD_SEED_STRIDE),
        "SEED": str(script.verification.first_seed),
        "LOAD": array_lines(script.verification.load_argv, "        "),
    }
    return _filled("load_client.sh.tmpl", parts)


def render_serve_script(script: Deployment) -> str:
    """Return the text of the script; shellcheck finds nothing in it."""
    traffic = script.verification.traffic
    parts: dict[str, str] = {
        **program_parts(script),
        "HEADER": _header(script),
        "VERSION": quoted_text(script.vllm_version),
        "EXECUTABLE": quoted_text(script.executable or ""),
        "DEVICE": quoted_text("" if script.device == "cpu" else script.card),
        "DRIVERS": quoted_text(" ".join(script.drivers)),
        "USAGE": _USAGE_OF_TUNER if traffic else "",
        "USAGECODES": _USAGE_WITHOUT_TUNER if traffic else "",
        "SERVER": _server(script),
        "REQUIRED": _required(script),
        "EXPORTS": _exports(script),
        "ASSIGNED": _assigned(script),
        "CLIENT": _load_client(script, traffic) if traffic else _bench_client(script),
        "INCONCLUSIVE": str(EXIT_INCONCLUSIVE),
        "REPEATS": str(script.verification.repeats),
        "REFERENCE": _reference(script),
        "UNVERIFIED": _unverified(script),
    }
    return _filled("serve_script.sh.tmpl", parts)


def write_serve_script(script: Deployment, path: Path) -> None:
    """Write the script to `path` as an executable file (mode 0755) in one step; a device or FIFO is written through.

    Raises:
        OSError: if the folder does not exist or cannot be written.
    """
    write_output(path, render_serve_script(script), mode=0o700, errors="surrogateescape")
