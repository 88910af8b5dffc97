"""The space of SGLang: its contract, its rules, and its defaults on a card."""

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces import Context, ModelShape, ParameterValue, ResolvedSpace, hardware_named, load_space
from tests.contracts.space_contract import QWEN, EngineSpaceContract, engine_context, values
from tuner.engines.server.flags import load_flags

FLAGS = Path(__file__).parents[2] / "data" / "sglang_flags"

CONTEXT = engine_context("sglang", "h200", "0.5.17", "flashinfer", "sgl_kernel")


class TestContract(EngineSpaceContract):
    name, made, cards = "sglang", CONTEXT, ("t4", "h200")
    excluded = (
        ({"schedule_policy": "lpm", "radix_cache": False}, "cached-order-without-cache"),
        ({"mixed_chunk": True, "chunked_prefill_size": -1}, "mixed-chunk-without-chunks"),
        ({"mixed_chunk": True, "speculative": "NGRAM"}, "mixed-chunk-with-drafts"),
        ({"graph_max_requests": 64, "max_running_requests": 32}, "graphs-above-requests"),
        ({"speculative": "NGRAM", "page_size": 16, "attention_backend": "triton"}, "tree-with-pages"),
    )
    allowed = (
        {"schedule_policy": "lof", "radix_cache": False},
        {"max_running_requests": 32},
        {"graph_max_requests": 32, "max_running_requests": 32},
        {"speculative": "NGRAM", "page_size": 16, "attention_backend": "flashinfer"},
        {"speculative": "NGRAM", "page_size": 16, "ngram_breadth": 1},
    )


@pytest.fixture
def space() -> ResolvedSpace:
    return load_space("sglang").resolve(CONTEXT)


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({}, ()),
        (
            {"mem_fraction_static": 0.9, "max_running_requests": 64},
            ("--mem-fraction-static", "0.9", "--max-running-requests", "64"),
        ),
        (
            {"chunked_prefill_size": -1, "overlap_schedule": False},
            ("--chunked-prefill-size", "-1", "--disable-overlap-schedule"),
        ),
        ({"radix_cache": False, "decode_graphs": False}, ("--disable-radix-cache", "--disable-decode-cuda-graph")),
        ({"mixed_chunk": True}, ("--enable-mixed-chunk",)),
        (
            {"attention_backend": "triton", "sampling_backend": "pytorch"},
            ("--attention-backend", "triton", "--sampling-backend", "pytorch"),
        ),
        (
            {"kv_cache_dtype": "fp8_e5m2", "quantization": "fp8"},
            ("--kv-cache-dtype", "fp8_e5m2", "--quantization", "fp8"),
        ),
        (
            {"speculative": "NGRAM", "ngram_tokens": 8, "ngram_breadth": 1},
            (
                *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
                *("--speculative-ngram-max-bfs-breadth", "1"),
            ),
        ),
    ],
)
def test_a_configuration_renders_to_sglang_s_flags(
    space: ResolvedSpace, config: dict[str, ParameterValue], argv: tuple[str, ...]
) -> None:
    assert space.violations(config) == []
    assert space.render(config).argv == argv


@pytest.mark.parametrize(
    ("card", "version", "chunk", "requests"),
    [
        ("t4", "0.5.17", 2048, 8),
        ("l4", "0.5.19", 2048, 24),
        ("l4", "0.5.20", 4096, 48),
        ("l4", None, None, None),  # they depend on the version
        ("h100", "0.5.17", 8192, 256),
        ("h200", "0.5.23", 8192, 256),
    ],
)
def test_the_defaults_of_a_card_are_those_that_sglang_computes(
    card: str, version: str | None, chunk: int | None, requests: int | None
) -> None:
    context = replace(CONTEXT, hardware=hardware_named(card), engine_version=version)
    known = load_space("sglang").resolve(context).known_defaults()
    assert (known.get("chunked_prefill_size"), known.get("graph_max_requests")) == (chunk, requests)


@pytest.mark.parametrize(
    ("card", "version", "requests"),
    [("t4", "0.5.17", 8), ("l4", "0.5.17", 80), ("l4", "0.5.23", 160), ("h100", "0.5.17", 512)],
)
def test_four_gpus_that_share_layers_have_more_graphs(card: str, version: str, requests: int) -> None:
    hardware = hardware_named(card)
    context = replace(CONTEXT, hardware=hardware, engine_version=version, gpus=4, base_argv=("--tp-size", "4"))
    assert load_space("sglang").resolve(context).known_defaults()["graph_max_requests"] == requests


def test_shapes_are_those_that_a_trial_s_gpus_and_the_model_allow() -> None:
    def offered(gpus: int, model: ModelShape) -> dict[str, tuple[object, ...]]:
        space = load_space("sglang").resolve(replace(CONTEXT, gpus=gpus, model=model))
        return {each.name: each.values for each in space.parameters if each.name.endswith("_parallel_size")}

    assert offered(1, QWEN) == {}
    assert offered(4, QWEN) == {  # 14 heads
        "tensor_parallel_size": (None, 2),
        "pipeline_parallel_size": (None, 2, 4),
        "data_parallel_size": (None, 2, 4),
    }
    assert offered(8, replace(QWEN, heads=32, kv_heads=8))["tensor_parallel_size"] == (None, 2, 4, 8)


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, []),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4}, ["more-gpus-than-a-trial-has"]),
        ({"pipeline_parallel_size": 2, "speculative": "NGRAM"}, ["drafts-with-stages"]),
        ({"data_parallel_size": 2, "speculative": "NGRAM"}, []),
    ],
)
def test_a_rule_knows_the_gpus_of_a_trial(config: dict[str, ParameterValue], rules: list[str]) -> None:
    space = load_space("sglang").resolve(replace(CONTEXT, gpus=4))
    assert [violation.rule for violation in space.violations(config)] == rules


def test_copies_of_the_attention_alone_add_no_gpus() -> None:
    fixed = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
    space = load_space("sglang").resolve(replace(CONTEXT, gpus=2, base_argv=fixed))
    assert space.violations({}) == []
    assert "data_parallel_size" not in [each.name for each in space.parameters]


def test_stages_run_without_the_overlap_that_sglang_turns_off_with_them() -> None:
    space = load_space("sglang").resolve(replace(CONTEXT, gpus=2))
    assert space.render({"pipeline_parallel_size": 2, "overlap_schedule": False}).argv == (
        "--pipeline-parallel-size",
        "2",
    )


def test_kernels_that_the_card_or_the_installation_lacks_are_not_offered() -> None:
    def backends(context: Context) -> tuple[object, ...]:
        return values(load_space("sglang").resolve(context), "attention_backend")

    assert backends(CONTEXT) == (None, "fa3", "flashinfer", "triton")
    assert backends(replace(CONTEXT, hardware=hardware_named("t4"))) == (None, "flashinfer", "triton")
    assert backends(replace(CONTEXT, packages=frozenset())) == (None, "triton")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
def test_sglang_s_own_parser_takes_every_value(version: str) -> None:
    flags = load_flags(FLAGS / f"{version}.json", "SGLang")
    assert flags is not None
    space = load_space("sglang").resolve(replace(CONTEXT, concurrency=5000, flags=flags.names, gpus=8))
    dropped = [each.parameter for each in space.dropped if each.value is None]
    assert [name for name in dropped if not name.startswith("named:")] == []
    for parameter in space.parameters:
        drafts: dict[str, ParameterValue] = {"speculative": "NGRAM"} if parameter.name.startswith("ngram") else {}
        for value in parameter.values or (2,):
            assert flags.problem(space.render({**drafts, parameter.name: value}).argv) is None
