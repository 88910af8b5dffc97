"""The memory estimate against sums by hand."""

import dataclasses

import pytest

from search_spaces import Context, ModelShape, ResolvedSpace, SpaceError, hardware_named, load_space
from search_spaces.memory import memory_need
from search_spaces.render import gpus_of
from tests.contracts.space_contract import QWEN
from tests.model_configs import CONFIG_7B


def test_the_weights_of_a_small_shape() -> None:
    tiny = ModelShape(1, 4, 8, 2, 1, 2, 10, 16, True, "bfloat16", None)
    linear = 4 * 4 + 2 * (4 * 2) + 4 * 4 + 3 * 4 * 8
    rest = 10 * 4 + 3 * 4
    assert tiny.weight_bytes(16) == 2 * (linear + rest) == 392
    assert tiny.weight_bytes(8) == linear + 2 * rest == 248
    assert tiny.weight_bytes(4) == linear // 2 + 2 * rest == 176
    assert tiny.weight_bytes(32) == 4 * (linear + rest)
    untied = dataclasses.replace(tiny, tied=False)
    assert untied.weight_bytes(16) - tiny.weight_bytes(16) == 2 * 40


def test_qwen_has_its_published_size() -> None:
    assert QWEN.weight_bytes(16) == 2 * 494_005_120
    assert QWEN.kv_bytes_per_token(2) == 12_288
    assert QWEN.kv_bytes_per_token(1) == 6_144


def test_the_parts_of_the_sum() -> None:
    need = memory_need(
        QWEN,
        weight_bits=16,
        kv_bits=16,
        max_model_len=1024,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        captured_sizes=9,
    )
    assert need.kv_cache == 1024 * 12_288
    assert need.activations == max(2048 * (2 * 4864 + 896) * 2, 256 * 151_936 * 4) == 155_582_464
    assert need.graphs == 9 * 2**20
    assert need.total_gib == pytest.approx((988_010_240 + 12_582_912 + 155_582_464 + 9_437_184) / 2**30)


def space(hardware: str, model: ModelShape, *base: str) -> ResolvedSpace:
    context = Context(
        hardware_named(hardware), "0.25.1", model=model, concurrency=50, base_argv=base, gpus=gpus_of(base)
    )
    return load_space("vllm").resolve(context)


def test_a_7b_model_does_not_fit_a_t4_in_16_bits() -> None:
    shape = ModelShape.from_config_json(CONFIG_7B)
    assert (shape.head_dim, shape.kv_heads, shape.tied, shape.quantization) == (128, 4, False, None)
    layer = 3584 * 128 * (2 * 28 + 2 * 4) + 3 * 3584 * 18944
    assert shape.weight_bytes(16) == 2 * (28 * layer + 2 * 152064 * 3584 + 57 * 3584) == 15_230_974_976
    (violation,) = space("t4", shape).violations({"max_model_len": 2048})
    assert violation.rule == "memory"
    assert "weights 14.18, KV cache of one sequence 0.11" in violation.message
    assert "13.40 of 14.56 GiB are available" in violation.message


def test_a_quantized_7b_model_fits() -> None:
    shape = ModelShape.from_config_json(CONFIG_7B)
    assert space("t4", shape).violations({"max_model_len": 2048, "quantization": "fp8"}) == []
    assert space("t4", shape, "--quantization", "fp8").violations({"max_model_len": 2048}) == []
    assert space("t4", shape, "--quantization", "other").violations({"max_model_len": 2048}) == []
    already = ModelShape.from_config_json({**CONFIG_7B, "quantization_config": {"quant_method": "awq"}})
    assert already.quantization == "awq"
    assert space("t4", already).violations({"max_model_len": 2048}) == []


def test_one_long_sequence_may_not_fit() -> None:
    long = dataclasses.replace(QWEN, max_position_embeddings=2_000_000)
    (violation,) = space("t4", long).violations({})
    assert "KV cache of one sequence 22.89" in violation.message
    assert space("t4", long).violations({"max_model_len": 32768}) == []
    assert space("h200", long).violations({}) == []


def test_there_is_no_estimate_where_a_value_sets_the_size_of_the_cache() -> None:
    long = dataclasses.replace(QWEN, max_position_embeddings=2_000_000)
    context = Context(hardware_named("t4"), "0.25.1", model=long, concurrency=50)
    resolved = load_space("vllm-extra").resolve(context, wanted={"kv_cache_memory_gib": None})
    assert [each.rule for each in resolved.violations({})] == ["memory"]
    assert [each.rule for each in resolved.violations({"kv_cache_memory_gib": 2})] == ["kv-cache-below-one-request"]


def test_a_sparse_latent_cache_may_have_8_bits() -> None:
    """4 layers × (576 + 132) bytes × 4,000,000 tokens: 10.55 GiB; in 16 bits they would be 19.13, and a T4 has 13.4."""
    config = {
        **{"model_type": "deepseek_v32", "num_hidden_layers": 4, "n_routed_experts": 0, "hidden_size": 64},
        **{"num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 1000, "max_position_embeddings": 4_000_000},
    }
    assert space("t4", ModelShape.from_config_json(config)).violations({}) == []
    (violation,) = space("t4", ModelShape.from_config_json({**config, "num_hidden_layers": 6})).violations({})
    assert "KV cache of one sequence 15.83" in violation.message


@pytest.mark.parametrize("flag", ["--language-model-only", "--limit-mm-per-prompt", "--mamba-ssm-cache-dtype"])
def test_what_a_server_may_leave_out_does_not_count(flag: str) -> None:
    """Weights of 12.6 GiB beside the decoder leave no room on a T4."""
    modal = dataclasses.replace(QWEN, beside=6_750_000_000)
    (violation,) = space("t4", modal).violations({})
    assert "weights 13.49" in violation.message
    assert space("t4", modal, flag, "x").violations({}) == []


def test_there_is_no_estimate_without_the_facts() -> None:
    long = dataclasses.replace(QWEN, max_position_embeddings=2_000_000)
    assert load_space("vllm").resolve(Context(hardware_named("t4"))).violations({}) == []
    assert space("cpu", long).violations({}) == []
    assert space("t4", long, "--kv-cache-memory-bytes", "8G").violations({}) == []
    assert space("t4", long, "--tensor-parallel-size=4").violations({}) == []


def test_a_config_without_a_key_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"config\.json lacks vocab_size"):
        ModelShape.from_config_json({key: value for key, value in CONFIG_7B.items() if key != "vocab_size"})
