"""Names on the hub that are derived from a known model's."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces import known_model, known_models
from search_spaces.catalogue.models import known_configs
from search_spaces.yaml_file import read_yaml

CATALOGUE = Path(__file__).parents[3] / "search_spaces" / "catalogue"

# Qwen3-8B: 36 layers of 2 × 4096² + 2 × 4096 × 1024 + 3 × 4096 × 12288 weights, and 2 × 151936 × 4096 beside them
MATRICES, BESIDE = 6_945_767_424, 1_244_659_712


@pytest.mark.parametrize(
    ("name", "method", "bits"),
    [
        ("Qwen/Qwen3-8B-AWQ", "awq", 4 + 20 / 128),
        ("Qwen/Qwen3-8B-FP8", "fp8", 8 + 32 / 128**2),
        ("Qwen/Qwen3-8B-GPTQ-Int8", "gptq", 8 + 16 / 128),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "compressed-tensors", 8),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "compressed-tensors", 4 + 16 / 128),
        ("nvidia/Qwen3-8B-FP4", "modelopt", 4.5),
        ("unsloth/Qwen3-8B-bnb-4bit", "bitsandbytes", 4 + 8 / 64 + 32 / 64 / 256),
        ("unsloth/Qwen3-8B", None, 16),
    ],
)
def test_a_derived_name_has_the_models_shape_in_its_format(name: str, method: str | None, bits: float) -> None:
    shape = known_model(name)
    assert shape is not None
    assert (shape.quantization, shape.layers, shape.kv_heads) == (method, 36, 8)
    assert shape.weight_bytes() == pytest.approx(MATRICES * bits / 8 + BESIDE * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", True),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", True),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", True),
        # layers that each publisher keeps at 16 bits in its own way
        ("RedHatAI/DeepSeek-R1-FP8-dynamic", False),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", False),
        # a model that has a format of its own, another publisher, and no such model
        ("unsloth/gpt-oss-20b", False),
        ("somebody/Qwen3-8B-AWQ", False),
        ("Qwen/Qwen9-8B-AWQ", False),
    ],
)
def test_a_rule_holds_for_its_publisher_and_plain_models(name: str, rule: bool) -> None:
    assert (known_model(name) is not None) is rule


def test_every_rule_and_every_known_model_has_a_source() -> None:
    rules: list[dict[str, Any]] = read_yaml(CATALOGUE / "derived_names.yaml").data
    assert all(rule["source"] and rule["owners"] and rule["names"] for rule in rules)
    assert all(entry["source"] for entry in known_configs().values())


# billions of weights, as the publishers' cards have them, of models whose values another source than the file has
CARDS = {
    "baidu/ERNIE-4.5-21B-A3B-PT": 21.8,
    "CohereForAI/c4ai-command-r-v01": 35.0,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": 70.6,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.71,
    "HuggingFaceTB/SmolLM3-3B": 3.08,
    "meituan-longcat/LongCat-Flash-Chat": 560,
    "microsoft/Phi-3.5-mini-instruct": 3.82,
    "microsoft/Phi-3.5-MoE-instruct": 41.9,
    "mistralai/Mistral-Large-Instruct-2407": 122.6,
    "mistralai/Mistral-Nemo-Instruct-2407": 12.2,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 24.0,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8.89,
    "Qwen/Qwen1.5-MoE-A2.7B": 14.3,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32.8,
    "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 30.5,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1,
}


@pytest.mark.parametrize("name", CARDS)
def test_a_known_model_has_the_weights_of_its_card(name: str) -> None:
    assert known_models()[name].parameters / 1e9 == pytest.approx(CARDS[name], rel=0.01)


def test_a_model_like_another_has_its_values_but_for_those_given() -> None:
    shape, base = known_models()["Qwen/Qwen3-4B-Instruct-2507"], known_models()["Qwen/Qwen3-4B"]
    assert (shape.max_position_embeddings, base.max_position_embeddings) == (262_144, 40_960)
    assert shape.groups == base.groups
