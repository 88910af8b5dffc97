"""Describe SGLang: the facts that the tuner needs without an installation."""

from __future__ import annotations

from tuner.engines.kind import FILE_HIDES, EngineKind, Feature, Program, at_first_use, reserved

_PRINT_VERSION = """\
installed_version() {
  "$SGLANG_PYTHON" -c 'import importlib.metadata as m; print(m.version("sglang"))' 2>/dev/null
}
"""
_PLACED_BY_TUNER = ("a server of SGLang has one node, and the tuner chooses its GPUs", "leave it out")
"""Rule and remedy for flags of nodes and GPUs."""


SGLANG = EngineKind(
    name="sglang",
    title="SGLang",
    build=at_first_use("tuner.engines.sglang.engine", "SglangEngine"),
    find=at_first_use("tuner.engines.sglang.engine", "find"),
    facts=at_first_use("tuner.engines.sglang.engine", "facts"),
    setting="sglang",
    program=Program(
        engine="sglang",
        title="SGLang",
        name="python3",
        subcommand=("-m", "sglang.launch_server"),
        variable="SGLANG_PYTHON",
        key_variable="TUNER_API_KEY",
        model_flag="--model-path",
        name_flag="--served-model-name",
        recorded_first=True,
        version=_PRINT_VERSION,
    ),
    features=frozenset({Feature.SCHEMA, Feature.SEVERAL_GPUS, Feature.BESIDE_OTHERS}),
    space="sglang",
    reserved=reserved("--host", "--port", "--served-model-name", "--model-path", "--model", "--enable-metrics"),
    refused={
        "--config": FILE_HIDES,
        **dict.fromkeys(("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"), _PLACED_BY_TUNER),
        **dict.fromkeys(("--base-gpu-id", "--gpu-id-step"), _PLACED_BY_TUNER),
    },
    help="`python -m sglang.launch_server --help`",
    context_flag="--context-length",
    no_sampling=("SGLang has no flag for it", "set it in the model's generation_config.json"),
    moves_secrets=False,
    variables=("SGLANG_", "SGL_"),
)
