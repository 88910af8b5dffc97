"""The parts of `best_serve.sh` that depend on the engine's program."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.schema import VLLM
from tuner.engines.command_line import LLAMA_CPP, PROGRAMS
from tuner.export.quoting import quoted_text
from tuner.export.serve_script import ServeScript

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
    installed = next(text for engine, text in _INSTALLED.items() if program is PROGRAMS[engine])
    test = f'if ! command -v {program.name} >/dev/null && [[ -x "{recorded}" ]]'
    return {
        "CHOICE": lambda: f'  {test}; then {program.variable}="{recorded}"; fi',
        "ORDER": lambda: f"{program.name} on PATH, else the executable that the study ran",
        "KEYREADER": lambda: f", which {program.engine} reads itself",
        "ARRANGED": lambda: f'  set -- "$(command -v "${program.variable}")" "${{server_words[@]}}" "$@"',
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
