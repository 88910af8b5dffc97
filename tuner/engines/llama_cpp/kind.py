"""Describe llama.cpp: the facts that the tuner needs without an installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.engines.kind import EngineKind, Feature, ModelForm, Program, at_first_use, reserved

LAUNCHER = "tuner-llama-server"
"""The console script that starts the server of the package `xllamacpp`; see `tuner.engines.llama_cpp.launcher`."""

_PRINT_VERSION = """\
installed_version() {
  timeout 120 "$LLAMA_SERVER" --version 2>&1 | sed -n 's/^version: *\\([^ ]*\\).*/\\1/p'
}
"""


def _sampling(temperature: float) -> tuple[str, ...]:
    return ("--temp", f"{temperature:g}")


PROGRAM = Program(
    engine="llama.cpp",
    title="llama.cpp",
    name="llama-server",
    subcommand=(),
    variable="LLAMA_SERVER",
    key_variable="LLAMA_API_KEY",
    model_flag="--model",
    name_flag="--alias",
    version=_PRINT_VERSION,
)
_LAUNCHED = replace(PROGRAM, name=LAUNCHER)


def _variant(argv: Sequence[str]) -> Program | None:
    return _LAUNCHED if argv and Path(argv[0]).name == LAUNCHER else None


LLAMA_CPP = EngineKind(
    name="llama.cpp",
    title="llama.cpp",
    build=at_first_use("tuner.engines.llama_cpp.engine", "LlamaCppEngine"),
    find=at_first_use("tuner.engines.llama_cpp.engine", "find"),
    facts=at_first_use("tuner.engines.llama_cpp.engine", "facts"),
    setting="llama_server",
    program=PROGRAM,
    variant=_variant,
    features=frozenset({Feature.BESIDE_OTHERS}),
    model_form=ModelForm.GGUF,
    space="llama.cpp",
    reserved=reserved("--host", "--port", "--alias", "-a", "--model", "-m", "--metrics"),
    help="`llama-server --help`",
    context_flag="--ctx-size",
    sampling=_sampling,
    variables=("LLAMA_", "GGML_"),  # LLAMA_ARG_* would set flags
)
