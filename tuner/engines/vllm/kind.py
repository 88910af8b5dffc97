"""Describe vLLM: the facts that the tuner needs without an installation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from search_spaces.render import instances_of
from tuner.engines.kind import FILE_HIDES, EngineKind, Feature, Program, at_first_use, reserved

LAUNCHER = "tuner-vllm-instances"
"""The console script that starts several vLLM servers; see `tuner.engines.vllm.instances`."""

VLLM_VARIABLE = "TUNER_VLLM"
"""The variable that names the vllm executable to it, and to `tuner`."""

_PRINT_VERSION = """\
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


def _sampling(temperature: float) -> tuple[str, ...]:
    return ("--override-generation-config", json.dumps({"temperature": temperature}))


PROGRAM = Program(
    engine="vllm",
    title="vLLM",
    name="vllm",
    subcommand=("serve",),
    variable="VLLM",
    key_variable="VLLM_API_KEY",
    model_flag=None,
    name_flag="--served-model-name",
    version=_PRINT_VERSION,
)

INSTANCES = replace(PROGRAM, name=LAUNCHER)
"""The program of several servers."""


def _variant(argv: Sequence[str]) -> Program | None:
    return INSTANCES if instances_of(argv) > 1 else None


VLLM = EngineKind(
    name="vllm",
    title="vLLM",
    build=at_first_use("tuner.engines.vllm.engine", "VllmEngine"),
    find=at_first_use("tuner.engines.vllm.toolbox", "find"),
    facts=at_first_use("tuner.engines.vllm.toolbox", "facts"),
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
    variables=("VLLM_",),
)
