"""The bits of each part of a quantized checkpoint, scales included, and the bytes that follow."""

from typing import Any

import pytest

from search_spaces import ModelShape, known_models
from search_spaces.catalogue.formats import of_quant_file
from search_spaces.catalogue.models import PartBits
from tests.model_configs import CONFIG_7B

DENSE = {**CONFIG_7B, "model_type": "qwen2"}
MOE = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32},
    **{"num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936},
    **{"moe_intermediate_size": 768, "max_position_embeddings": 40960, "shared_expert_intermediate_size": 768},
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
MXFP4 = {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def bits(quantization: dict[str, Any], config: dict[str, Any] = MOE) -> PartBits:
    shape = ModelShape.from_config_json({**config, "quantization_config": quantization})
    assert shape.unread is None
    assert shape.bits is not None
    return shape.bits


def weights(number: int, kind: str, group: int | None = None) -> dict[str, Any]:
    return {"num_bits": number, "type": kind, "group_size": group}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        # a scale of 16 bits and a zero point of 4 for 128 weights: 4 + 20 / 128
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4.15625),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4.125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, 8),
        ({"quant_method": "auto-round", "bits": 2, "group_size": 64, "sym": False}, 2 + 18 / 64),
        (FP8, 8 + 32 / 128**2),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8),
        (NVFP4, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            4 + 8 / 64 + 32 / 16384,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights(4, "int", 128)}}},
            4.125,
        ),
        # without symmetry a zero point, too: 4 + (16 + 4) / 128
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {**weights(4, "int", 128), "symmetric": False}}},
            },
            4.15625,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights(4, "float", 16)}}}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights(8, "float")}}}, 8),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, 8),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}},
            },
            4.25,
        ),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
            4.5,
        ),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8DynamicActivationInt4WeightConfig"}}}, 4),
        ({"quant_method": "quark", "global_quant_config": {"weight": MXFP4}}, 4.25),
        # weights in two steps: the last one is stored
        ({"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}}, 4),
    ],
)
def test_bits_include_scales(quantization: dict[str, Any], expected: float) -> None:
    found = bits(quantization, DENSE)
    assert (found.attention, found.mlp) == pytest.approx((expected, expected))


def test_mxfp4_leaves_all_but_the_experts_at_16_bits() -> None:
    assert bits({"quant_method": "mxfp4"}) == PartBits(16, 16, 16, 16, 4.25)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (["model.layers.*.self_attn", "lm_head"], PartBits(16, 4.5, 4.5, 4.5, 4.5)),
        (["*self_attn*"], PartBits(16, 4.5, 4.5, 4.5, 4.5)),
        (["re:.*self_attn.*", "re:.*mlp.gate$"], PartBits(16, 4.5, 4.5, 4.5, 4.5)),
        ([f"model.layers.{layer}.self_attn" for layer in range(48)], PartBits(16, 4.5, 4.5, 4.5, 4.5)),
        # half of the layers: (16 + 4.5) / 2
        (
            [f"model.language_model.layers.{layer}.self_attn*" for layer in range(24)],
            PartBits(10.25, 4.5, 4.5, 4.5, 4.5),
        ),
        (["*.mlp.shared_expert.*"], PartBits(4.5, 4.5, 4.5, 16, 4.5)),
        # ModelOpt reads patterns with fnmatch: 10 of 48 layers, (10 × 16 + 38 × 4.5) / 48, and all but those
        (["model.layers.?.self_attn*"], PartBits(331 / 48, 4.5, 4.5, 4.5, 4.5)),
        (["model.layers.[0-9].self_attn"], PartBits(331 / 48, 4.5, 4.5, 4.5, 4.5)),
        (["model.layers.[!a-z][0-9].self_attn*"], PartBits((10 * 4.5 + 38 * 16) / 48, 4.5, 4.5, 4.5, 4.5)),
        ([f"model.layers.{layer}*" for layer in (1, 2)], None),
        (["model.layers.0.mlp.gate", "visual", "mtp.layers.0.mlp", "lm_head"], PartBits(4.5, 4.5, 4.5, 4.5, 4.5)),
    ],
)
def test_modules_that_stay_at_16_bits(kept: list[str], expected: PartBits | None) -> None:
    for key in ("exclude_modules", "ignore", "modules_to_not_convert"):
        found = bits({**NVFP4, key: kept})
        if expected is None:  # layers 1, 2, 10 … 19 and 20 … 29: 22 of 48
            assert found.experts == pytest.approx((22 * 16 + 26 * 4.5) / 48)
        else:
            assert found == expected


def test_groups_of_modules_with_formats_of_their_own() -> None:
    groups = {
        "a": {"targets": ["re:.*experts.*"], "weights": weights(4, "float", 16)},
        "b": {"targets": ["Linear"], "weights": weights(8, "float")},
    }
    found = bits({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]})
    assert (found.attention, found.experts) == (8, 4.5)


def test_mixed_precision_names_each_module() -> None:
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in range(48)}
    layers |= {
        f"model.layers.{layer}.self_attn.{name}_proj": {"quant_algo": "FP8"} for layer in range(48) for name in "qkvo"
    }
    layers |= {f"model.layers.{layer}.mlp.shared_expert": {"quant_algo": "UNQUANTIZED"} for layer in range(48)}
    found = bits({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert (found.attention, found.shared, found.experts) == (8, 16, 4.5)


COMPRESSED = {"quant_method": "compressed-tensors"}
HEAD_FP8 = {"targets": [r"re:.*self_attn\.(q|k|v|o)_proj$", "re:.*lm_head"], "weights": weights(8, "float")}


@pytest.mark.parametrize(
    ("quantization", "head"),
    [
        # Unsloth's Qwen3.6, NVIDIA's Qwen3.6 NVFP4, AutoRound and GPTQModel
        ({**COMPRESSED, "config_groups": {"a": HEAD_FP8}}, 8),
        ({**COMPRESSED, "config_groups": {"a": HEAD_FP8}, "ignore": ["lm_head"]}, 16),
        ({**MIXED, "config_groups": {"a": {"targets": ["lm_head"], "weights": weights(4, "float", 16)}}}, 4.5),
        ({**COMPRESSED, "config_groups": {"a": {"targets": ["Linear"], "weights": weights(8, "float")}}}, 16),
        ({**MIXED, "quantized_layers": {"lm_head": {"quant_algo": "W4A16_NVFP4"}}}, 4.5),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"lm_head": {"bits": 8}}}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "lm_head": True}, 4.125),
        ({"quant_method": "gptq", "bits": 4, "lm_head": False}, 16),
        (FP8, 16),
    ],
)
def test_an_output_head_that_the_file_names(quantization: dict[str, Any], head: float) -> None:
    assert bits(quantization).head == head
    shape = ModelShape.from_config_json({**MOE, "quantization_config": quantization})
    without = ModelShape.from_config_json({**MOE, "tie_word_embeddings": True, "quantization_config": quantization})
    assert shape.weight_bytes() - without.weight_bytes() == pytest.approx(151_936 * 2048 * head / 8, abs=1)


def test_a_named_head_is_no_class_of_modules() -> None:
    groups = {"a": {"targets": ["lm_head", "model.layers.0.mlp.experts"], "weights": weights(4, "float", 16)}}
    found = bits({**MIXED, "config_groups": groups})
    assert found.attention == 16
    assert found.experts == pytest.approx((47 * 16 + 4.5) / 48)


def test_bits_of_single_modules() -> None:
    dynamic = {"-:.*self_attn.*": {}, "+:.*down_proj.*": {"bits": 8}}
    found = bits({"quant_method": "gptq", "bits": 4, "dynamic": dynamic}, DENSE)
    assert (found.attention, found.mlp) == pytest.approx((16, (4 + 4 + 8) / 3))
    # groups of their own: 4 + 16 / 128 and 8 + 16 / 32
    dynamic = {"+:.*down_proj.*": {"bits": 8, "group_size": 32}}
    found = bits({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": dynamic}, DENSE)
    assert (found.attention, found.mlp) == pytest.approx((4.125, (4.125 + 4.125 + 8.5) / 3))
    # counted repetitions, and alternatives without a group: layers 0 to 9, and 26 and 27, have 16 bits
    dynamic = {r"-:model\.layers\.\d{1}\.|.*\.2[67]\..*": {}}
    found = bits({"quant_method": "gptq", "bits": 4, "dynamic": dynamic}, DENSE)
    assert found.mlp == pytest.approx((12 * 16 + 16 * 4) / 28)
    # a class of characters within a group: layers 10 to 27 of 28 have 8 bits
    dynamic = {r"+:.*\.(?:1[0-9]|2[0-9])\..*": {"bits": 8}}
    found = bits({"quant_method": "gptq", "bits": 4, "dynamic": dynamic}, DENSE)
    assert found.mlp == pytest.approx((10 * 4 + 18 * 8) / 28)


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (r"+:.*\.(?:[0-9]|1(?:0|[1-5]))\..*", 16),  # a group in a group: layers 0 to 15
        (r"+:model\.layers\.(2(?:0|1|(?:2|3)))\.(?:mlp|self_attn)\..*", 4),  # layers 20 to 23
        (r"+:.*\.(?:1)?[0-9]\.(?:mlp|self_attn).*", 20),  # an optional group: layers 0 to 19
    ],
)
def test_rules_of_gptq_with_groups_in_groups_are_read(pattern: str, layers: int) -> None:
    found = bits({"quant_method": "gptq", "bits": 4, "dynamic": {pattern: {"bits": 8}}}, DENSE)
    assert found.mlp == pytest.approx((layers * 8 + (28 - layers) * 4) / 28)


@pytest.mark.parametrize(
    "quantization",
    [{"quant_method": "gptq", "checkpoint_format": "marlin_24"}, {"quant_method": "gptq_marlin_24"}],
)
@pytest.mark.parametrize(("of_one", "expected"), [(4, 3.125), (8, 5.125)])
def test_sparse_marlin_stores_half_of_the_weights(quantization: dict[str, Any], of_one: int, expected: float) -> None:
    # half of the weights, 2 bits for the place of each, and a scale of 16 bits for 128 weights
    found = bits({**quantization, "bits": of_one, "group_size": 128, "sym": True}, DENSE)
    assert (found.attention, found.mlp) == (expected, expected)


def test_quark_gives_layers_formats_by_patterns() -> None:
    fp8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
    whole, cached = {"weight": fp8, "input_tensors": fp8}, {"weight": fp8, "input_tensors": fp8, "output_tensors": fp8}
    caches = {
        "layer_quant_config": {"*k_proj": cached, "*v_proj": cached},
        "kv_cache_quant_config": {"*k_proj": cached},
    }
    quantization = {"quant_method": "quark", "global_quant_config": whole, **caches, "exclude": ["lm_head"]}
    shape = ModelShape.from_config_json({**DENSE, "quantization_config": quantization})
    # vLLM's `auto` does not read Quark's scales of the cache
    assert (shape.unread, shape.weight_bits, shape.activation_bits, shape.cache_bits) == (None, 8, 8, None)
    layers = {"*self_attn*": whole, "*mlp*": {"weight": MXFP4, "input_tensors": MXFP4}}
    found = bits({**quantization, "layer_quant_config": layers}, DENSE)
    assert (found.attention, found.mlp) == (8, 4.25)
    other = {
        **DENSE,
        "quantization_config": {**quantization, "layer_quant_config": {"*mlp*": {"weight": {"dtype": "x"}}}},
    }
    assert str(ModelShape.from_config_json(other).unread).startswith("this quantization is not simulated (*mlp* {")


@pytest.mark.parametrize(("cache", "expected"), [(None, None), ("FP8", 8)])
def test_a_file_of_modelopt_that_quantizes_nothing(cache: str | None, expected: int | None) -> None:
    file = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": cache}}
    shape = ModelShape.from_config_json(DENSE, of_quant_file(file))
    assert (shape.quantization, shape.unread, shape.stored_bits, shape.cache_bits) == (None, None, 16, expected)


@pytest.mark.parametrize(
    ("quantization", "activations", "kind"),
    [
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, 8, "float"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, 16, "int"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, 16, None),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, 8, "int"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP4"}, None, "mx"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, None, None),
        ({"quant_method": "modelopt", "quant_algo": "w4a16_awq"}, 16, "int"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_MXFP4"}, 16, "mx"),
        (NVFP4, None, None),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights(4, "float", 32)}}},
            16,
            "mx",
        ),
        ({"quant_method": "quark", "global_quant_config": {"weight": MXFP4, "input_tensors": MXFP4}}, 4, "mx"),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}},
            },
            8,
            "float",
        ),
    ],
)
def test_formats_of_activations(quantization: dict[str, Any], activations: int | None, kind: str | None) -> None:
    shape = ModelShape.from_config_json({**DENSE, "quantization_config": quantization})
    assert (shape.activation_bits, shape.weight_type) == (activations, kind)


@pytest.mark.parametrize(
    "pattern",
    [
        "re:(a+)+$",
        "re:" + ".*a" * 9,
        "re:(x|y)*z",
        "re:((a+)b)+$",
        "re:(x(a+))*",
        "*a" * 9,
        "re:*",
        "re:[z-a]",
        "[z-a]",
    ],
)
def test_a_pattern_without_a_bound_on_its_time_is_not_read(pattern: str) -> None:
    shape = ModelShape.from_config_json({**MOE, "quantization_config": {**NVFP4, "ignore": [pattern]}})
    assert shape.unread is not None
    assert shape.unread.key.startswith("ignore ")
    assert not shape.has_known_weights


def test_groups_that_do_not_say_their_bits_are_not_read() -> None:
    groups = {"a": {"targets": ["Linear"], "weights": {"type": "float"}}}
    shape = ModelShape.from_config_json({**MOE, "quantization_config": {**MIXED, "config_groups": groups}})
    assert str(shape.unread) == "this quantization is not simulated (config_groups without num_bits in config.json)"


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        # 6.476 billion weights in layers × 4.15625 bits, and 2 × 131 million in 16
        ("TheBloke/Llama-2-7B-AWQ", 3.62),
        # 19.110 billion weights of experts × 4.25 bits, and 1.798 billion in 16
        ("openai/gpt-oss-20b", (19.110 * 4.25 / 16 + 1.798) * 2 / 1.073741824),
        # 70.554 billion weights, of which 2.101 billion in 16 bits
        ("nvidia/Llama-3.1-70B-Instruct-FP8", (68.453 + 2 * 2.101) / 1.073741824),
    ],
)
def test_resident_bytes(name: str, gib: float) -> None:
    assert known_models()[name].weight_bytes() / 2**30 == pytest.approx(gib, rel=0.002)


def test_a_quantized_checkpoint_s_embeddings_stay_at_16_bits() -> None:
    shape = ModelShape.from_config_json({**DENSE, "quantization_config": NVFP4})
    rest = 2 * 152_064 * 3584 + 57 * 3584
    assert shape.weight_bytes() == (6_525_288_448 * 45 // 10) // 8 + 2 * rest
    assert shape.expert_bytes() == 0
