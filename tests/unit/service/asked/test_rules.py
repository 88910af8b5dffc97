"""What a submission may ask a server to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.service.asked.rules import ServerRules, check_rules
from tuner.service.asked.settings import read_settings

OPEN = ServerRules(arguments=True, variables=frozenset({"VLLM_A"}), secrets=frozenset({"HF_TOKEN"}))


def check(rules: ServerRules, admin: bool = False, /, **given: Any) -> None:
    check_rules(read_settings(given, "s"), rules, admin=admin)


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


@pytest.mark.parametrize("name", ["space", "quality_task", "gpu", "baseline"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../space.yaml", "space.yaml", "./x", "a\\b"])
def test_a_path_where_a_name_or_a_content_belongs_is_refused(name: str, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, **{name: path})
    assert caught.value.field == name


def test_raw_flags_need_an_admin_or_the_servers_consent() -> None:
    flags = ["--max-num-seqs", "8"]
    check(OPEN, server_arguments=flags)
    check(ServerRules(), True, server_arguments=flags)
    with pytest.raises(SettingError, match="does not allow raw flags"):
        check(ServerRules(), server_arguments=flags)


@pytest.mark.parametrize(
    "flag",
    [
        "--trust-remote-code",
        "--trust_remote_code",
        "--trust-remote-code=true",
        "--TRUST-REMOTE-CODE",
        "--trust-rem",
        "--tru",
        "-trust-remote-code",
        "--config=/etc/x.yaml",
        "--conf",
        "--hf-overrides.auto_map=x",
        "--hf_overrides={}",
        "--worker-cls=os.system",
        "--worker-extension-cls",
        "--middleware=x.y",
    ],
)
@pytest.mark.parametrize("admin", [False, True])
def test_flags_that_load_code_are_refused_in_every_spelling(flag: str, admin: bool) -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, admin, server_arguments=[flag])
    assert caught.value.field == "server_arguments"


def test_a_baseline_of_flags_is_no_way_around_them() -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, baseline="--trust-remote-code --max-num-seqs 8")
    assert caught.value.field == "baseline"


def test_variables_and_secrets_are_the_servers_to_allow() -> None:
    check(OPEN, env={"VLLM_A": "1"})
    check(OPEN, env={"VLLM_A": "${HF_TOKEN}"})
    check(ServerRules(), True, env={"ANY": "1"})
    for env in ({"LD_PRELOAD": "/x.so"}, {"VLLM_A": "${AWS_SECRET}"}):
        with pytest.raises(SettingError) as caught:
            check(OPEN, env=env)
        assert caught.value.field == "env"
    with pytest.raises(SettingError):
        check(ServerRules(), True, env={"ANY": "${TUNER_SERVICE_JOB}"})
    with pytest.raises(SettingError):
        check(OPEN, server_arguments=["--api-key", "${AWS_SECRET}"])


SPACE = "parameters:\n  a: {kind: bool, flag: --%s}\n"


def test_a_space_of_ones_own_needs_consent_and_declares_no_flag_that_loads_code() -> None:
    check(OPEN, space=SPACE % "enforce-eager")
    check(ServerRules(), True, space=SPACE % "enforce-eager")
    with pytest.raises(SettingError, match="only shipped search spaces"):
        check(ServerRules(), space=SPACE % "enforce-eager")
    with pytest.raises(SettingError, match="loads code"):
        check(OPEN, space=SPACE % "trust-remote-code")
    with pytest.raises(SettingError, match="loads code"):
        check(OPEN, space='parameters:\n  a: {kind: bool, flag: "\\x2d-trust_remote_code"}\n')


def test_a_baseline_of_flags_needs_what_raw_flags_need() -> None:
    check(OPEN, baseline="--max-num-seqs 8")
    check(ServerRules(), baseline="defaults")
    with pytest.raises(SettingError, match="does not allow raw flags"):
        check(ServerRules(), baseline="--max-num-seqs 8")
    with pytest.raises(SettingError, match="not a command line"):
        check(OPEN, baseline="--x 'open")
