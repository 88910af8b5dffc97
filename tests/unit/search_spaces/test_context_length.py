"""The longest context of a model, as vLLM derives it from `rope_scaling` and `rope_parameters`."""

from typing import Any

import pytest

from search_spaces import Context, ModelShape, SpaceError, hardware_named, load_space
from tests.model_configs import CONFIG_7B

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
OLD, NEW = (0, 25, 1), (0, 32, 0)


def read(**change: Any) -> ModelShape:
    return ModelShape.from_config_json({**CONFIG_7B, "model_type": "llama", **change})


@pytest.mark.parametrize(
    ("change", "before", "since"),
    [
        ({}, 32768, 32768),
        # 32,768 × 4 = 131,072; vLLM 0.32 answers 32,768 to the same file (tried with its ModelConfig)
        ({"rope_scaling": YARN}, 131072, 32768),
        ({"rope_scaling": YARN, "max_position_embeddings": 131072}, 131072, 131072),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8192}},
            16384,
            32768,
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, 131072, 32768),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 65536, 65536),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, 262144, 262144),
        ({"rope_scaling": {"type": "dynamic", "factor": None}}, 32768, 32768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32768, 32768),
        ({"rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"}}, 32768, 32768),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}, "other": None}}, 65536, 65536),
        (
            {"model_type": "gemma3_text", "head_dim": 128, "rope_scaling": {"rope_type": "linear", "factor": 8}},
            32768,
            32768,
        ),
        # of each kind of layer: gemma3's length is scaled already, and only its full layers are
        (
            {
                "model_type": "gemma3_text",
                "head_dim": 128,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            32768,
            32768,
        ),
        ({"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}}, 131072, 32768),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}},
            32768,
            32768,
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 16.0}, "max_position_embeddings": 10485760},
            10485760,
            10485760,
        ),
        # DeepSeek-V3: 4,096 × 40 = 163,840, which its max_position_embeddings says too
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
            163840,
        ),
        ({"rope_scaling": {"type": "deepseek_yarn", "factor": 40}, "max_position_embeddings": 163840}, 163840, 163840),
        ({"max_sequence_length": 2048}, 2048, 2048),
        ({"max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere"}, 131072, 131072),
    ],
)
def test_the_longest_context(change: dict[str, Any], before: int, since: int) -> None:
    shape = read(**change)
    assert (shape.longest_context(OLD), shape.longest_context(NEW)) == (before, since)
    assert shape.longest_context(None) == max(before, since)


def test_longrope_starts_at_its_original_length() -> None:
    rope = {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}}
    shape = read(**rope, max_position_embeddings=131072, original_max_position_embeddings=4096)
    assert (shape.longest_context(OLD), shape.default_context) == (131072, 4096)
    assert read(original_max_position_embeddings=4096).default_context is None


def test_a_file_without_a_length_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"config\.json lacks max_position_embeddings"):
        read(max_position_embeddings=None)


def test_a_length_that_is_left_out_is_the_class_s_own() -> None:
    plain = {key: value for key, value in CONFIG_7B.items() if key != "max_position_embeddings"}
    gemma = ModelShape.from_config_json({**plain, "model_type": "gemma3_text"})
    assert gemma.longest_context(None) == 131072
    assert ModelShape.from_config_json({"model_type": "mamba"}).longest_context(None) == 2048


@pytest.mark.parametrize(("version", "offered"), [("0.25.1", True), ("0.32.0", False)])
def test_the_space_offers_lengths_up_to_the_context(version: str, offered: bool) -> None:
    short = read(max_position_embeddings=8192, rope_scaling={**YARN, "original_max_position_embeddings": 8192})
    space = load_space("vllm").resolve(Context(hardware_named("t4"), version, model=short))
    assert space.contains({"max_model_len": 32768}) is offered


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        ({}, 0),
        # 32,768 positions × factor 8 × 128 numbers of a head
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 33_554_432),
        # Gemma 3 12B: (131,072 × 8 + 131,072 for the windows) × 256; vLLM 0.25.1 loads 0.56 GiB more than its weights
        (
            {
                "max_position_embeddings": 131072,
                "head_dim": 256,
                "rope_local_base_freq": 10000.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            301_989_888,
        ),
        # 32,768 × 4 × half of a head
        ({"rope_scaling": YARN, "partial_rotary_factor": 0.5}, 8_388_608),
    ],
)
def test_tables_of_rotations(change: dict[str, Any], numbers: int) -> None:
    assert read(**change).rotations == numbers
