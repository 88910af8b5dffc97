"""The time of a step: monotonic in work and hardware, and fully accounted for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import hardware_named, known_models
from tests.unit.engines.simulator.helpers import ARGUMENTS, SMALL, config
from tuner.engines.simulator.attention_time import Reach
from tuner.engines.simulator.cuda_graphs import LaunchMode
from tuner.engines.simulator.memory import find_weights
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.serve_config import resolve_serve_config
from tuner.engines.simulator.step_time import StepTime


@settings(max_examples=100, deadline=None)
@given(
    decode=st.integers(0, 300),
    prefill=st.integers(0, 2048),
    context=st.integers(0, 10**6),
    factor=st.floats(1.0, 4.0),
    arguments=ARGUMENTS,
)
def test_more_bandwidth_or_arithmetic_is_never_slower(
    decode: int, prefill: int, context: int, factor: float, arguments: tuple[str, ...]
) -> None:
    serve_config = config(*arguments)
    card = serve_config.card
    more = replace(card, bandwidth_gbs=(card.bandwidth_gbs or 0) * factor)
    stronger = replace(card, tflops={name: value * factor for name, value in card.tflops.items()})
    work = Step(decode, prefill, decode + 1, decode + 1, context, 50.0 * prefill, decodes_only=not prefill)
    slow, wide, strong = (
        StepTime(replace(serve_config, card=each), parameters_of("t4")).advance(work) for each in (card, more, stronger)
    )
    assert wide <= slow
    assert strong <= slow


def test_a_larger_step_never_takes_less_time() -> None:
    time = StepTime(config("--enforce-eager"), parameters_of("t4"))
    taken = [time.advance(Step(n, 0, n, n, 600 * n, 0.0)) for n in range(1, 257)]
    assert taken == sorted(taken)


def test_the_causes_of_a_steps_time_add_up() -> None:
    time = StepTime(config("--no-async-scheduling"), parameters_of("t4"))
    whole = sum(time.advance(Step(50, 0, 50, 50, 40_000, 0.0)) for _ in range(3))
    assert sum(time.seconds.values()) == pytest.approx(whole)
    assert time.config.graphs.launch(50, decodes_only=True) is LaunchMode.FULL


def seconds(work: Step, *arguments: str, card: str = "h200", model: str = SMALL, packages: frozenset[str]) -> float:
    version = (0, 25, 1) if card == "h200" else (0, 15, 1)
    shape, hardware = known_models()[model], hardware_named(card)
    made = resolve_serve_config(arguments, {}, shape, hardware, version, packages)
    return StepTime(made, parameters_of(card)).advance(work)


DECODES = Step(50, 0, 50, 50, 40_000, 0.0)
PROMPT = Step(0, 1000, 1, 1, 0, 500_000.0, decodes_only=False)
DEEP_GEMM, NOTHING = frozenset({"deep_gemm"}), frozenset[str]()


@pytest.mark.parametrize("work", [DECODES, PROMPT])
def test_fp8_by_blocks_is_slow_only_in_bfloat16_without_deep_gemm(work: Step) -> None:
    model, blocks = "Qwen/Qwen2.5-7B-Instruct", ("--quantization", "fp8_per_block")
    fp8 = seconds(work, "--quantization", "fp8", model=model, packages=NOTHING)
    assert seconds(work, *blocks, model=model, packages=DEEP_GEMM) == pytest.approx(fp8)
    assert seconds(work, *blocks, model=model, packages=NOTHING) > 1.2 * fp8
    assert seconds(work, *blocks, "--dtype", "float16", model=model, packages=NOTHING) == pytest.approx(fp8)


@pytest.mark.parametrize(
    ("card", "version", "packages", "kernels"),
    [
        ("h200", (0, 25, 1), DEEP_GEMM, "native"),
        ("h200", (0, 32, 0), NOTHING, "blocks"),
        ("b200", (0, 25, 1), NOTHING, "native"),  # CUTLASS's
        ("rtxpro6000", (0, 32, 0), NOTHING, "native"),
        ("l40s", (0, 25, 1), DEEP_GEMM, "blocks"),  # Triton's
        ("l40s", (0, 32, 0), DEEP_GEMM, "marlin"),
        ("a100", (0, 32, 0), NOTHING, "marlin"),
    ],
)
def test_the_kernels_of_fp8_by_blocks(
    card: str, version: tuple[int, ...], packages: frozenset[str], kernels: str
) -> None:
    words = ("--quantization", "fp8_per_block")
    made = resolve_serve_config(words, {}, known_models()[SMALL], hardware_named(card), version, packages)
    assert find_weights(made, made.model, None).kernels == kernels


def test_tritons_attention_costs_launches_unless_the_whole_step_is_a_graph() -> None:
    triton, no_context = ("--attention-backend", "TRITON_ATTN"), DECODES._replace(context=0)
    for mode, is_slower in (("FULL", False), ("PIECEWISE", True), ("NONE", True)):
        graphs = ("--compilation-config", f'{{"cudagraph_mode": "{mode}"}}')
        own = seconds(no_context, *graphs, packages=NOTHING)
        assert (seconds(no_context, *graphs, *triton, packages=NOTHING) > own) is is_slower


def test_a_cache_with_scales_by_head_is_read_more_slowly_than_a_16_bit_one() -> None:
    triton, work = ("--attention-backend", "TRITON_ATTN"), DECODES._replace(context=400_000)
    own, fp8, scaled = (
        seconds(work, *triton, "--kv-cache-dtype", kind, packages=NOTHING)
        for kind in ("auto", "fp8", "int8_per_token_head")
    )
    assert fp8 < own < scaled


def test_awqs_own_kernel_takes_as_long_for_a_part_of_a_group_of_16_tokens_as_for_all() -> None:
    awq = ("--quantization", "awq", "--enforce-eager")

    def weights(tokens: int) -> float:
        made = config(*awq, model="TheBloke/Llama-2-7B-AWQ")
        time = StepTime(made, parameters_of("t4"))
        time.advance(Step(tokens, 0, tokens, 0, 0, 0.0))
        return time.seconds["weights"]

    assert weights(1) == pytest.approx(weights(16))
    assert weights(17) == pytest.approx(weights(32))
    assert weights(17) > weights(16)


def test_flexattention_builds_a_mask_in_every_step() -> None:
    flex = ("--attention-backend", "FLEX_ATTENTION")
    added = seconds(DECODES, *flex, packages=NOTHING) - seconds(DECODES, packages=NOTHING)
    assert added > 0.01


MARLIN = replace(
    parameters_of("h200"),
    **{"kernel_us": 0.0, "fused_passes": 0.0, "sampling_passes": 0.0, "bandwidth_share": 1e9},
    **{"marlin_arithmetic_factor": 0.8, "marlin_8_bit_factor": 0.5, "marlin_hopper_factor": 0.25},
)
"""Only arithmetic takes time on the card."""


def arithmetic_s(card: str, quantization: str, bits: int, version: tuple[int, ...], *arguments: str) -> float:
    """Return the seconds of the layers' matrices in a step of 2,000 tokens with a quantized checkpoint."""
    shape = replace(known_models()["Qwen/Qwen2.5-7B-Instruct"], quantization=quantization, weight_bits=bits)
    made = resolve_serve_config(arguments, {}, shape, hardware_named(card), version, frozenset())
    time = StepTime(made, MARLIN)
    time.advance(Step(0, 2000, 0, 0, 0, 0.0, decodes_only=False))
    return time.seconds["weights"]


def plain_s(card: str) -> float:
    made = config(card=card, model="Qwen/Qwen2.5-7B-Instruct")
    time = StepTime(made, MARLIN)
    time.advance(Step(0, 2000, 0, 0, 0, 0.0, decodes_only=False))
    return time.seconds["weights"]


@pytest.mark.parametrize(
    ("card", "quantization", "bits", "version", "factor"),
    [
        ("a100", "awq", 4, (0, 25, 1), 0.8),
        ("a100", "gptq", 8, (0, 15, 1), 0.8 * 0.5),
        ("l40s", "awq", 4, (0, 25, 1), 0.8),
        ("h100", "awq", 4, (0, 15, 1), 0.8 * 0.25),
        ("h100", "awq", 4, (0, 25, 1), 0.8),
        ("h100", "gptq", 4, (0, 15, 1), 0.8),
        ("h100", "gptq", 8, (0, 15, 1), 0.8 * 0.5),
    ],
)
def test_marlin_is_slow_with_8_bit_weights_and_on_hopper_where_machete_does_not_replace_it(
    card: str, quantization: str, bits: int, version: tuple[int, ...], factor: float
) -> None:
    assert plain_s(card) / arithmetic_s(card, quantization, bits, version) == pytest.approx(factor, rel=1e-3)


def test_a_card_without_fp8_arithmetic_multiplies_fp8_weights_with_marlin() -> None:
    fp8_s = arithmetic_s("a100", "fp8", 8, (0, 25, 1), "--quantization", "fp8")
    assert plain_s("a100") / fp8_s == pytest.approx(0.8 * 0.5, rel=1e-3)


def attention_s(card: str, step: Step, *arguments: str) -> float:
    time = StepTime(config(*arguments, card=card, version=(0, 25, 1)), parameters_of(card))
    time.advance(step)
    return time.seconds["attention"]


def test_a_decode_beside_a_prompt_fills_a_tile_of_flash_attention_2() -> None:
    alone, beside = Step(100, 0, 100, 100, 50_000, 0.0), Step(100, 1, 100, 100, 50_000, 0.0, decodes_only=False)
    parameters, card = parameters_of("a100"), hardware_named("a100")
    # 24 layers, 2 key-value heads and 14 heads of 64 numbers; 50,000 tokens of context
    read = 50_000 * 2 * 24 * 2 * 64 * 2 / (2039e9 * parameters.flash_attn_2_bandwidth_share)
    tiles = 50_000 * 43 * 4 * 14 * 64 * 24 / (card.tflops["float16"] * 1e12 * parameters.attention_arithmetic_share)
    assert attention_s("a100", alone) == pytest.approx(read)
    assert attention_s("a100", beside) == pytest.approx(tiles)
    assert tiles > read
    assert attention_s("h100", beside) == pytest.approx(attention_s("h100", alone))


def test_an_fp8_cache_saves_less_than_half_of_the_time_of_flash_attention_3() -> None:
    step = Step(100, 0, 100, 100, 50_000, 0.0)
    both = [attention_s("h100", step, "--kv-cache-dtype", each) for each in ("auto", "fp8")]
    assert both[1] / both[0] == pytest.approx(0.5 / 0.64)


def test_a_token_sees_half_a_chunk_on_average_and_a_whole_window() -> None:
    everything, window, chunk = Reach(), Reach(8192), Reach(8192, chunked=True)
    # 4 decodes with 20,000 tokens of context each; a prompt of 16,384 tokens has 16,384² / 2 pairs in all
    assert [reach.read(80_000, 4) for reach in (everything, window, chunk)] == [80_000, 4 * 8192, 4 * 4096]
    pairs = 16_384**2 / 2
    assert [reach.compared(pairs, 16_384) for reach in (everything, window, chunk)] == [pairs, pairs, pairs / 2]
    # a context within one chunk, or one window, is seen as a whole
    assert [reach.read(8_000, 1) for reach in (window, chunk)] == [8_000, 8_000]
