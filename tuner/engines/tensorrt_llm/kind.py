"""Describe TensorRT-LLM: the facts that the tuner needs without an installation. No server of it was ever run."""

from __future__ import annotations

from tuner.engines.kind import EngineKind, Program, at_first_use, reserved
from tuner.engines.tensorrt_llm.options import FILE_FLAGS, METRICS_OPTIONS, check_options

_PRINT_VERSION = """\
installed_version() {
  local python
  python="$(sed -n '1s/^#! *//p' "$(command -v "$TRTLLM_SERVE")")"
  if [[ ! -x "$python" ]]; then python="$(python_beside_program)" || return; fi
  "$python" -c 'import importlib.metadata as m; print(m.version("tensorrt_llm"))' 2>/dev/null
}
"""
_PARALLEL = ("--tensor_parallel_size", "--tp_size", "--pipeline_parallel_size", "--pp_size")


TENSORRT_LLM = EngineKind(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    build=at_first_use("tuner.engines.tensorrt_llm.engine", "TensorRtLlmEngine"),
    find=at_first_use("tuner.engines.tensorrt_llm.engine", "find"),
    facts=at_first_use("tuner.engines.tensorrt_llm.engine", "facts"),
    setting="trtllm_serve",
    program=Program(
        engine="tensorrt-llm",
        title="TensorRT-LLM",
        name="trtllm-serve",
        subcommand=("serve",),
        variable="TRTLLM_SERVE",
        key_variable="TUNER_API_KEY",
        model_flag=None,
        name_flag="--served_model_name",
        options=True,
        version=_PRINT_VERSION,
    ),
    space="tensorrt-llm",
    reserved={
        **reserved("--host", "--port", "--backend", "--served_model_name", "--grpc", *METRICS_OPTIONS),
        **reserved(
            *FILE_FLAGS, remedy="give each option as --config.KEY VALUE, such as --config.kv_cache_config.dtype fp8"
        ),
        **reserved(*_PARALLEL, remedy="leave it out: a trial of TensorRT-LLM has one GPU"),
    },
    help="`trtllm-serve serve --help`",
    context_flag="--max-seq-len",
    no_sampling=("TensorRT-LLM has no flag for it", "leave it out here and in the workload"),
    check_arguments=check_options,
    variables=("TRTLLM_", "TLLM_"),
)
