"""Engines by name: the tuner's own, one that another package registers, and an unknown one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from records import plugins
from tuner.engines import server
from tuner.engines.kind import EngineKind, Feature, Found
from tuner.engines.kinds import kind_of, kinds, names, with_feature
from tuner.errors import SettingError, UserError
from tuner.settings.study import StudySettings
from tuner.use_cases.engines import chosen_engine

TOY = EngineKind("toy", "Toy", kind_of("vllm").build, lambda given: Found(Path(__file__), gpus=False))


def register(patch: pytest.MonkeyPatch, value: str) -> None:
    patch.setattr(plugins, "entry_points", lambda group: [EntryPoint("toy", value, group)])
    kinds.cache_clear()


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    kinds.cache_clear()


def test_each_name_leads_to_its_kind() -> None:
    assert names() == ("auto", "vllm", "llama.cpp", "openai", "sglang", "tensorrt-llm", "simulated")
    assert [kind_of(each).name for each in ("auto", "simulated", "simulated vllm", "vllm")] == ["vllm"] * 4
    assert with_feature(Feature.BESIDE_OTHERS) == ("vllm", "llama.cpp", "sglang")


def test_shared_code_names_no_engine() -> None:
    """Texts may name an engine, as a reason; variables, functions and classes do not."""
    words = ("vllm", "sglang", "llama", "tensorrt", "trtllm", "openai")
    found = {
        f"{path.name}: {name}"
        for path in Path(server.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (getattr(node, field, None) for field in ("id", "name", "arg", "attr", "asname"))
        if isinstance(name, str) and any(word in name.lower() for word in words)
    }
    assert found == set()


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="no engine has this name; engines: auto, vllm, ") as refused:
        kind_of("vlm")
    assert (refused.value.field, refused.value.value) == ("engine", "vlm")


def test_a_registered_engine_is_found_and_its_limits_hold(patch: pytest.MonkeyPatch) -> None:
    register(patch, f"{__name__}:TOY")
    assert names()[-2:] == ("toy", "simulated")
    found = chosen_engine(StudySettings(engine="toy"))
    assert (found[0].name, found[0].executable, found[1].names) == ("toy", __file__, ("cpu",))
    with pytest.raises(SettingError, match="Toy has one GPU for a trial"):
        chosen_engine(StudySettings(engine="toy", gpus_per_trial=2))


@pytest.mark.parametrize("name", ["vllm", "llama.cpp", "sglang", "tensorrt-llm"])
def test_an_engine_that_is_loaded_at_its_first_use_is_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        kind_of(name).find(str(tmp_path / "none"))
