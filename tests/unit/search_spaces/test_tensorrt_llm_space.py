"""The space of TensorRT-LLM: its contract, its rules, and the flags and options of the sources."""

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces import Context, ParameterValue, ResolvedSpace, hardware_named, load_space
from tests.contracts.space_contract import EngineSpaceContract, engine_context, reason, values
from tuner.engines.server.flags import load_flags
from tuner.engines.tensorrt_llm.options import split_options

NAME = "tensorrt-llm"
FLAGS = Path(__file__).parents[2] / "data" / "tensorrt_llm_flags" / "sources.json"
CONTEXT = engine_context("TensorRT-LLM", "h200", "1.3.0rc7", "flashinfer")
B200 = replace(hardware_named("h200"), name="NVIDIA B200", key="b200", compute_capability=(10, 0))


class TestContract(EngineSpaceContract):
    name, made, cards = NAME, replace(CONTEXT, input_len=2000), ("a100", "h200")
    excluded = (
        ({"graph_max_batch": 64, "max_batch_size": 32}, "graphs-above-batch"),
        ({"speculative": "NGram"}, "drafts-without-number"),
        ({"max_num_tokens": 1024}, "prompt-above-tokens"),
        ({"max_num_tokens": 1024, "chunked_prefill": False}, "prompt-above-tokens"),
    )
    allowed = (
        {"max_batch_size": 32},
        {"graph_max_batch": 32, "max_batch_size": 32},
        {"max_num_tokens": 2048},
        {"max_num_tokens": 1024, "chunked_prefill": True},
    )


@pytest.fixture
def space() -> ResolvedSpace:
    return load_space(NAME).resolve(CONTEXT)


@pytest.mark.parametrize(
    ("config", "plain", "options"),
    [
        ({}, (), {}),
        (
            {"max_batch_size": 64, "max_num_tokens": 2048, "chunked_prefill": True},
            ("--max_batch_size", "64", "--max_num_tokens", "2048", "--enable_chunked_prefill"),
            {},
        ),
        ({"chunked_prefill": False, "overlap_scheduler": True, "cuda_graphs": True}, (), {}),
        ({"overlap_scheduler": False}, (), {"disable_overlap_scheduler": True}),
        (
            {"kv_memory_fraction": 0.85, "kv_cache_dtype": "fp8", "block_reuse": False, "tokens_per_block": 64},
            (),
            {
                "kv_cache_config": {
                    "free_gpu_memory_fraction": 0.85,
                    "enable_block_reuse": False,
                    "tokens_per_block": 64,
                    "dtype": "fp8",
                }
            },
        ),
        ({"cuda_graphs": False}, (), {"cuda_graph_config": None}),
        (
            {"cuda_graphs": True, "graph_max_batch": 64, "graph_padding": True},
            (),
            {"cuda_graph_config": {"max_batch_size": 64, "enable_padding": True}},
        ),
        (
            {"speculative": "NGram", "ngram_tokens": 8, "ngram_size": 3, "ngram_shared": False},
            (),
            {
                "speculative_config": {
                    "decoding_type": "NGram",
                    "max_draft_len": 8,
                    "max_matching_ngram_size": 3,
                    "is_public_pool": False,
                }
            },
        ),
        (
            {"chunked_prefill": True, "chunking_policy": "EQUAL_PROGRESS", "capacity_policy": "MAX_UTILIZATION"},
            ("--enable_chunked_prefill",),
            {
                "scheduler_config": {
                    "context_chunking_policy": "EQUAL_PROGRESS",
                    "capacity_scheduler_policy": "MAX_UTILIZATION",
                }
            },
        ),
        (
            {"attention_backend": "FLASHINFER", "postprocess_workers": 4},
            ("--num_postprocess_workers", "4"),
            {"attn_backend": "FLASHINFER"},
        ),
    ],
)
def test_a_configuration_renders_to_flags_and_options(
    space: ResolvedSpace, config: dict[str, ParameterValue], plain: tuple[str, ...], options: dict[str, object]
) -> None:
    assert space.violations(config) == []
    assert split_options(space.render(config).argv) == (plain, options)


def test_formats_that_the_card_lacks_and_kernels_that_are_not_installed_are_not_offered() -> None:
    def offered(context: Context, name: str) -> tuple[object, ...]:
        return values(load_space(NAME).resolve(context), name)

    assert offered(CONTEXT, "kv_cache_dtype") == (None, "fp8")
    assert offered(replace(CONTEXT, hardware=B200), "kv_cache_dtype") == (None, "fp8", "nvfp4")
    assert offered(replace(CONTEXT, hardware=hardware_named("a100")), "kv_cache_dtype") == ()
    assert offered(CONTEXT, "attention_backend") == (None, "FLASHINFER")
    assert offered(replace(CONTEXT, packages=frozenset()), "attention_backend") == ()


def test_an_option_of_the_user_s_own_fixes_its_parameter_and_no_other() -> None:
    space = load_space(NAME).resolve(replace(CONTEXT, base_argv=("--config.kv_cache_config.dtype", "fp8")))
    names = {each.name for each in space.parameters}
    assert "kv_cache_dtype" not in names
    assert {"kv_memory_fraction", "block_reuse", "cuda_graphs"} <= names
    assert space.fixed["kv_cache_dtype"] == "fp8"


def test_an_option_that_the_installation_lacks_is_not_offered() -> None:
    known = load_flags(FLAGS, "TensorRT-LLM")
    assert known is not None
    flags = known.names - {"--config.stream_interval"}
    space = load_space(NAME).resolve(replace(CONTEXT, flags=flags))
    assert reason(space, "stream_interval") == "TensorRT-LLM 1.3.0rc7 has no flag --config.stream_interval"


def test_the_sources_have_every_flag_option_and_value() -> None:
    flags = load_flags(FLAGS, "TensorRT-LLM")
    assert flags is not None
    context = replace(CONTEXT, hardware=B200, concurrency=5000, flags=flags.names)
    space = load_space(NAME).resolve(context)
    assert space.dropped == ()
    for parameter in space.parameters:
        drafts: dict[str, ParameterValue] = {"speculative": "NGram"} if parameter.name.startswith("ngram") else {}
        for value in parameter.values or (2,):
            argv = space.render({**drafts, parameter.name: value}).argv
            assert flags.problem(argv) is None
            split_options(argv)
