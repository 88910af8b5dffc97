"""Models that are no plain dense decoder: each is named by its key, and the memory rule counts only what is certain.

Shapes are published ones, written small. Bytes are worked out beside each value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import Context, ModelShape, SpaceError, hardware_named, load_space
from search_spaces.catalogue.model_config import CacheLayers
from tests.unit.search_spaces.test_memory import CONFIG_7B

GIB = 2**30
SMALL = {**CONFIG_7B, "model_type": "llama"}
FIVE_TO_ONE = (["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2
GEMMA_27B = {
    **{"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62},
    **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208},
    **{"max_position_embeddings": 131072, "sliding_window": 1024, "layer_types": FIVE_TO_ONE},
}
QWEN_27B = {
    **{"model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64},
    **{"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320},
    **{"max_position_embeddings": 262144, "full_attention_interval": 4},
}
DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61},
    **{"num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256},
    **{"max_position_embeddings": 163840, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
}


def read(config: dict[str, Any], **outer: Any) -> ModelShape:
    return ModelShape.from_config_json({"text_config": config, **outer} if outer else config)


@pytest.mark.parametrize(
    ("change", "kind", "key"),
    [
        ({"num_local_experts": 8}, "a mixture of experts", "num_local_experts 8"),
        ({"num_experts": 128, "model_type": "qwen3_moe"}, "a mixture of experts", "num_experts 128"),
        ({"n_routed_experts": 64, "kv_lora_rank": 512}, "a mixture of experts", "n_routed_experts 64"),
        ({"moe_num_experts": 64, "model_type": "ernie4_5_moe"}, "a mixture of experts", "moe_num_experts 64"),
        ({"num_local_experts": 16, "model_type": "llama4_text"}, "a mixture of experts", "num_local_experts 16"),
        ({"num_local_experts": 32, "model_type": "gpt_oss"}, "a mixture of experts", "num_local_experts 32"),
        ({"kv_lora_rank": 256, "model_type": "minicpm3"}, "multi-head latent attention (MLA)", "kv_lora_rank 256"),
        ({"block_configs": [{}, {}], "model_type": "nemotron-nas"}, "a model whose layers differ", "block_configs"),
        (
            {"hybrid_override_pattern": "M-M*-", "model_type": "nemotron_h"},
            "a hybrid of attention and Mamba",
            "hybrid_override_pattern M-M*-",
        ),
        ({"attn_layer_period": 8, "model_type": "jamba"}, "a hybrid of attention and Mamba", "attn_layer_period 8"),
        ({"attn_layer_indices": [9], "model_type": "bamba"}, "a hybrid of attention and Mamba", "attn_layer_indices"),
        ({"mamba_d_state": 256, "model_type": "falcon_h1"}, "a model with Mamba layers", "mamba_d_state 256"),
        (
            {"linear_attn_config": {"full_attn_layers": [4]}, "model_type": "kimi_linear"},
            "a hybrid of full and linear attention",
            "linear_attn_config",
        ),
        ({"full_attention_interval": 4}, "a hybrid of full and linear attention", "full_attention_interval 4"),
        (
            {"layer_types": ["conv", "full_attention"] * 14, "model_type": "lfm2"},
            "a model with layers of another kind",
            "layer_types conv",
        ),
        ({"num_kv_shared_layers": 10, "model_type": "gemma3n_text"}, "a KV cache that layers share", "10"),
        ({"attention_chunk_size": 8192}, "chunked attention", "attention_chunk_size 8192"),
        ({"cross_attention_layers": [3, 8], "model_type": "mllama"}, "cross-attention", "cross_attention_layers"),
        ({"is_encoder_decoder": True, "model_type": "t5"}, "an encoder-decoder", "is_encoder_decoder True"),
        ({"n_routed_experts": 128, "layers_block_type": ["mamba", "moe"]}, "a mixture of experts", "n_routed_experts"),
        ({"layers_block_type": ["mamba"] * 40, "model_type": "zamba2"}, "a hybrid of attention and Mamba", "layers_"),
        ({"num_experts": 1, "attn_layer_period": 14, "model_type": "jamba"}, "a hybrid of attention and Mamba", "14"),
        ({"model_type": "nemotron"}, "a model of this type", "model_type nemotron"),
        ({"model_type": "starcoder2"}, "a model of this type", "model_type starcoder2"),
        ({"model_type": "phi"}, "a model of this type", "model_type phi"),
        ({"model_type": "falcon"}, "a model of this type", "model_type falcon"),
        ({"model_type": "gemma4_text"}, "a model of this type", "model_type gemma4_text"),
        ({"sliding_window": 4096}, "sliding-window attention", "sliding_window 4096"),
        ({"model_type": "mistral"}, "sliding-window attention", "sliding_window 4096"),
        ({"model_type": "gemma2", "head_dim": 256}, "sliding-window attention", "sliding_window 4096"),
        ({"vision_config": {"hidden_size": 1280}}, "a multimodal model", "vision_config"),
        ({"quantization_config": {"quant_method": "torchao"}}, "this quantization", "quant_method torchao"),
        ({"quantization_config": {"quant_method": "aqlm", "nbits_per_codebook": 16}}, "this quantization", "aqlm"),
        ({"quantization_config": {"group_size": 128}}, "this quantization", "without quant_method"),
    ],
)
def test_what_is_not_read_is_named(change: dict[str, Any], kind: str, key: str) -> None:
    unread = ModelShape.from_config_json({**SMALL, **change}).unread
    assert unread is not None
    assert unread.kind == kind
    assert key in unread.key


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "phi3", "sliding_window": 262144},
        {"model_type": "qwen3", "head_dim": 128, "layer_types": ["full_attention"] * 28},
        {"model_type": "hunyuan_v1_dense", "num_experts": 1},
        {"num_local_experts": 0, "is_encoder_decoder": False, "vision_config": None},
    ],
)
def test_a_plain_decoder_is_read(change: dict[str, Any]) -> None:
    shape = ModelShape.from_config_json({**SMALL, **change})
    assert (shape.unread, shape.cache, shape.has_known_weights, shape.experts) == (None, None, True, 0)


def test_the_windows_of_gemma_3_27b_hold_1024_tokens() -> None:
    # 10 full layers × 131,072 + 52 windows × 1,024 = 1,363,968 places of 2 × 16 × 128 × 2 = 8,192 bytes: 10.41 GiB
    shape = read(GEMMA_27B, vision_config={"hidden_size": 1152}, model_type="gemma3")
    assert shape.cache == CacheLayers(10, 52, 1024)
    assert shape.least_kv_bytes(131072, 2) == 1_363_968 * 8192
    assert shape.least_kv_bytes(131072, 2) / GIB == pytest.approx(10.41, abs=0.005)
    assert shape.least_kv_bytes(512, 2) == 62 * 512 * 8192
    assert shape.unread is not None
    assert shape.unread.key == "sliding_window 1024"


@pytest.mark.parametrize(
    ("config", "cache"),
    [
        ({"sliding_window_pattern": 6}, CacheLayers(10, 52, 1024)),  # 62 // 6
        ({"_sliding_window_pattern": 2}, CacheLayers(31, 31, 1024)),
        ({"sliding_window_pattern": "LLLG"}, CacheLayers(0, 62, 1024)),  # not counted: only the windows are certain
        ({}, CacheLayers(0, 62, 1024)),
        ({"sliding_window": 131072, "layer_types": FIVE_TO_ONE}, None),  # a window as long as the context
        ({"layer_types": ["mamba"] * 60 + ["full_attention"] * 2}, CacheLayers(2, 0, 1024)),
        ({"num_kv_shared_layers": 20, "layer_types": FIVE_TO_ONE}, CacheLayers(0)),
        ({"model_type": "gemma4_text", "layer_types": FIVE_TO_ONE}, CacheLayers(0)),
    ],
)
def test_layers_are_counted_as_far_as_the_file_says(config: dict[str, Any], cache: CacheLayers | None) -> None:
    plain = {key: value for key, value in GEMMA_27B.items() if key != "layer_types"}
    assert ModelShape.from_config_json({**plain, **config}).cache == cache


def test_a_hybrid_s_cache_has_its_attention_layers() -> None:
    # 64 / 4 = 16 attention layers × 2 × 4 × 256 × 2 = 65,536 bytes of a token
    by_interval = ModelShape.from_config_json(QWEN_27B)
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 16
    for shape in (by_interval, ModelShape.from_config_json({**QWEN_27B, "layer_types": kinds})):
        assert shape.least_kv_bytes(1, 2) == 65_536
        assert not shape.has_known_weights


def test_a_latent_cache_has_one_vector() -> None:
    # 61 layers × (512 + 64) × 2 bytes = 70,272 bytes of a token
    shape = ModelShape.from_config_json(DEEPSEEK_V3)
    assert shape.least_kv_bytes(1, 2) == 70_272
    assert shape.experts == 256


@pytest.mark.parametrize(
    ("config", "card"),
    [
        # 51 GiB of weights and 10.4 of cache of 73.4; counted as full attention, the cache alone would be 62.0 GiB
        ({**GEMMA_27B, "tie_word_embeddings": True}, "h100"),
        (QWEN_27B, "h100"),
        (DEEPSEEK_V3, "h200"),
        ({**SMALL, "model_type": "gemma4_text", "num_hidden_layers": 400}, "t4"),
        ({**SMALL, "num_hidden_layers": 400, "quantization_config": {"quant_method": "vptq"}}, "h100"),
    ],
)
def test_no_configuration_is_ruled_out_by_what_is_not_read(config: dict[str, Any], card: str) -> None:
    shape = ModelShape.from_config_json(config)
    space = load_space("vllm").resolve(Context(hardware_named(card), "0.25.1", model=shape, concurrency=8))
    assert space.violations({}) == []


def test_the_certain_part_still_rules_out() -> None:
    # 70,272 bytes × 163,840 tokens = 10.7 GiB, and a T4 has 13.4
    space = load_space("vllm")
    context = Context(hardware_named("t4"), "0.25.1", model=ModelShape.from_config_json(DEEPSEEK_V3), concurrency=8)
    assert space.resolve(context).violations({}) == []
    long = replace(context, model=ModelShape.from_config_json({**DEEPSEEK_V3, "max_position_embeddings": 327680}))
    (violation,) = space.resolve(long).violations({})
    assert "weights 0.00, KV cache of one sequence 21.45" in violation.message


@pytest.mark.parametrize(
    "arguments", [("--max-model-len", "-1"), ("--max-model-len", "auto"), ("--hf-overrides", "{}")]
)
def test_a_length_that_vllm_fits_itself_rules_out_nothing(arguments: tuple[str, ...]) -> None:
    long = ModelShape.from_config_json({**SMALL, "num_hidden_layers": 4, "max_position_embeddings": 10_000_000})
    context = Context(hardware_named("t4"), "0.25.1", model=long, concurrency=8, base_argv=arguments)
    assert load_space("vllm").resolve(context).violations({}) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**SMALL, "num_attention_heads": None}, "config.json lacks num_attention_heads; write the key"),
        ({**SMALL, "model_type": "gemma"}, "config.json lacks head_dim; write the key"),
        (
            {key: value for key, value in GEMMA_27B.items() if key != "num_key_value_heads"},
            "config.json lacks num_key_value_heads, and has sliding_window 1024 (sliding-window attention)",
        ),
        (
            {**SMALL, "model_type": "nemotron-nas", "block_configs": [{}], "intermediate_size": None},
            "a model whose layers differ is not simulated (block_configs in config.json); give a dense decoder's",
        ),
        (
            {**SMALL, "n_routed_experts": 512, "num_hidden_layers": None},
            "a mixture of experts is not simulated (n_routed_experts 512 in config.json); give a dense decoder's",
        ),
        (
            {**SMALL, "model_type": "gemma3n_text", "intermediate_size": [8192, 16384], "num_kv_shared_layers": 15},
            "a KV cache that layers share is not simulated (num_kv_shared_layers 15 in config.json); give a dense",
        ),
        (
            {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128},
            "a model of this type is not simulated (model_type mamba2 in config.json); give a dense decoder's",
        ),
        ({**SMALL, "num_hidden_layers": "many"}, "config.json is not valid (num_hidden_layers 'many')"),
        ({**SMALL, "num_attention_heads": [8, 16]}, "config.json is not valid (num_attention_heads [8, 16])"),
        ({**SMALL, "vocab_size": -1}, "config.json is not valid (vocab_size -1)"),
    ],
)
def test_a_missing_or_impossible_key_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        ModelShape.from_config_json(config)
    assert message in str(caught.value)


def test_experts_without_a_dense_mlp_have_a_shape() -> None:
    config = {**SMALL, "intermediate_size": None, "moe_intermediate_size": 512, "num_experts": 256}
    shape = ModelShape.from_config_json(config)
    assert (shape.intermediate, shape.experts) == (512, 256)


def test_the_class_says_whether_the_head_is_tied() -> None:
    untold = {key: value for key, value in SMALL.items() if key != "tie_word_embeddings"}
    assert not ModelShape.from_config_json(untold).tied
    assert ModelShape.from_config_json({**untold, "model_type": "cohere"}).tied
    assert not ModelShape.from_config_json({**SMALL, "model_type": "cohere"}).tied
