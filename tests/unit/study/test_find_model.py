"""What a study's draft model and checkpoints are, by their config.json or their name."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_configs import CONFIG_7B
from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import checkpoint_shapes, draft_kind, facts_of_models, find_model


def folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "model"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"architectures": ["Gemma4Assistant"], "model_type": "gemma4_mtp"}, "mtp"),
        ({"architectures": ["MiMoMTPModel"]}, "mtp"),
        ({"architectures": 3}, "model"),
    ],
)
def test_a_draft_model_s_config_says_what_it_is(tmp_path: Path, config: dict[str, Any], kind: str) -> None:
    assert draft_kind(folder(tmp_path / "head", config)) == kind


@pytest.mark.parametrize(
    ("name", "kind"), [("AngelSlim/Qwen3-8B_eagle3", "eagle3"), ("Qwen/Qwen2.5-0.5B", "model"), (None, None)]
)
def test_without_a_config_the_name_says_it(name: str | None, kind: str | None) -> None:
    assert draft_kind(name) == kind


def test_checkpoints_have_a_shape_if_their_config_is_here(tmp_path: Path) -> None:
    awq = folder(tmp_path / "awq", {**CONFIG_7B, "quantization_config": {"quant_method": "awq", "bits": 4}})
    broken = folder(tmp_path / "broken", {"hidden_size": 8})
    given = {"awq": awq, "gptq": "a/gptq", "compressed-tensors": broken}
    shapes = checkpoint_shapes(given)
    assert set(shapes) == {"awq"}
    assert (shapes["awq"].quantization, shapes["awq"].weight_bits) == ("awq", 4)
    facts = facts_of_models(StudySettings(model="a/model", checkpoint=given, draft_model="a/draft"))
    assert facts == {
        "checkpoints": given,
        "checkpoint_shapes": shapes,
        "draft_model": "a/draft",
        "draft_kind": "model",
    }


def test_a_known_model_that_is_not_downloaded_has_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.study.specification.find_model._check_hub", lambda field, name: None)
    _, shape = find_model("Qwen/Qwen3-30B-A3B", None)
    assert shape is not None
    assert shape.experts == 128
    assert find_model("a/model", None)[1] is None
    fp8 = checkpoint_shapes({"modelopt": "nvidia/Llama-3.1-70B-Instruct-FP8"})["modelopt"]
    assert fp8.weight_bits == 8


def test_a_folder_s_own_config_comes_first(tmp_path: Path) -> None:
    shape = find_model(folder(tmp_path / "model", {**CONFIG_7B, "num_hidden_layers": 4}), None)[1]
    assert shape is not None
    assert shape.layers == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model-Q4_K_M.gguf", r"has a GGUF file and no config.json; serve it with .*llama.cpp and .*model-Q4_K_M.gguf"),
        ("params.json", r"Mistral's params.json and no config.json; download the model's config.json"),
        ("snapshot/config.json", r"no config.json, and folders in it have one; give one of them"),
        ("weights.bin", r"the folder has no config.json; give a model folder or a hub name"),
    ],
)
def test_a_folder_without_config_says_what_it_has(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / content
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    with pytest.raises(SettingError, match=message):
        find_model(str(tmp_path), None)
