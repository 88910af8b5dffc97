"""Known models have the size that their publishers state."""

from __future__ import annotations

import pytest

from search_spaces import ModelShape, known_model, known_models

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


def test_shapes_are_consistent() -> None:
    for name, shape in known_models().items():
        assert shape.heads % shape.kv_heads == 0, name
        assert shape.quantization == ("awq" if "AWQ" in name else None), name


def test_an_unknown_model_has_no_shape() -> None:
    assert known_model("Qwen/Qwen9-1T") is None


def test_a_long_value_of_a_file_is_cut_to_40_characters() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"model_type": "x" * 50, "vocab_size": 41, "max_position_embeddings": 2048, **sizes}
    unread = ModelShape.from_config_json(config).unread
    assert unread is not None
    assert unread.key == f"model_type {'x' * 39}…"
