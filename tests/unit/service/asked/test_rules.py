"""What a submission may ask a server to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.service.asked.rules import ServerRules, check_rules
from tuner.service.asked.settings import read_settings

OPEN = ServerRules(
    flags=frozenset({"--chat-template"}), variables=frozenset({"VLLM_A"}), secrets=frozenset({"HF_TOKEN"})
)


def check(rules: ServerRules, /, **given: Any) -> None:
    check_rules(read_settings(given, "s"), rules)


def test_a_hub_model_is_allowed_unless_the_server_says_no() -> None:
    check(ServerRules(), model="Qwen/Qwen2.5-0.5B")
    with pytest.raises(SettingError, match="does not allow the model"):
        check(ServerRules(hub_models=False), model="Qwen/Qwen2.5-0.5B")


@pytest.mark.parametrize("path", ["/etc", "../models", "./m", "~/m", "/models/../etc", "models", "a/b/c", "/models"])
def test_a_folder_outside_the_allowed_ones_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(SettingError) as caught:
        check(ServerRules(model_folders=(tmp_path / "models",)), model=path)
    assert caught.value.field == "model"


def test_a_link_out_of_an_allowed_folder_is_refused(tmp_path: Path) -> None:
    models, secret = tmp_path / "models", tmp_path / "secret"
    models.mkdir()
    secret.mkdir()
    (models / "inside").mkdir()
    (models / "link").symlink_to(secret)
    rules = ServerRules(model_folders=(models,))
    check(rules, model=str(models / "inside"))
    with pytest.raises(SettingError):
        check(rules, model=str(models / "link"))


@pytest.mark.parametrize("name", ["preset", "space", "quality_task", "gpu", "baseline", "enqueue", "vllm_version"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../space.yaml", "contents/p.yaml", "./x", "a\\b", "lm-eval:contents/task", "~/x", "x\0y"]
)
def test_a_path_where_a_name_belongs_is_refused(name: str, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, **{name: [path] if name == "enqueue" else path})
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["preset", "space", "gpu"])
def test_a_file_that_exists_is_refused_as_one_that_does_not(name: str, tmp_path: Path) -> None:
    there, absent = tmp_path / "a.yaml", tmp_path / "b.yaml"
    there.write_text("model: [")
    texts = []
    for path in (there, absent):
        with pytest.raises(SettingError) as caught:
            check(OPEN, **{name: str(path)})
        texts.append(str(caught.value).replace(str(path), "FILE"))
    assert texts[0] == texts[1]
    assert "FILE" in texts[0]


@pytest.mark.parametrize("task", ["lm-eval:gsm8k", "lm-eval:gsm8k,arc_easy", "lm-eval:mmlu-pro", '{"prompt": "a"}\n'])
def test_a_quality_task_is_a_name_or_a_content(task: str) -> None:
    check(ServerRules(), quality_task=task)


@pytest.mark.parametrize("task", ["lm-eval:", "lm-eval:a.yaml", "lm-eval:a/b", "lm-eval:a,", "lm-eval:a,../b", "gsm8k"])
def test_a_quality_task_names_no_file(task: str) -> None:
    with pytest.raises(SettingError) as caught:
        check(ServerRules(), quality_task=task)
    assert caught.value.field == "quality_task"


def test_flags_and_variables_need_no_consent_if_shipped_spaces_have_them() -> None:
    check(ServerRules(), server_arguments=["--max-num-seqs", "8"], env={"VLLM_USE_FLASHINFER_SAMPLER": "1"})
    check(ServerRules(), baseline="--max-num-seqs 8 --enable-prefix-caching")


def test_a_server_adds_flags_with_every_value() -> None:
    check(OPEN, server_arguments=["--chat-template", "/srv/chat.jinja"])
    with pytest.raises(SettingError, match="does not allow the flag"):
        check(ServerRules(), server_arguments=["--chat-template", "/srv/chat.jinja"])


def test_a_baseline_of_flags_is_no_way_around_them() -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, baseline="--trust-remote-code --max-num-seqs 8")
    assert caught.value.field == "baseline"
    with pytest.raises(SettingError, match="not a command line"):
        check(OPEN, baseline="--x 'open")


def test_variables_and_secrets_are_the_servers_to_allow() -> None:
    check(OPEN, env={"VLLM_A": "/any value"})
    check(OPEN, env={"VLLM_A": "${HF_TOKEN}"})
    refused = ({"LD_PRELOAD": "/x.so"}, {"VLLM_A": "${AWS_SECRET}"}, {"VLLM_USE_FLASHINFER_SAMPLER": "/x"})
    for env in refused:
        with pytest.raises(SettingError) as caught:
            check(OPEN, env=env)
        assert caught.value.field == "env"
    with pytest.raises(SettingError):
        check(OPEN, server_arguments=["--chat-template", "${AWS_SECRET}"])
