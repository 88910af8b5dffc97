"""The space of llama.cpp: its contract, its rules, and that it names its engine."""

from dataclasses import replace

import pytest

from search_spaces import (
    ParameterValue,
    ResolvedSpace,
    SpaceError,
    hardware_named,
    load_space,
)
from search_spaces.loader import parse_space
from tests.contracts.space_contract import QWEN, EngineSpaceContract, engine_context, reason, values

SHORT = {"concurrency": 16, "input_len": 128, "output_len": 64}
CONTEXT = engine_context("llama.cpp", "cpu", "2026.10.11549", model=replace(QWEN, dtype="float16"), cores=4, **SHORT)


class TestContract(EngineSpaceContract):
    name, made, cards = "llama.cpp", CONTEXT, ("cpu", "h200")
    excluded = (
        # Eight slots of 1024 tokens together have 128 each; a request has 128 + 64.
        ({"parallel": 8, "ctx_size": 1024}, "slot-below-load"),
        # The shared cache of the four default slots must hold four requests of 192 tokens: 768.
        ({"parallel": 16, "kv_unified": True, "ctx_size": 2048}, "context-below-load"),
        ({"ubatch_size": 512, "batch_size": 256}, "ubatch-above-batch"),
        ({"batch_size": 256}, "ubatch-above-batch"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "quantized-values-without-flash-attention"),
        ({"batch_size": 32, "ubatch_size": 32, "parallel": 64}, "batch-below-slots"),
    )
    allowed = (
        {"parallel": 4, "ctx_size": 1024},
        {"parallel": 16, "kv_unified": True, "ctx_size": 4096},
        {"cache_type_k": "q8_0", "flash_attn": "off"},
        {"cache_type_v": "q8_0"},
        {"batch_size": 256, "ubatch_size": 256},
    )


@pytest.fixture
def space() -> ResolvedSpace:
    return load_space("llama.cpp").resolve(CONTEXT)


def test_a_space_of_ones_own_names_its_engine() -> None:
    text = "engine: llama.cpp\nparameters: {poll: {description: A., type: int, low: 0, high: 9, flag: --poll}}\n"
    assert parse_space(text).engine == "llama.cpp"


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({}, ()),
        ({"parallel": 8, "ctx_size": 2048}, ("--parallel", "8", "--ctx-size", "2048")),
        ({"parallel": 4, "kv_unified": False}, ("--parallel", "4", "--no-kv-unified")),
        ({"flash_attn": "off", "cont_batching": False}, ("--flash-attn", "off", "--no-cont-batching")),
        ({"cache_type_k": "q8_0", "poll": 0}, ("--poll", "0", "--cache-type-k", "q8_0")),
        (
            {"speculative": "ngram-simple", "ngram_simple_n": 4, "ngram_simple_m": 8},
            (
                *("--spec-type", "ngram-simple"),
                *("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8"),
            ),
        ),
    ],
)
def test_a_configuration_renders_to_llama_server_s_flags(
    space: ResolvedSpace, config: dict[str, ParameterValue], argv: tuple[str, ...]
) -> None:
    assert space.violations(config) == []
    assert space.render(config).argv == argv


def test_the_cores_limit_the_threads(space: ResolvedSpace) -> None:
    assert values(space, "threads") == (None, 1, 2, 3, 4)


def test_a_head_that_is_no_multiple_of_a_block_has_no_quantized_cache() -> None:
    space = load_space("llama.cpp").resolve(replace(CONTEXT, model=replace(QWEN, head_dim=80)))
    assert not {"cache_type_k", "cache_type_v"} & {parameter.name for parameter in space.parameters}
    with pytest.raises(SpaceError):
        space.complete({"cache_type_k": "q8_0"})


def test_a_flag_that_an_older_server_lacks_is_not_offered() -> None:
    space = load_space("llama.cpp").resolve(replace(CONTEXT, engine_version="6000", flags=frozenset({"--parallel"})))
    assert [parameter.name for parameter in space.parameters] == ["parallel"]
    assert reason(space, "poll") == "llama.cpp 6000 has no flag --poll"


def test_a_model_that_does_not_fit_on_the_card_is_not_refused() -> None:
    """llama.cpp leaves layers that do not fit on the CPU; the estimate of memory is vLLM's."""
    large = replace(QWEN, layers=200, hidden=16384, intermediate=65536)
    context = replace(CONTEXT, hardware=hardware_named("t4"), model=large)
    assert load_space("llama.cpp").resolve(context).violations({}) == []
    assert [each.rule for each in load_space("vllm").resolve(replace(context, engine="vLLM")).violations({})] == [
        "memory"
    ]
