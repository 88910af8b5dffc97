"""The parts of settings that belong to each engine of a study."""

from __future__ import annotations

import pytest

from tuner.errors import SettingError
from tuner.study.specification.plans.given import settings_of
from tuner.study.specification.settings import ModelSettings, ServerSettings, SpaceSettings, StudySettings

ENGINES = ("vllm", "llama.cpp")


def part(settings: StudySettings, engine: str) -> StudySettings:
    """Return an engine's settings."""
    return settings_of(settings, engine, ENGINES, on_cpu=True)


def flags(*words: str) -> list[tuple[str, ...]]:
    """Return the server's flags of both engines."""
    settings = StudySettings(model=ModelSettings("folder", others=("m.gguf",)), server=ServerSettings(arguments=words))
    return [part(settings, engine).server.arguments for engine in ENGINES]


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
    settings = StudySettings(model=ModelSettings(given[0], others=given[1:]))
    assert [part(settings, engine).model.name for engine in ENGINES] == [vllm, llama]


def test_the_tokenizer_and_the_checkpoints_are_those_of_the_default_engine() -> None:
    model = ModelSettings("folder", "words", {"awq": "quantized"}, "draft", ("m.gguf",))
    vllm, llama = (part(StudySettings(model=model), engine).model for engine in ENGINES)
    assert vllm == ModelSettings("folder", "words", {"awq": "quantized"}, "draft")
    assert llama == ModelSettings("m.gguf")


def test_flags_after_an_engines_name_are_its_own() -> None:
    assert flags("--seed", "1") == [("--seed", "1"), ()]
    assert flags("--seed", "1", "llama.cpp=", "--threads", "8") == [("--seed", "1"), ("--threads", "8")]
    assert flags("llama.cpp=--threads", "8", "vllm=", "--seed", "1") == [("--seed", "1"), ("--threads", "8")]


def test_spaces_and_starting_points_without_a_name_are_those_of_the_default_engine() -> None:
    space = SpaceSettings("cpu", enqueue=("a", "llama.cpp=b"), baseline="llama.cpp=base", others=("llama.cpp=my.yaml",))
    settings = StudySettings(model=ModelSettings("folder", others=("m.gguf",)), space=space)
    vllm, llama = (part(settings, engine).space for engine in ENGINES)
    assert (vllm.name, vllm.enqueue, vllm.baseline) == ("cpu", ("a",), None)
    assert (llama.name, llama.enqueue, llama.baseline) == ("my.yaml", ("b",), "base")


def test_a_parameter_is_searched_by_each_engine_that_has_it_or_that_it_names() -> None:
    space = SpaceSettings("cpu", only=("max_num_seqs", "parallel", "llama.cpp.flash_attn"))
    settings = StudySettings(model=ModelSettings("folder", others=("m.gguf",)), space=space)
    assert part(settings, "vllm").space.only == ("max_num_seqs",)
    assert part(settings, "llama.cpp").space.only == ("parallel", "flash_attn")


def test_a_study_of_one_engine_may_name_it() -> None:
    settings = StudySettings(model=ModelSettings("vllm=folder"))
    assert settings_of(settings, "vllm", ("vllm",), on_cpu=True).model.name == "folder"
    with pytest.raises(SettingError, match=r"this study runs vllm, not llama\.cpp"):
        settings_of(StudySettings(model=ModelSettings("llama.cpp=m.gguf")), "vllm", ("vllm",), on_cpu=True)
