"""The model of a simulation: found, or refused with the reason and the next step."""

import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces import hardware_named
from tests.model_configs import CONFIG_7B
from tuner.engines.base import EngineSettings
from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import find_simulated_model
from tuner.study.specification.plan import plan_study
from tuner.use_cases.engines import refuse_unsimulated_arguments

GEMMA_4B = {
    "model_type": "gemma3",
    "text_config": {
        **{"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34},
        "sliding_window": 1024,
    },
}


def test_a_config_that_leaves_sizes_out_has_those_of_its_class(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_4B))
    shape = find_simulated_model(str(tmp_path), None)[1]
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.vocab, shape.max_position_embeddings) == (262_208, 131_072)


def test_a_known_name_is_found_offline() -> None:
    reference, shape = find_simulated_model("deepseek-ai/DeepSeek-V3", None)
    assert (reference.name, shape.experts, shape.layers) == ("deepseek-ai/DeepSeek-V3", 256, 61)


def refusal(name: str) -> str:
    with pytest.raises(SettingError) as caught:
        find_simulated_model(name, None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps({"model_type": "nemotron_h"}), "config.json lacks hybrid_override_pattern; write the key into"),
        (
            json.dumps({**CONFIG_7B, "intermediate_size": None}),
            "config.json lacks intermediate_size; write the key into",
        ),
        (json.dumps({**CONFIG_7B, "hidden_size": "wide"}), "config.json is not valid (hidden_size 'wide')"),
        ("{", "config.json is not valid JSON; download it again"),
        ("[1]", "config.json has no JSON object; download it again"),
    ],
)
def test_a_folder_s_mistake_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)
    found = refusal(str(tmp_path))
    assert found.startswith(f"model={str(tmp_path)!r}: ")
    assert reason in found
    assert found.endswith("or measure the model with engine vllm")
    assert "give a folder" not in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Qwen/Qwen2.5-0.6B", "Qwen/Qwen2.5-0.5B"),
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("meta-llama/Llama-3.1-9B", "meta-llama/Llama-3.1-8B"),
        ("google/gemma-3-27b-itt", "google/gemma-3-27b-it"),
        ("mistralai/Pixtral-12B-2409", None),
        ("ibm-granite/granite-4.0-h-small", None),
    ],
)
def test_only_a_misspelt_name_gets_another_one(name: str, near: str | None) -> None:
    hint = "give" if near is None else f"did you mean {near}? or give"
    assert refusal(name) == (
        f"model={name!r}: this model is not in the catalogue of simulated models; {hint} a folder with its config.json"
    )


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        (
            {"num_experts": 128},
            ("--enable-expert-parallel",),
            "a model without model_type is not simulated (num_experts",
        ),
        ({"model_type": "qwen9"}, (), "a model of this type is not simulated (model_type qwen9"),
        ({"model_type": "t5", "is_encoder_decoder": True}, (), "an encoder-decoder is not simulated"),
        (
            {},
            ("--attention-config", "{}"),
            "--attention-config {}: not simulated; measure that with the engine vllm",
        ),
    ],
)
def test_a_simulated_study_names_the_model_s_key_first(
    tmp_path: Path, config: dict[str, Any], arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG_7B, **config}))
    settings = StudySettings(model=str(tmp_path), server_arguments=arguments)
    plan = plan_study(settings, simulated=True)
    engine = EngineSettings("simulated", None, tmp_path, card=hardware_named("h100"), version="0.25.1")
    with pytest.raises(SettingError) as caught:
        refuse_unsimulated_arguments(plan, engine)
    assert message in str(caught.value)
    assert ("model=" in str(caught.value)) is bool(config)
