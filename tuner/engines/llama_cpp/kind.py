"""Describe llama.cpp: the facts that the tuner needs without an installation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.engines.base import Engine, EngineSettings
from tuner.engines.kind import EngineKind, Feature, Found, ModelForm, Program, reserved

LAUNCHER = "tuner-llama-server"
"""The console script that starts the server of the package `xllamacpp`; see `tuner.engines.llama_cpp.launcher`."""

_VERSION = """\
installed_version() {
  timeout 120 "$LLAMA_SERVER" --version 2>&1 | sed -n 's/^version: *\\([^ ]*\\).*/\\1/p'
}
"""


def _build(settings: EngineSettings) -> Engine:
    from tuner.engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(settings)


def _find(given: str | None) -> Found:
    from tuner.engines.llama_cpp.engine import find_server, installation

    found = installation(find_server(given))
    return Found(found.executable, bool(found.gpus))


def _facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    from tuner.engines.llama_cpp.engine import installation

    installed = installation(found.executable)
    yield "version", installed.version
    yield "gpus", list(installed.gpus)


def _sampling(temperature: float) -> tuple[str, ...]:
    return ("--temp", f"{temperature:g}")


PROGRAM = Program(
    kind="llama.cpp",
    engine="llama.cpp",
    name="llama-server",
    subcommand=(),
    variable="LLAMA_SERVER",
    key_variable="LLAMA_API_KEY",
    model_flag="--model",
    name_flag="--alias",
    version=_VERSION,
)
_LAUNCHED = replace(PROGRAM, name=LAUNCHER)


def _variant(argv: Sequence[str]) -> Program | None:
    return _LAUNCHED if argv and Path(argv[0]).name == LAUNCHER else None


LLAMA_CPP = EngineKind(
    name="llama.cpp",
    title="llama.cpp",
    build=_build,
    find=_find,
    facts=_facts,
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
)
