"""Steps of models with experts, latent attention, windows and recurrent layers; all values are worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces import ModelShape, hardware_named
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from tuner.engines.simulator.attention_time import AttentionTime
from tuner.engines.simulator.limits import Parallelism, shard_of, uneven_part
from tuner.engines.simulator.memory import activation_elements, find_weights
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config
from tuner.engines.simulator.step_time import StepTime, TokenWork, largest_of

EXPERTS = Experts(128, 8, 768)
ATTENTION = Attention(32, 4, 128)
PLAIN = ModelShape(48, 2048, 6144, 32, 4, 128, 151936, 40960, False, "bfloat16", None)
QWEN_30B = replace(PLAIN, decoder=(LayerGroup(48, ATTENTION, EXPERTS),))
ONE_EXPERT = 3 * 2048 * 768
H200 = hardware_named("h200")
# one share of the card's bandwidth and arithmetic for all that is read and multiplied
EVEN = replace(
    parameters_of("h200"),
    **dict.fromkeys(("expert_bandwidth_share", "expert_arithmetic_share", "latent_arithmetic_share"), 1.0),
    flash_attn_3_bandwidth_share=1.0,
)
BANDWIDTH, ARITHMETIC = 4800e9, 989e12


def config(*arguments: str, model: ModelShape = QWEN_30B, gpus: int = 1) -> ServeConfig:
    return resolve_serve_config(arguments, {}, model, H200, (0, 25, 1), frozenset(), gpus)


def routed(step: Step, *arguments: str, gpus: int = 1, parameters: Parameters = EVEN) -> float:
    """Return the seconds of the experts' products in a step."""
    made = config("--enforce-eager", *arguments, gpus=gpus)
    without = replace(made.model, decoder=(LayerGroup(48, ATTENTION, None),))
    plain = replace(made, model=without)
    return _weights(made, step, parameters) - _weights(plain, step, parameters)


def _weights(made: ServeConfig, step: Step, parameters: Parameters) -> float:
    time = StepTime(made, parameters)
    time.advance(step)
    return time.seconds["weights"]


def decodes(count: int, context: int = 0) -> Step:
    return Step(count, 0, count, count, context, 0.0)


def test_the_weights_of_a_mixture_are_those_that_vllm_loads() -> None:
    # vLLM 0.25.1 logs 56.88 GiB of Qwen3-30B-A3B in bfloat16 and 29.03 in FP8 on one H200, 28.46 on each of two
    for arguments, gpus, loaded in (
        ((), 1, 56.88),
        (("--quantization", "fp8"), 1, 29.03),
        (("-tp", "2"), 2, 28.46),
        (("-tp", "2", "--enable-expert-parallel"), 2, 28.46),
    ):
        made = config(*arguments, gpus=gpus)
        weights = find_weights(made, made.shard, None)
        assert weights.resident_bytes / 2**30 == pytest.approx(loaded, rel=0.002)


def test_tokens_choose_experts_by_themselves() -> None:
    assert EXPERTS.touched(1) == pytest.approx(8)
    assert EXPERTS.touched(2) == pytest.approx(15.5)  # 128 (1 - (120 / 128)²)
    assert Experts(32, 4, 10).touched(3) == pytest.approx(10.5625)  # 32 (1 - (7 / 8)³)


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    # 48 layers × 8 experts of 9,437,184 bytes at 4.8 TB/s; a group of 16 rows of each is multiplied
    one = 48 * 8 * 2 * ONE_EXPERT / BANDWIDTH
    rows = 48 * 8 * 16 * 2 * ONE_EXPERT / ARITHMETIC
    router = _router_seconds()
    assert routed(decodes(1)) - router == pytest.approx((one**2 + rows**2) ** 0.5, rel=0.01)
    assert routed(decodes(2)) - router == pytest.approx(15.5 / 8 * (one**2 + rows**2) ** 0.5, rel=0.01)


def test_bitsandbytes_writes_all_experts_in_16_bits_before_each_product() -> None:
    # 48 layers × 128 experts: of each weight, 0.52 bytes are read (4 bits and 4 % of scales) and two written
    made = config("--quantization", "bitsandbytes")
    assert StepTime(made, EVEN)._unpack_experts == pytest.approx(48 * 128 * 2.52 * ONE_EXPERT / BANDWIDTH)
    assert StepTime(config(), EVEN)._unpack_experts == 0.0
    # then the products read eight experts of 16 bits, as without
    assert StepTime(made, EVEN)._experts[0][1] == StepTime(config(), EVEN)._experts[0][1]


def _router_seconds() -> float:
    """The router's weights, 48 × 2048 × 128 of 16 bits, beside the attention's; its rest is the reader's share."""
    return 48 * 2048 * 128 * 2 / (BANDWIDTH * EVEN.bandwidth_share)


def test_two_gpus_halve_the_experts_by_their_size_or_their_number() -> None:
    whole = find_parts(Parallelism())
    assert find_parts(Parallelism(tensor=2)) == Experts(128, 8, 384)
    assert find_parts(Parallelism(tensor=2, whole_experts=True)) == Experts(64, 4.0, 768, elsewhere=4.0)
    assert find_parts(Parallelism(data=2)) == Experts(128, 8, 384)
    assert find_parts(Parallelism(tensor=2, data=2, whole_experts=True)) == Experts(32, 2.0, 768, elsewhere=6.0)
    assert whole == EXPERTS
    assert Experts(64, 4.0, 768).touched(48) == pytest.approx(EXPERTS.touched(48) / 2)


def find_parts(parallel: Parallelism) -> Experts:
    (group,) = shard_of(QWEN_30B, parallel).groups
    assert isinstance(group.mlp, Experts)
    return group.mlp


def test_a_step_waits_for_the_gpu_with_the_most_tokens() -> None:
    # Blom: the 0.853 quantile (4 - 0.375) / (4 + 0.25), for two GPUs the 0.722 quantile
    assert (largest_of(2), largest_of(4)) == pytest.approx((0.5895, 1.0491), abs=1e-4)
    # four GPUs of 32 experts, of which a token chooses two: 1 + 1.0491 (0.75 (0.72² / 32 + 1 / 2000))^0.5
    skewed = replace(EVEN, expert_skew=0.72)
    assert busiest(1000, skewed, "--enable-expert-parallel") == pytest.approx(1.1174, abs=1e-4)
    assert busiest(1000, skewed, "--enable-expert-parallel", "--load-format", "dummy") == pytest.approx(
        1.0203, abs=1e-4
    )
    assert busiest(1000, skewed) == 1.0


def busiest(tokens: int, parameters: Parameters, *arguments: str) -> float:
    """Return the load of the busiest of four GPUs over the mean."""
    made = config("-tp", "4", *arguments, gpus=4)
    (group,) = made.shard.groups
    assert isinstance(group.mlp, Experts)
    return StepTime(made, parameters)._busiest(group.mlp, tokens)


def test_element_wise_work_has_a_row_for_each_chosen_expert_wherever_it_is() -> None:
    # 48 layers of attention (2 h + 2 n d + 2 k d), a router's row of h, and 8 rows of 2 h + 3 × 768 numbers
    attention = 2 * 2048 + 2 * 32 * 128 + 2 * 4 * 128
    whole = activation_elements(config().model)
    assert whole == 48 * (attention + 2048 + 8 * (2 * 2048 + 3 * 768))
    part = activation_elements(config("-tp", "4", "--enable-expert-parallel", gpus=4).shard)
    own = 2 * 2048 + 2 * 8 * 128 + 2 * 128
    assert part == 48 * (own + 2048 + 8 * (2 * 2048 + 3 * 768))


def test_copies_of_a_model_share_its_experts_and_exchange_tokens() -> None:
    copies = StepTime(config("--data-parallel-size", "2", gpus=2), EVEN)
    copies.advance(decodes(32))
    assert copies.seconds["communication"] > 0
    dense = StepTime(config("--data-parallel-size", "2", gpus=2, model=PLAIN), EVEN)
    dense.advance(decodes(32))
    assert "communication" not in dense.seconds


@pytest.mark.parametrize(
    ("model", "parallel", "line"),
    [
        (QWEN_30B, Parallelism(tensor=2), None),
        (QWEN_30B, Parallelism(tensor=8), None),  # key-value heads are copied
        (QWEN_30B, Parallelism(tensor=3), "AssertionError: 32 is not divisible by 3"),
        (replace(QWEN_30B, decoder=(LayerGroup(1, ATTENTION, Experts(8, 2, 769)),)), Parallelism(tensor=2), "769 is"),
        (
            replace(QWEN_30B, decoder=(LayerGroup(1, ATTENTION, Experts(8, 2, 769)),)),
            Parallelism(tensor=2, whole_experts=True),
            None,
        ),
    ],
)
def test_parts_that_are_not_even_end_the_workers(model: ModelShape, parallel: Parallelism, line: str | None) -> None:
    found = uneven_part(model, parallel)
    assert found is None if line is None else found is not None and line in found


def test_random_weights_that_are_quantized_on_load_choose_the_same_experts() -> None:
    dummy = ("--load-format", "dummy")
    assert not config(*dummy).same_experts
    assert not config("--quantization", "fp8").same_experts
    assert config("--quantization", "fp8", *dummy).same_experts
    assert routed(decodes(48), "--quantization", "fp8", *dummy) < routed(decodes(48), "--quantization", "fp8") / 5


def test_a_window_bounds_what_decodes_read_and_prefills_compare() -> None:
    windowed = replace(PLAIN, decoder=(LayerGroup(1, Attention(32, 4, 128, window=1024), Mlp(64)),))
    full = replace(PLAIN, decoder=(LayerGroup(1, ATTENTION, Mlp(64)),))
    token = 2 * 4 * 128 * 2 / BANDWIDTH  # keys and values of 4 heads of 128 numbers of two bytes
    assert attention(full, decodes(2, 8000)) == pytest.approx(8000 * token)
    assert attention(windowed, decodes(2, 8000)) == pytest.approx(2 * 1024 * token)
    assert attention(windowed, decodes(2, 800)) == pytest.approx(800 * token)
    prompt = Step(0, 4096, 1, 1, 0, 4096 * 4097 / 2, decodes_only=False)
    assert attention(windowed, prompt) / attention(full, prompt) == pytest.approx(1024 / 2048.5)


def attention(model: ModelShape, step: Step) -> float:
    return float(AttentionTime(config(model=model), EVEN).seconds(step))


def test_latent_attention_reads_one_vector_of_a_token_and_compares_all_heads_with_it() -> None:
    latent = LatentAttention(16, None, 512, 128, 64, 128)
    model = replace(PLAIN, decoder=(LayerGroup(27, latent, Mlp(64)),))
    read = 576 * 2 / BANDWIDTH
    compared = 2 * 16 * (2 * 512 + 64) / ARITHMETIC
    assert attention(model, decodes(1, 1000)) == pytest.approx(27_000 * (read**2 + compared**2) ** 0.5)


def test_a_recurrent_layer_reads_and_writes_a_state_whatever_the_context() -> None:
    model = replace(PLAIN, decoder=(LayerGroup(24, Recurrent("mamba2", 10_000, 1_000_000, 30_000, 4), None),))
    state = 2 * (4_000_000 + 60_000) / (BANDWIDTH * EVEN.bandwidth_share)
    assert attention(model, decodes(3, 90_000)) == pytest.approx(24 * 3 * state)
    assert attention(model, decodes(3, 30)) == attention(model, decodes(3, 90_000))


def test_the_work_of_a_token_counts_the_experts_that_it_passes() -> None:
    made = config()
    weights = find_weights(made, made.model, None)
    work = TokenWork.of(made, weights)
    # 48 × (2048 × 128 × (2 × 32 + 2 × 4) + 2048 × 128 + 8 × 4,718,592) weights of a token, two FLOP each
    active = 48 * (2048 * 128 * 72 + 2048 * 128 + 8 * ONE_EXPERT)
    assert work.flops(1, 0, 0) == pytest.approx(2 * active)
    everything = 48 * (2048 * 128 * 73 + 15.5 * ONE_EXPERT) + 151936 * 2048
    assert work.bytes(1, 0, 2) == pytest.approx(2 * everything)


def test_the_experts_alone_of_an_mxfp4_checkpoint_have_four_bits(tmp_path: Path) -> None:
    written = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072,
        "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(written))
    made = config(model=ModelShape.from_file(tmp_path / "config.json"))
    weights = find_weights(made, made.shard, None)
    # vLLM 0.25.1 logs 13.02 GiB; it pads the experts' sizes, which is not counted
    assert weights.resident_bytes / 2**30 == pytest.approx(13.02, rel=0.02)
    assert (weights.kernels, weights.expert_kernels) == ("plain", "marlin")
    assert weights.linear_bytes == 2 * weights.linear
