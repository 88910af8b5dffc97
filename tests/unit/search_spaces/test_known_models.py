"""Public configurations against what their publishers and Transformers say of them."""

import pytest

from search_spaces import ModelShape, known_models
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, Recurrent

# name: kind, billions of weights without draft layers, bytes of KV cache of a token in 16 bits. Weights are those of
# the model that Transformers 5.19 builds from the same values (or of the publisher's card, where it builds none).
PUBLISHED = {
    # 2 × 24 layers × 2 heads × 64 numbers × 2 bytes
    "Qwen/Qwen2.5-0.5B-Instruct": ("dense", 0.494, 12_288),
    "Qwen/Qwen2.5-7B-Instruct": ("dense", 7.616, 57_344),
    "Qwen/Qwen2.5-72B-Instruct": ("dense", 72.706, 327_680),
    "Qwen/Qwen2.5-VL-7B-Instruct": ("dense", 8.292, 57_344),
    "Qwen/Qwen3-0.6B": ("dense", 0.596, 114_688),
    "Qwen/Qwen3-8B": ("dense", 8.191, 147_456),
    # 2 × 64 layers × 8 heads × 128 numbers × 2 bytes
    "Qwen/Qwen3-32B": ("dense", 32.762, 262_144),
    "Qwen/Qwen3-VL-2B-Instruct": ("dense", 2.127, 114_688),
    "Qwen/Qwen3-VL-8B-Instruct": ("dense", 8.767, 147_456),
    # 2 × 48 layers × 4 heads × 128 numbers × 2 bytes
    "Qwen/Qwen3-30B-A3B": ("experts", 30.532, 98_304),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("experts", 30.532, 98_304),
    "Qwen/Qwen3-235B-A22B": ("experts", 235.094, 192_512),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": ("experts", 480.155, 253_952),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": ("experts", 31.071, 98_304),
    # 12 of 48 layers with attention: 2 × 12 × 2 heads × 256 numbers × 2 bytes
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("hybrid of experts", 79.674, 24_576),
    # 16 of 64 layers with attention: 2 × 16 × 4 heads × 256 numbers × 2 bytes
    "Qwen/Qwen3.5-27B": ("hybrid", 27.36, 65_536),
    "Qwen/Qwen3.5-9B": ("hybrid", 9.41, 32_768),
    "Qwen/Qwen3.5-35B-A3B": ("hybrid of experts", 35.11, 20_480),
    "Qwen/Qwen3.5-122B-A10B": ("hybrid of experts", 122.56, 24_576),
    "Qwen/Qwen3.5-397B-A17B": ("hybrid of experts", 396.8, 30_720),
    "meta-llama/Llama-3.1-8B-Instruct": ("dense", 8.030, 131_072),
    "meta-llama/Llama-3.3-70B-Instruct": ("dense", 70.554, 327_680),
    "meta-llama/Meta-Llama-3.1-405B": ("dense", 405.853, 516_096),
    # 12 of 48 layers see everything: 2 × 12 × 8 heads × 128 numbers × 2 bytes
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("chunks and experts", 107.77, 49_152),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": ("chunks and experts", 401.17, 49_152),
    "mistralai/Mistral-7B-Instruct-v0.3": ("dense", 7.248, 131_072),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": ("dense", 24.011, 163_840),
    "mistralai/Mixtral-8x7B-v0.1": ("experts", 46.703, 131_072),
    "mistralai/Mixtral-8x22B-v0.1": ("experts", 140.631, 229_376),
    # 61 layers × (512 + 64) numbers × 2 bytes
    "deepseek-ai/DeepSeek-V3": ("latent and experts", 671.026, 70_272),
    "deepseek-ai/DeepSeek-R1": ("latent and experts", 671.026, 70_272),
    # and 61 × (128 + 4) bytes of the indexer
    "deepseek-ai/DeepSeek-V3.2": ("latent and experts", 671.878, 78_324),
    # 27 layers × (512 + 64) numbers × 2 bytes
    "deepseek-ai/DeepSeek-V2-Lite": ("latent and experts", 15.706, 31_104),
    "moonshotai/Kimi-K2-Instruct": ("latent and experts", 1026.41, 70_272),
    "moonshotai/Kimi-K2.5": ("latent and experts", 1026.8, 70_272),
    "zai-org/GLM-4.5": ("experts", 352.8, 376_832),
    "zai-org/GLM-4.5-Air": ("experts", 106.852, 188_416),
    "zai-org/GLM-4.7-Flash": ("latent and experts", 29.943, 54_144),
    "zai-org/GLM-5": ("latent and experts", 743.911, 100_152),
    "google/gemma-2-9b-it": ("windows", 9.241, 172_032),
    "google/gemma-2-27b-it": ("windows", 27.227, 188_416),
    "google/gemma-3-4b-it": ("windows", 4.300, 20_480),
    "google/gemma-3-12b-it": ("windows", 12.187, 65_536),
    # 10 of 62 layers see everything: 2 × 10 × 16 heads × 128 numbers × 2 bytes
    "google/gemma-3-27b-it": ("windows", 27.432, 81_920),
    # 5 of 30 layers see everything: 2 × 5 × 2 heads × 512 numbers × 2 bytes
    "google/gemma-4-26B-A4B": ("windows and experts", 25.8, 20_480),
    "google/gemma-4-31B-it": ("windows", 31.3, 81_920),
    # 12 of 24 layers see everything: 2 × 12 × 8 heads × 64 numbers × 2 bytes
    "openai/gpt-oss-20b": ("windows and experts", 20.91, 24_576),
    "openai/gpt-oss-120b": ("windows and experts", 116.83, 36_864),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": ("dense", 49.867, 200_704),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("hybrid of experts", 31.58, 6_144),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": ("hybrid of experts", 120.67, 8_192),
    "nvidia/Nemotron-H-56B-Base-8K": ("hybrid", 56.3, 40_960),
    "microsoft/phi-4": ("dense", 14.660, 204_800),
    "microsoft/Phi-4-mini-instruct": ("dense", 3.836, 131_072),
    "MiniMaxAI/MiniMax-M2.5": ("experts", 228.69, 253_952),
    "XiaomiMiMo/MiMo-V2-Flash": ("windows and experts", 309.0, 23_040),
    "allenai/Olmo-3.1-32B-Instruct": ("windows", 32.23, 65_536),
    "LGAI-EXAONE/EXAONE-4.0-32B": ("windows", 32.00, 65_536),
}


def kind_of(shape: ModelShape) -> str:
    mixers = [group.mixer for group in shape.groups]
    found = {
        "hybrid": any(isinstance(mixer, Recurrent) for mixer in mixers),
        "latent": any(isinstance(mixer, LatentAttention) for mixer in mixers),
        "windows": any(isinstance(mixer, Attention) and mixer.window and not mixer.chunked for mixer in mixers),
        "chunks": shape.has_chunks,
    }
    names = [name for name, is_so in found.items() if is_so]
    if not any(isinstance(group.mlp, Experts) for group in shape.groups):
        return " ".join(names) or "dense"
    return f"{names[0]} {'of' if names[0] == 'hybrid' else 'and'} experts" if names else "experts"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_model_has_its_published_sizes(name: str) -> None:
    shape, (kind, billions, cached) = known_models()[name], PUBLISHED[name]
    assert shape.unread is None
    assert (kind_of(shape), shape.kv_bytes_per_token(2)) == (kind, cached)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "compress_ratios"),
        ("moonshotai/Kimi-K3", "routed_expert_hidden_size 3584"),
        ("MiniMaxAI/MiniMax-M3", "model_type minimax_m3"),
        ("stepfun-ai/Step-3.7-Flash", "model_type step3p7"),
    ],
)
def test_what_is_not_understood_of_a_known_model_is_named(name: str, key: str) -> None:
    shape = known_models()[name]
    assert shape.unread is not None
    assert shape.unread.key == key
    assert shape.groups == ()


def test_every_other_known_model_is_understood() -> None:
    strange = [name for name, shape in known_models().items() if shape.unread is not None]
    assert len(strange) == 5  # those above, and DeepSeek-V4-Pro
    assert len(known_models()) > 120


# model_type: the weights of the model that Transformers 5.19 builds from its class's own values
CLASSES = {
    **{"llama": 6_738_415_616, "mistral": 7_241_732_096, "ministral3": 8_489_553_920, "phi3": 3_821_079_552},
    **{"olmo2": 6_888_624_128, "stablelm": 2_795_443_200, "cohere": 34_980_831_232, "gemma": 8_537_680_896},
    **{"glm4": 9_400_279_040, "seed_oss": 28_921_040_896, "ernie4_5": 360_748_032, "smollm3": 3_075_098_624},
    **{"arcee": 4_022_766_080, "apertus": 6_979_596_352, "starcoder2": 3_030_371_328, "phi": 1_418_270_720},
    **{"gpt_neox": 20_554_567_680, "gpt2": 124_439_808, "falcon": 6_921_720_704, "qwen2": 12_049_846_272},
    **{"qwen3": 12_049_461_248, "gemma2": 2_614_341_888, "gemma3_text": 2_628_658_432, "gemma3n_text": 6_835_235_568},
    **{"gemma4_text": 5_077_177_856, "cohere2": 34_980_831_232, "exaone4": 9_429_069_824, "olmo3": 6_888_624_128},
    **{"mixtral": 46_702_792_704, "phimoe": 41_872_793_600, "olmoe": 13_361_612_800, "granitemoe": 37_039_116_288},
    **{"qwen2_moe": 14_315_784_192, "qwen3_moe": 15_350_731_776, "minimax_m2": 228_689_748_992},
    **{"ernie4_5_moe": 21_825_437_888, "glm4_moe": 103_481_200_640, "hy_v3": 295_033_528_320, "afmoe": 19_232_600_000},
    **{"exaone_moe": 28_550_639_616, "gpt_oss": 116_829_156_672, "llama4_text": 107_769_861_120},
    **{"mimo_v2_flash": 308_778_768_832, "deepseek_v3": 671_026_404_352, "deepseek_v32": 671_877_929_216},
    **{"glm4_moe_lite": 29_943_390_976, "glm_moe_dsa": 743_911_199_232, "minicpm3": 4_073_875_968},
    **{"qwen3_next": 79_674_391_296, "qwen3_5_text": 8_953_803_264, "qwen3_5_moe_text": 34_660_610_688},
    **{"falcon_h1": 8_514_961_408, "jamba": 51_570_323_328, "falcon_mamba": 159_308_544, "mamba2": 7_285_403_648},
}


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_config_without_sizes_has_those_of_its_class(model_type: str) -> None:
    shape = ModelShape.from_config_json({"model_type": model_type})
    assert shape.unread is None
    assert shape.parameters == pytest.approx(CLASSES[model_type], rel=0.01)


KINDS_OF_27 = ["full_attention" if layer and layer % 4 == 0 else "linear_attention" for layer in range(27)]


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({"model_type": "bamba", "attn_layer_indices": []}, 9_992_765_440),
        ({"model_type": "granitemoehybrid", "layer_types": ["linear_attention"] * 32}, 38_601_064_448),
        ({"model_type": "kimi_linear", "layer_types": KINDS_OF_27, "first_k_dense_replace": 1}, 49_133_074_464),
        ({"model_type": "lfm2", "layer_types": ["full_attention"] * 32}, 2_705_497_600),
        ({"model_type": "minimax", "attn_type_list": [0, 1] * 16}, 47_373_946_880),
        (
            # Falcon Mamba 7B: 64 layers of 3 × 4096 × 8192 + 8192 × (256 + 2 × 16 + 256 + 16 + 4), 2 × 65024 × 4096
            {"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16, "intermediate_size": 8192}
            | {"num_hidden_layers": 64, "vocab_size": 65024, "time_step_rank": 256, "tie_word_embeddings": False},
            7_271_092_224,
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-"}, 1_968_355_712),
    ],
)
def test_a_hybrid_has_the_weights_of_its_class(config: dict[str, object], weights: int) -> None:
    assert ModelShape.from_config_json(config).parameters == pytest.approx(weights, rel=0.01)


def test_qwen3_next_has_a_layer_that_predicts_further_tokens() -> None:
    # its config.json has no key for it, and vLLM takes one layer
    assert known_models()["Qwen/Qwen3-Next-80B-A3B-Instruct"].draft_layers == 1


def test_a_decoder_whose_keys_are_beside_those_of_its_encoder() -> None:
    # MiniCPM-V 2.6 has Qwen2.5-7B's: 28 layers × 2 × 4 heads × 128 numbers of 2 bytes
    sizes = {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    config = {"model_type": "minicpmv", **sizes, "intermediate_size": 18944, "vocab_size": 151666}
    shape = ModelShape.from_config_json({**config, "max_position_embeddings": 32768, "auto_map": {"AutoModel": "x"}})
    assert shape.unread is None
    assert shape.kv_bytes_per_token(2) == 57_344


def test_a_decoder_without_a_type_has_that_of_the_whole() -> None:
    # DeepSeek-OCR: 12 layers of 4 × 1280², a dense MLP of 6848, 11 layers with 64 + 2 experts of 896 and a router
    sizes = {"hidden_size": 1280, "intermediate_size": 6848, "moe_intermediate_size": 896, "num_hidden_layers": 12}
    heads = {"num_attention_heads": 10, "num_key_value_heads": 10, "kv_lora_rank": None, "v_head_dim": 0}
    experts = {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
    text = {**sizes, **heads, **experts, "vocab_size": 129280, "max_position_embeddings": 8192}
    shape = ModelShape.from_config_json({"model_type": "deepseek_vl_v2", "language_config": text})
    assert (shape.unread, shape.kv_bytes_per_token(2), shape.parameters) == (None, 61_440, 2_934_734_080)
