"""The parts of settings that belong to each engine of a study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.study.specification.plan import gpus_of_engines, gpus_of_trial, plan_study, settings_of_engine

ENGINES = ("vllm", "llama.cpp")


def part(settings: StudySettings, engine: str) -> StudySettings:
    return settings_of_engine(settings, engine, ENGINES, on_cpu=True)


def flags(*words: str) -> list[tuple[str, ...]]:
    """Return the server's flags of both engines."""
    settings = StudySettings(model="folder", other_models=("m.gguf",), server_arguments=words)
    return [tuple(part(settings, engine).server_arguments) for engine in ENGINES]


@pytest.mark.parametrize(
    ("given", "vllm", "llama"),
    [
        (("folder", "m.gguf"), "folder", "m.gguf"),
        (("m.gguf", "folder"), "folder", "m.gguf"),
        (("llama.cpp=m.gguf", "vllm=other.gguf"), "other.gguf", "m.gguf"),
        (("vllm=a=b", "m.gguf"), "a=b", "m.gguf"),
        (("llama.cpp=m.gguf",), None, "m.gguf"),
    ],
)
def test_a_model_belongs_to_the_engine_it_names_or_whose_format_it_has(
    given: tuple[str, ...], vllm: str | None, llama: str
) -> None:
    settings = StudySettings(model=given[0], other_models=given[1:])
    assert [part(settings, engine).model for engine in ENGINES] == [vllm, llama]


def test_the_tokenizer_and_the_checkpoints_are_those_of_the_default_engine() -> None:
    given = {"tokenizer": "words", "checkpoint": {"awq": "quantized"}, "draft_model": "draft"}
    settings = StudySettings(model="folder", other_models=("m.gguf",), **given)  # type: ignore[arg-type]
    vllm, llama = (part(settings, engine) for engine in ENGINES)
    assert vllm == StudySettings(model="folder", **given)  # type: ignore[arg-type]
    assert llama == StudySettings(model="m.gguf")


def test_flags_after_an_engines_name_are_its_own() -> None:
    assert flags("--seed", "1") == [("--seed", "1"), ()]
    assert flags("--seed", "1", "llama.cpp=", "--threads", "8") == [("--seed", "1"), ("--threads", "8")]
    assert flags("llama.cpp=--threads", "8", "vllm=", "--seed", "1") == [("--seed", "1"), ("--threads", "8")]


def test_spaces_and_starting_points_without_a_name_are_those_of_the_default_engine() -> None:
    settings = StudySettings(
        model="folder",
        other_models=("m.gguf",),
        space="cpu",
        other_spaces=("llama.cpp=my.yaml",),
        enqueue=("a", "llama.cpp=b"),
        baseline="llama.cpp=base",
    )
    vllm, llama = (part(settings, engine) for engine in ENGINES)
    assert (vllm.space, vllm.enqueue, vllm.baseline) == ("cpu", ("a",), None)
    assert (llama.space, llama.enqueue, llama.baseline) == ("my.yaml", ("b",), "base")


def test_a_parameter_is_searched_by_each_engine_that_has_it_or_that_it_names() -> None:
    only = ("max_num_seqs", "parallel", "llama.cpp.flash_attn")
    settings = StudySettings(model="folder", other_models=("m.gguf",), space="cpu", only=only)
    assert part(settings, "vllm").only == ("max_num_seqs",)
    assert part(settings, "llama.cpp").only == ("parallel", "flash_attn")


def test_a_study_of_one_engine_may_name_it() -> None:
    settings = StudySettings(model="vllm=folder")
    assert settings_of_engine(settings, "vllm", ("vllm",), on_cpu=True).model == "folder"
    with pytest.raises(SettingError, match=r"this study runs vllm, not llama\.cpp"):
        settings_of_engine(StudySettings(model="llama.cpp=m.gguf"), "vllm", ("vllm",), on_cpu=True)


@pytest.mark.parametrize(
    ("words", "asked", "gpus"),
    [
        (("-tp", "2"), None, 2),
        (("sglang=", "--tp-size", "4"), None, 4),
        (("-tp", "4", "sglang=", "--tp-size", "2"), None, 4),  # not the last one
        (("-tp", "2"), 8, 8),
        ((), None, 1),
    ],
)
def test_a_trial_has_the_gpus_of_the_engine_that_needs_most(
    words: tuple[str, ...], asked: int | None, gpus: int
) -> None:
    settings = StudySettings(server_arguments=words, gpus_per_trial=asked)
    assert gpus_of_engines(settings, ("vllm", "sglang")) == gpus


def test_all_engines_of_a_study_have_the_same_gpus(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"model_type": "qwen2", "vocab_size": 41, "max_position_embeddings": 2048, **shape}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ("sglang=", "--tp-size", "2")
    plan = plan_study(StudySettings(model=str(tmp_path), server_arguments=words), ("vllm", "sglang"), card="h200")
    assert [gpus_of_trial(each.settings) for each in plan.every] == [2, 2]
