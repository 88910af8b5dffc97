"""Known cards, prices and models: what a configuration says of a model, and what its formats and context need."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces import (
    Context,
    ModelShape,
    ParameterValue,
    Price,
    ResolvedSpace,
    SpaceError,
    hardware_named,
    known_hardware,
    known_model,
    known_models,
    list_price,
    load_space,
    shared_currency,
)
from search_spaces.catalogue.formats import StoredFormat, stored_format
from search_spaces.catalogue.layers import Attention, LayerGroup, Mlp
from tests.contracts.space_contract import generous
from tests.model_configs import CONFIG_7B

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
    **{"max_position_embeddings": 262144, "full_attention_interval": 4, "linear_num_value_heads": 48},
    **{"mamba_ssm_dtype": "float32"},
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
        ({"cross_attention_layers": [3, 8], "model_type": "mllama"}, "cross-attention", "cross_attention_layers"),
        ({"is_encoder_decoder": True, "model_type": "t5"}, "an encoder-decoder", "is_encoder_decoder True"),
        (
            {"model_type": None, "auto_map": {"AutoConfig": "a.B"}},
            "a model with its own code",
            "auto_map without model_type",
        ),
        ({"layers_block_type": ["mamba"] * 28, "model_type": "zamba2"}, "a model of this type", "model_type zamba2"),
        ({"model_type": "rwkv"}, "a model of this type", "model_type rwkv"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}, "with its own code (auto_map)", "model_type mine"),
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 4]}, "a compressed KV cache", "compress_ratios"),
        ({"model_type": "kimi_linear", "routed_expert_hidden_size": 3584}, "experts have a hidden size", "3584"),
        ({"model_type": "hunyuan_v1_dense", "use_cla": True}, "layers share keys and values", "use_cla True"),
        ({"model_type": "qwen3", "layer_types": ["hyena"] * 28}, "a model with layers of another kind", "hyena"),
        ({"model_type": None, "num_experts": 64}, "a model without model_type", "num_experts 64"),
        ({"model_type": None, "full_attention_interval": 4}, "a model without model_type", "full_attention_interval 4"),
        ({"quantization_config": {"quant_method": "vptq"}}, "this quantization", "quant_method vptq"),
        ({"quantization_config": {"quant_method": "aqlm", "nbits_per_codebook": 16}}, "this quantization", "aqlm"),
        ({"quantization_config": {"group_size": 128}}, "this quantization", "without quant_method"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "this quantization", "without quant_method"),  # MLX
        ({"quantization_config": {"quant_method": "exl3", "bits": 4.0}}, "this quantization", "bits 4"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}},
                    "sparsity_config": {"sparsity_structure": "2:4"},
                }
            },
            "this quantization",
            "sparsity_structure 2:4",
        ),
    ],
)
def test_what_is_not_read_is_named(change: dict[str, Any], kind: str, key: str) -> None:
    unread = ModelShape.from_config_json({**SMALL, **change}).unread
    assert unread is not None
    assert kind in unread.kind
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
def test_a_plain_decoder_has_equal_layers(change: dict[str, Any]) -> None:
    shape = ModelShape.from_config_json({**SMALL, **change})
    assert (shape.unread, shape.experts) == (None, 0)
    assert shape.groups == (LayerGroup(28, Attention(28, 4, 128), Mlp(18944)),)


def window_of(group: LayerGroup) -> int | None:
    assert isinstance(group.mixer, Attention)
    return group.mixer.window


def test_the_windows_of_gemma_3_27b_hold_1024_tokens() -> None:
    # 10 full layers × 131,072 + 52 windows × 1,024 = 1,363,968 places of 2 × 16 × 128 × 2 = 8,192 bytes: 10.41 GiB
    shape = read(GEMMA_27B, vision_config={"hidden_size": 1152}, model_type="gemma3")
    assert [(group.count, window_of(group)) for group in shape.groups] == [(52, 1024), (10, None)]
    assert shape.least_kv_bytes(131072, 2) == 1_363_968 * 8192
    assert shape.least_kv_bytes(131072, 2) / GIB == pytest.approx(10.41, abs=0.005)
    assert shape.least_kv_bytes(512, 2) == 62 * 512 * 8192
    assert shape.kv_bytes_per_token(2) == 81_920
    assert shape.unread is None


def test_an_encoder_that_transformers_wrote_as_what_differs_from_its_class() -> None:
    # Qwen2-VL: 32 layers of 12 × 1280², and a merger of 5120² + 5120 × 3584
    vision = {"in_chans": 3, "model_type": "qwen2_vl", "spatial_patch_size": 14}
    shape = ModelShape.from_config_json({**SMALL, "model_type": "qwen2_vl", "vision_config": vision})
    assert shape.beside == 32 * 12 * 1280**2 + 5120 * (5120 + 3584)
    assert ModelShape.from_config_json({**SMALL, "model_type": "qwen2_vl"}).beside == 0


@pytest.mark.parametrize(
    ("config", "full"),
    [
        ({"sliding_window_pattern": 6}, 10),  # 62 // 6
        ({"_sliding_window_pattern": 2}, 31),
        ({"sliding_window_pattern": "LLLG"}, 15),  # 62 // 4
        ({}, 10),  # the class's own pattern of 6
        ({"sliding_window": 131072, "layer_types": FIVE_TO_ONE}, 62),  # a window as long as the context
        ({"model_type": "mistral"}, 0),
        ({"model_type": "gemma2"}, 31),
        ({"model_type": "gemma4_text"}, 11),  # and the last one
        ({"model_type": "exaone4_5_text"}, 15),
        ({"model_type": "cwm"}, 16),  # the first of each four: 62 / 4, rounded up
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, 28),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1] * 31, "num_local_experts": 0}, 31),
    ],
)
def test_layers_with_full_attention(config: dict[str, Any], full: int) -> None:
    plain = {key: value for key, value in GEMMA_27B.items() if key != "layer_types"}
    shape = ModelShape.from_config_json({**plain, "n_routed_experts": 0, **config})
    windows = [window_of(group) for group in shape.groups for _ in range(group.count)]
    assert (len(windows), windows.count(None)) == (62, full)


def test_a_hybrid_s_cache_has_its_attention_layers() -> None:
    # 64 / 4 = 16 attention layers × 2 × 4 × 256 × 2 = 65,536 bytes of a token
    by_interval = ModelShape.from_config_json(QWEN_27B)
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 16
    for shape in (by_interval, ModelShape.from_config_json({**QWEN_27B, "layer_types": kinds})):
        assert shape.kv_bytes_per_token(2) == 65_536
        # 48 layers: 48 × 128 × 128 numbers of 4 bytes, and 3 × (2 × 2,048 + 6,144) of 2 bytes
        assert shape.least_kv_bytes(0, 2) == 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)


def test_a_latent_cache_has_one_vector() -> None:
    # 61 layers × (512 + 64) × 2 bytes = 70,272 bytes of a token
    shape = ModelShape.from_config_json(DEEPSEEK_V3)
    assert shape.kv_bytes_per_token(2) == 70_272
    assert shape.experts == 256
    # an indexer adds 128 bytes and a scale of 4 in each layer
    sparse = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "model_type": "deepseek_v32"}
    assert ModelShape.from_config_json({**DEEPSEEK_V3, **sparse}).kv_bytes_per_token(2) == 70_272 + 61 * 132
    # DeepSeek-VL2-Tiny writes 0 for the sizes of latent attention: 12 layers × 10 heads × 2 × 128 × 2 bytes
    tiny = {"hidden_size": 1280, "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 10}
    without = {"kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    plain = {**DEEPSEEK_V3, **tiny, **without, "model_type": "deepseek_v2", "num_experts_per_tok": 6}
    assert ModelShape.from_config_json(plain).kv_bytes_per_token(2) == 61_440


@pytest.mark.parametrize(
    ("config", "card"),
    [
        # 51 GiB of weights and 10.4 of cache of 73.4; counted as full attention, the cache alone would be 62.0 GiB
        ({**GEMMA_27B, "tie_word_embeddings": True}, "h100"),
        # 50.1 GiB of weights and 16 × 4,096 × 262,144 = 16.0 of cache; counted as full attention, that would be 64.0
        (QWEN_27B, "h100"),
        (DEEPSEEK_V3 | {"num_hidden_layers": 4}, "h200"),
        ({**SMALL, "model_type": "gemma9_text", "num_hidden_layers": 400}, "t4"),
        ({**SMALL, "num_hidden_layers": 400, "quantization_config": {"quant_method": "vptq"}}, "h100"),
    ],
)
def test_no_configuration_is_ruled_out_by_what_is_not_read(config: dict[str, Any], card: str) -> None:
    shape = ModelShape.from_config_json(config)
    space = load_space("vllm").resolve(Context(hardware_named(card), "0.25.1", model=shape, concurrency=8))
    assert space.violations({}) == []


def test_what_is_read_rules_out() -> None:
    # 671.0 billion weights in 8 bits are 626.9 GiB, and eight H200 have 8 × 125.8 GiB in vLLM's share; in 16 bits 1,250
    shape, space = ModelShape.from_config_json(DEEPSEEK_V3), load_space("vllm")
    context = Context(hardware_named("h200"), "0.25.1", model=shape, concurrency=8, gpus=8)
    config: dict[str, ParameterValue] = {"tensor_parallel_size": 8}
    (violation,) = space.resolve(context).violations(config)
    assert "weights 156.2" in violation.message
    stored = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    eight = replace(context, model=ModelShape.from_config_json({**DEEPSEEK_V3, **stored}))
    assert space.resolve(eight).violations(config) == []


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
        ({**SMALL, "model_type": "exaone", "num_hidden_layers": None}, "config.json lacks num_hidden_layers; write"),
        (
            {**SMALL, "model_type": "nemotron-nas", "block_configs": [{}], "intermediate_size": None},
            "config.json lacks n_heads_in_group; write the key",
        ),
        (
            {**SMALL, "model_type": "qwen9", "num_hidden_layers": None},
            "a model of this type is not simulated (model_type qwen9 in config.json); give a model that is read",
        ),
        ({**SMALL, "num_hidden_layers": "many"}, "config.json is not valid (num_hidden_layers 'many')"),
        (
            {**SMALL, "num_attention_heads": [8, 16]},
            "a model whose layers differ is not simulated (num_attention_heads [8, 16] in",
        ),
        ({**SMALL, "num_hidden_layers": 10**9}, "config.json is not valid (1000000000 layers in num_hidden_layers)"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 10**6},
            "config.json is not valid (1000000 layers in hybrid_override_pattern)",
        ),
        (
            {**SMALL, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, float("nan")]}},
            "config.json is not valid (weight_block_size nan)",
        ),
        ({**SMALL, "vocab_size": -1}, "config.json is not valid (vocab_size -1)"),
    ],
)
def test_a_missing_or_impossible_key_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        ModelShape.from_config_json(config)
    assert message in str(caught.value)


def test_experts_without_a_dense_mlp_have_a_shape() -> None:
    config = {**SMALL, "intermediate_size": None, "moe_intermediate_size": 512, "num_experts": 256}
    config |= {"model_type": "qwen3_moe"}
    shape = ModelShape.from_config_json(config)
    assert (shape.intermediate, shape.experts) == (512, 256)


def test_of_an_unknown_model_the_embedding_counts() -> None:
    # 152,064 × 3,584 numbers and 57 norms of 3,584; a head of its own only if the file says so
    untold = {key: value for key, value in SMALL.items() if key != "tie_word_embeddings"}
    shape = ModelShape.from_config_json({**untold, "model_type": "qwen9"})
    assert shape.parameters == 152_064 * 3584 + 57 * 3584
    assert ModelShape.from_config_json({**SMALL, "model_type": "qwen9"}).parameters == 2 * 152_064 * 3584 + 57 * 3584


def test_the_class_says_whether_the_head_is_tied() -> None:
    untold = {key: value for key, value in SMALL.items() if key != "tie_word_embeddings"}
    assert not ModelShape.from_config_json(untold).tied
    assert ModelShape.from_config_json({**untold, "model_type": "cohere"}).tied
    assert not ModelShape.from_config_json({**SMALL, "model_type": "cohere"}).tied


KNOWN = (
    "t4, l4, rtx6000ada, rtx4090, rtx5090, rtxpro6000, a10, a10g, a100, a800, l40s, h20, h100, h200, b200, b300, "
    "gb200, cpu"
)


def test_the_known_devices() -> None:
    assert ", ".join(known_hardware()) == KNOWN
    assert known_hardware()["t4"].compute_capability == (7, 5)
    assert known_hardware()["cpu"].memory_gib is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("T4", "t4"),
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("RTX 6000 Ada", "rtx6000ada"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA A800 80GB PCIe", "a800"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("cpu", "cpu"),
    ],
)
def test_names(name: str, key: str) -> None:
    assert hardware_named(name).key == key


@pytest.mark.parametrize("name", ["MI300X", "L40", "", "A30", "NVIDIA GeForce RTX 4080"])
def test_an_unknown_name_is_an_error_with_a_list(name: str) -> None:
    with pytest.raises(SpaceError, match=f"known: {KNOWN}"):
        hardware_named(name)


# parameters in billions, from the models' cards
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B": 1.544,
    "Qwen/Qwen2.5-3B": 3.086,
    "Qwen/Qwen2.5-7B-Instruct": 7.616,
    "Qwen/Qwen2.5-14B-Instruct": 14.770,
    "Qwen/Qwen2.5-32B-Instruct": 32.764,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-4B": 4.022,
    "Qwen/Qwen3-8B": 8.191,
    "Qwen/Qwen3-14B": 14.768,
    "meta-llama/Llama-2-7b-hf": 6.738,
    "meta-llama/Llama-3.1-8B": 8.030,
    "meta-llama/Llama-3.2-1B": 1.236,
    "meta-llama/Llama-3.2-3B": 3.213,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.248,
    "microsoft/Phi-4-mini-instruct": 3.836,
    "microsoft/phi-4": 14.660,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters(name: str) -> None:
    shape = known_models()[name]
    assert shape.weight_bytes(16) / 2e9 == pytest.approx(PUBLISHED[name], rel=0.01)


QUANTIZED = (
    "AWQ",
    "GPTQ",
    "FP8",
    "NVFP4",
    "gpt-oss",
    "DeepSeek-V3",
    "DeepSeek-R1",
    "DeepSeek-V4",
    "Kimi",
    "MiniMax-M2",
    "MiMo-V2",
    "Devstral",
)


def test_shapes_are_consistent() -> None:
    for name, shape in known_models().items():
        assert shape.heads % shape.kv_heads == 0, name
        marked = any(word in name for word in QUANTIZED) and "Distill" not in name
        assert (shape.quantization is None) is not marked, name


def test_an_unknown_model_has_no_shape() -> None:
    assert known_model("Qwen/Qwen9-1T") is None


A_GPU = {
    "t4": 0.526,
    "l4": 0.8048,
    **dict.fromkeys(("rtx6000ada", "rtx4090", "rtx5090", "rtxpro6000", "a10", "a800", "h20", "b200", "b300", "gb200")),
    "a10g": 1.006,
    "a100": 27.44705 / 8,
    "l40s": 1.861,
    "h100": 6.88,
    "h200": 63.296 / 8,
    "cpu": None,
}


@pytest.mark.parametrize("key", known_hardware())
def test_a_list_price_is_the_share_of_a_gpu_in_its_instance(key: str) -> None:
    found, expected = list_price(hardware_named(key)), A_GPU[key]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.per_gpu_hour == pytest.approx(expected)
        assert found.currency == "USD"


def test_the_memory_tells_two_cards_of_a_name_apart() -> None:
    smaller = list_price(replace(hardware_named("a100"), memory_gib=39.5))
    assert smaller is not None
    assert smaller.per_gpu_hour == pytest.approx(21.957642 / 8)
    assert list_price(replace(hardware_named("h100"), memory_gib=93.1)) is None  # an H100 NVL
    assert list_price(replace(hardware_named("h100"), memory_gib=None)) is None


def test_a_list_price_is_marked_with_its_source_and_date() -> None:
    assert str(list_price(hardware_named("t4"))) == (
        "0.526 USD per GPU-hour (list price: Amazon EC2 on-demand, Linux, us-east-1, g4dn.xlarge, as of 2026-07)"
    )
    assert str(Price(0.35)) == "0.35 per GPU-hour (as given)"


def test_prices_share_a_currency_if_all_that_are_known_are_in_it() -> None:
    dollars, euros, given = Price(1.0, "USD"), Price(1.0, "EUR"), Price(1.0)
    assert shared_currency([dollars, None, dollars]) == "USD"
    for prices in ([], [None], [given], [dollars, euros], [dollars, given]):
        assert shared_currency(prices) is None


@pytest.mark.parametrize("price", [Price(0.35), Price(1.5, "USD", "a cloud, as of 2026-07")])
def test_a_price_is_read_as_it_was_stored(price: Price) -> None:
    assert Price.from_dict(price.to_dict()) == price
    assert Price.from_dict(None) is None


def group(bits: int, kind: str, activations: int | None) -> dict[str, Any]:
    inputs = None if activations is None else {"num_bits": activations, "type": kind, "dynamic": True}
    return {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind}, "input_activations": inputs}


def compressed(**groups: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": groups}


W8A8 = compressed(group_0=group(8, "int", 8))
W4A16 = compressed(group_0=group(4, "int", None))
FP8 = compressed(group_0=group(8, "float", 8))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, StoredFormat()),
        (W8A8, StoredFormat("compressed-tensors", 8, 8, "int")),
        (W4A16, StoredFormat("compressed-tensors", 4, 16, "int")),
        (FP8, StoredFormat("compressed-tensors", 8, 8, "float")),
        (compressed(a=group(8, "int", 8), b=group(4, "int", None)), StoredFormat("compressed-tensors", 4, 16, "int")),
        (compressed(a=group(8, "float", 8), b=group(4, "int", 8)), StoredFormat("compressed-tensors", 4, 8, None)),
        (compressed(), StoredFormat()),
        ({**compressed(), "kv_cache_scheme": {"num_bits": 8}}, StoredFormat(cache_bits=8)),
        ({"quant_method": "awq", "bits": 4}, StoredFormat("awq", 4, None, "int")),
        ({"quant_method": "gptq", "bits": 8}, StoredFormat("gptq", 8, None, "int")),
        ({"quant_method": "auto-round", "bits": 3}, StoredFormat("auto-round", 3, None, "int")),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, StoredFormat("fp8", 8, 8, "float")),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, StoredFormat("bitsandbytes", 8, None, "int")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, StoredFormat("modelopt", 4)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, StoredFormat("modelopt", 8, 8, "float")),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            StoredFormat("fp8", 8, 8, "float", blocks=True),
        ),
        ({**FP8, "kv_cache_scheme": {"num_bits": 8}}, StoredFormat("compressed-tensors", 8, 8, "float", 8)),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            StoredFormat("modelopt", 4, cache_bits=8),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            StoredFormat("modelopt", unread="quant_algo MIXED_PRECISION"),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "lm_head": True},
            StoredFormat("gptq", 4, None, "int", head_bits=4),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "dynamic": {"+:.*mlp.*": {"bits": 4}}},
            StoredFormat("gptq", 4, None, "int"),
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "extra_config": {"lm_head": {"bits": 16}}},
            StoredFormat("auto-round", 4, None, "int"),
        ),
        ({"quant_method": "exl2", "bits": 4.65}, StoredFormat("exl2", unread="bits 4.65")),
        (  # the experts of GLM-5.3 alone; other modules as the model's publisher has them
            {"quant_method": "exl3", "bits": 4, "codebook": "mcg", "scope": "glm53_routed_experts_only"},
            StoredFormat("exl3", unread="bits 4"),
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32, "act_bits": 4},
            StoredFormat("auto-round", 4, 4, "mx"),
        ),
        (
            {"quant_method": "auto-round", "bits": 8, "data_type": "fp", "group_size": [128, 128], "act_bits": 8},
            StoredFormat("auto-round", 8, 8, "float", blocks=True),
        ),
        (
            {"quant_method": "fp_quant", "forward_dtype": "mxfp4"},
            StoredFormat("fp_quant", unread="quant_method fp_quant"),
        ),
        ({"quant_method": "hqq"}, StoredFormat("hqq", unread="quant_method hqq")),
        ({"quant_method": "awq"}, StoredFormat("awq")),
    ],
)
def test_formats(config: dict[str, Any], expected: StoredFormat) -> None:
    assert stored_format(config) == expected


@pytest.mark.parametrize("bits", [0, 17, "4", True])
def test_impossible_bits_are_refused(bits: object) -> None:
    with pytest.raises(ValueError, match="a weight of"):
        stored_format({"quant_method": "awq", "bits": bits})


def shape(quantization: dict[str, Any]) -> ModelShape:
    return ModelShape.from_config_json({**CONFIG_7B, "quantization_config": quantization})


def test_the_bits_of_a_model_count_in_its_weights() -> None:
    """A 7B shape has 6,525,288,448 weights in linear layers, and 2 × 152,064 × 3,584 + 57 × 3,584 others in 16 bits."""
    others = 2 * (2 * 152_064 * 3584 + 57 * 3584)
    eight, four = shape(W8A8), shape(W4A16)
    assert eight.weight_bytes(eight.stored_bits) == 6_525_288_448 + others
    assert four.weight_bytes(four.stored_bits) == 6_525_288_448 // 2 + others
    assert shape({"quant_method": "awq"}).stored_bits == 4


@pytest.mark.parametrize(
    ("bits", "kind", "group", "scale"),
    [(4, "mx_fp", 32, 8 / 32), (4, "nv_fp", 16, 8 / 16), (8, "mx_fp", 32, 8 / 32), (4, "int", 128, 16 / 128)],
)
def test_auto_round_s_floats_have_scales_of_eight_bits(bits: int, kind: str, group: int, scale: float) -> None:
    found = stored_format({"quant_method": "auto-round", "bits": bits, "data_type": kind, "group_size": group})
    assert found.bits_of is not None
    assert found.bits_of("layers.0.mlp.up_proj") == bits + scale


def need(space: ResolvedSpace, config: dict[str, ParameterValue]) -> str:
    (violation,) = space.violations(config)
    return violation.message


def test_the_bits_of_a_checkpoint_count_in_the_memory() -> None:
    """On 8 GiB: 8 bits need 6.08 + 2.03 GiB of weights, 4 bits 3.04 + 2.03."""
    card = replace(hardware_named("l4"), memory_gib=8.0)
    context = Context(
        card,
        "0.25.1",
        model=ModelShape.from_config_json(CONFIG_7B),
        checkpoints={"compressed-tensors": "a/w8a8"},
        checkpoint_shapes={"compressed-tensors": shape(W8A8)},
    )
    small: dict[str, ParameterValue] = {"max_model_len": 1024, "quantization": "compressed-tensors"}
    assert "weights 8.11" in need(load_space("vllm").resolve(context), small)
    four = replace(context, checkpoint_shapes={"compressed-tensors": shape(W4A16)})
    assert load_space("vllm").resolve(four).violations(small) == []
    assert load_space("vllm").resolve(replace(context, checkpoint_shapes={})).violations(small) == []


@pytest.mark.parametrize(
    ("card", "version", "checkpoint", "offered"),
    [
        ("t4", "0.15.1", W8A8, True),
        ("t4", "0.15.1", W4A16, True),
        ("t4", "0.15.1", FP8, False),
        ("t4", "0.25.1", FP8, True),
        ("l4", "0.15.1", FP8, True),
    ],
)
def test_a_checkpoint_s_format_needs_a_card(card: str, version: str, checkpoint: dict[str, Any], offered: bool) -> None:
    context = replace(generous(card, version), checkpoint_shapes={"compressed-tensors": shape(checkpoint)})
    space = load_space("vllm").resolve(context)
    assert space.contains({"quantization": "compressed-tensors"}) is offered
    if offered:
        assert space.render({"quantization": "compressed-tensors"}).model == "quantized/compressed-tensors"
    else:
        (reason,) = [each.reason for each in space.dropped if each.value == "compressed-tensors"]
        assert reason == "the checkpoint's FP8 weights need compute capability 8.0 in vLLM 0.15.1, Tesla T4 has 7.5"


def test_an_auto_round_checkpoint_is_served_as_it_is() -> None:
    context = replace(generous("t4", "0.15.1"), checkpoints={"auto-round": "a/round"})
    rendered = load_space("vllm").resolve(context).render({"quantization": "auto-round"})
    assert (rendered.argv, rendered.model) == ((), "a/round")


def test_experts_and_draft_layers_are_read() -> None:
    mixture = ModelShape.from_config_json({**CONFIG_7B, "num_local_experts": 8, "num_nextn_predict_layers": 1})
    assert (mixture.experts, mixture.draft_layers) == (8, 1)
    dense = ModelShape.from_config_json(CONFIG_7B)
    assert (dense.experts, dense.draft_layers, dense.weight_bits) == (0, 0, None)


@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config", "hf_quant_config.json"])
def test_the_formats_are_found_wherever_vllm_finds_them(tmp_path: Path, place: str) -> None:
    """8 bits: 6,525,288,448 bytes in linear layers; counted in 16 bits they would be twice as many."""
    config: dict[str, Any] = {**CONFIG_7B, "model_type": "llama"}
    declared = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    if place == "hf_quant_config.json":
        content = {"producer": {"name": "modelopt"}, "quantization": {**declared, "exclude_modules": ["lm_head"]}}
        (tmp_path / place).write_text(json.dumps(content))
    elif place == "text_config":
        config = {"text_config": {**config, "quantization_config": declared}}
    else:
        config[place] = declared
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = ModelShape.from_file(tmp_path / "config.json")
    assert (shape.quantization, shape.stored_bits, shape.cache_bits, shape.unread) == ("modelopt", 8, 8, None)
    assert shape.weight_bytes(shape.stored_bits) == 6_525_288_448 + 2 * (2 * 152_064 * 3584 + 57 * 3584)


def test_a_stored_format_of_the_cache_counts_in_the_memory() -> None:
    """A 7B shape has 2 × 28 × 4 × 128 = 28,672 numbers of a token; × 262,144 tokens in 8 bits = 7.00 GiB."""
    config = {**CONFIG_7B, "max_position_embeddings": 262144}
    stored = {**W4A16, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    context = Context(
        replace(hardware_named("l4"), memory_gib=11.0),
        "0.25.1",
        model=ModelShape.from_config_json({**config, "quantization_config": stored}),
        concurrency=8,
    )
    assert "KV cache of one sequence 7.00" in need(load_space("vllm").resolve(context), {})


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_file_of_formats_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_7B))
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(SpaceError, match="quant"):
        ModelShape.from_file(tmp_path / "config.json")
