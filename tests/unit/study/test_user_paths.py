"""Paths relative to the folder of the command, which a server in another folder could not find."""

import json
from pathlib import Path

import pytest

from search_spaces import load_space
from tuner.engines.user_command import absolute_arguments
from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import locate_others
from tuner.study.specification.plan import plan_study


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a template, two models and an adapter, in which the command runs."""
    folder = tmp_path.resolve() / "work"
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "chat.jinja").touch()
    (folder / "chat.jinja").touch()
    for name in ("model", "awq", "red", "auto"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path.resolve()))
    return folder


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--chat-template", "--chat-template"),
        ("chat.jinja", "{here}/chat.jinja"),
        ("templates/chat.jinja", "{here}/templates/chat.jinja"),
        ("--chat-template=chat.jinja", "--chat-template={here}/chat.jinja"),
        ("./missing", "{here}/missing"),
        ("~/missing", "{home}/missing"),
        ("red=red", "red={here}/red"),
        ("red=./red", "red={here}/red"),
        ("red=org/red", "red=org/red"),
        (".", "{here}"),
        # no paths: a choice that a folder is called like, a hub name, numbers, JSON, and an absolute path
        ("auto", "auto"),
        ("--dtype=auto", "--dtype=auto"),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("0.9", "0.9"),
        ("", ""),
        ("/etc/hostname", "/etc/hostname"),
        ('{"model": "' + 300 * "x" + '"}', '{"model": "' + 300 * "x" + '"}'),
    ],
)
def test_words_of_a_server(here: Path, word: str, expected: str) -> None:
    assert absolute_arguments([word]) == (expected.replace("{here}", str(here)).replace("{home}", str(here.parent)),)


def test_a_plan_has_absolute_paths(here: Path) -> None:
    (here / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    given = StudySettings(
        model="model",
        tokenizer="auto",
        checkpoint={"awq": "awq"},
        draft_model="./red",
        server_arguments=("--chat-template", "chat.jinja"),
    )
    plan = plan_study(given)
    assert (plan.model.name, plan.model.tokenizer) == (str(here / "model"), str(here / "auto"))
    assert plan.settings.checkpoint == {"awq": str(here / "awq")}
    assert plan.settings.draft_model == str(here / "red")
    assert plan.server.arguments == ("--chat-template", str(here / "chat.jinja"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (StudySettings(checkpoint={"awq": "./templates"}), r"checkpoint='./templates': the folder has no config.json"),
        (StudySettings(checkpoint={"awq": "a b"}), r"checkpoint='a b': neither a folder nor a hub name"),
        (StudySettings(draft_model="nobody/nothing"), r"draft_model='nobody/nothing': the model is not downloaded"),
    ],
)
def test_models_that_do_not_exist(given: StudySettings, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        locate_others(given, load_space("vllm"), simulated=False)
    assert locate_others(given, load_space("vllm"), simulated=True).draft_model == given.draft_model
