"""Describe vLLM: the facts that the tuner needs without an installation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces.render import instances_of
from tuner.engines.base import Engine, EngineSettings
from tuner.engines.kind import FILE_HIDES, EngineKind, Feature, Found, Program, reserved

LAUNCHER = "tuner-vllm-instances"
"""The console script that starts several vLLM servers; see `tuner.engines.vllm.instances`."""

VLLM_VARIABLE = "TUNER_VLLM"
"""The variable that names the vllm executable to it, and to `tuner`."""

_VERSION = """\
installed_version() {
  local python
  if python="$(python_beside_program)" &&
    "$python" -c 'import importlib.metadata as m; print(m.version("vllm"))' 2>/dev/null; then
    return
  fi
  timeout 120 "$VLLM" --version 2>/dev/null | tail -n 1
}
"""
_NODES = ("the tuner sets this flag", "give {nodes_per_trial}")


def _build(settings: EngineSettings) -> Engine:
    from tuner.engines.vllm.engine import VllmEngine

    return VllmEngine(settings)


def _find(given: str | None) -> Found:
    from tuner.engines.vllm.toolbox import find_executable

    return Found(find_executable(given))


def _facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    from tuner.engines.server.program_engine import interpreter_of
    from tuner.engines.server.unmet import unmet_requirements
    from tuner.engines.vllm.toolbox import ENTRY_POINT, installation

    interpreter = interpreter_of(found.executable, ENTRY_POINT)
    yield "unmet", None if interpreter is None else unmet_requirements(interpreter, "vllm")
    yield "version", installation(found.executable, home).version


def _sampling(temperature: float) -> tuple[str, ...]:
    return ("--override-generation-config", json.dumps({"temperature": temperature}))


PROGRAM = Program(
    kind="vllm",
    engine="vLLM",
    name="vllm",
    subcommand=("serve",),
    variable="VLLM",
    key_variable="VLLM_API_KEY",
    model_flag=None,
    name_flag="--served-model-name",
    version=_VERSION,
)

INSTANCES = replace(PROGRAM, name=LAUNCHER)
"""The program of several servers."""


def _variant(argv: Sequence[str]) -> Program | None:
    return INSTANCES if instances_of(argv) > 1 else None


VLLM = EngineKind(
    name="vllm",
    title="vLLM",
    build=_build,
    find=_find,
    facts=_facts,
    setting="vllm",
    program=PROGRAM,
    variant=_variant,
    features=frozenset(Feature),
    reserved=reserved("--host", "--port", "--served-model-name", "--model", "--uds"),
    refused={
        "--config": FILE_HIDES,
        **dict.fromkeys(("--nnodes", "--node-rank", "--master-addr", "--master-port"), _NODES),
    },
    help="`vllm serve --help=all`",
    context_flag="--max-model-len",
    sampling=_sampling,
)
