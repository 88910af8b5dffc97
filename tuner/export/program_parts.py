"""The parts of `best_serve.sh` that depend on the engine's program: how it is found and started, and its version."""

from __future__ import annotations

import re
from collections.abc import Callable

from tuner.engines.tensorrt_llm.options import FILE_FLAG
from tuner.engines.vllm.nodes.rank import headless
from tuner.export.quoting import quoted_text, quoted_within
from tuner.export.serve_script import ServeScript
from tuner.loadgen.client import API_KEY_VARIABLE

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


def program_parts(script: ServeScript) -> dict[str, Callable[[], str]]:
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
    reads_key = f", which {program.engine} reads itself" if program.key_variable != API_KEY_VARIABLE else ""
    return {
        "CHOICE": lambda: f'  {test}; then {program.variable}="{recorded}"; fi',
        "LAUNCHER": lambda: "".join(
            f'export {name}="${{{name}:-{quoted_within(value)}}}"\n'
            for name, value in script.launcher_variables.items()
        ),
        "ORDER": lambda: ", else ".join(order),
        "KEYREADER": lambda: reads_key,
        "ARRANGED": lambda: arranged,
        "WITHOUTHEALTH": lambda: "",
        "INSTALLED": lambda: program.version,
    }


def _command_parts(script: ServeScript) -> dict[str, Callable[[], str]]:
    """Return the parts for a user's command, whose program on the PATH may be another one, such as a Python."""
    end = len(script.server_words) - script.program.words_after_flags
    arranged = _ARRANGED_COMMAND.replace("@@END@@", str(end))
    return {
        "CHOICE": lambda: '  if [[ -x "$recorded_program" ]]; then SERVER_PROGRAM="$recorded_program"; fi',
        "LAUNCHER": lambda: "",
        "ORDER": lambda: "the executable that the study ran, else the one on PATH",
        "KEYREADER": lambda: "",
        "ARRANGED": lambda: arranged.replace("@@FOLDER@@", quoted_text(script.folder or ".")),
        "WITHOUTHEALTH": lambda: _WITHOUT_HEALTH,
        "INSTALLED": lambda: _INSTALLED_COMMAND,
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


def _without_api(script: ServeScript) -> str:
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
