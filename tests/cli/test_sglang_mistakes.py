"""Mistakes with `--engine sglang`: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.command import run_here
from tuner.errors import SettingError
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings

ENGINE = ("optimize", "--engine", "sglang")
SITE = Path(__file__).parents[1] / "fakes" / "sglang_site"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("venv") / "python"
    words = shlex.join(["exec", "env", f"PYTHONPATH={SITE}", sys.executable])
    made.write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"intermediate_size": 128}
    config = {"model_type": "qwen2", "vocab_size": 41, "max_position_embeddings": 2048, **shape}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--model", "/none"), "--model '/none': the folder has no config.json"),
        (("--space", "cpu"), "--space 'cpu': this space has the flags of vllm, and the study runs sglang;"),
        (("--vllm", "/bin/vllm"), "--vllm '/bin/vllm': this setting is for vLLM, and this study runs SGLang;"),
        (("--gpu", "t4"), "--gpu 't4': this setting is for a simulation, and this study is"),
        (("--ray-address", "h:1"), "--ray-address 'h:1': SGLang runs on this machine only;"),
        (("--sglang", "none"), "--sglang 'none': there is no such file; name the Python that has SGLang"),
        (("--sglang", sys.executable), "has no SGLang; name the Python that has SGLang, such as VENV/bin/python"),
        (("--slo", "quality>=0.99"), "--slo 'quality>=0.99': quality is measured with vLLM only, not with sglang"),
        (("--temperature", "0.5"), "--temperature 0.5: SGLang has no flag for it; set it in the model's generation"),
        (("--input-len", "9999"), "requests of 9999 + 512 tokens exceed the model's context of 2048"),
        (("--gpus-per-trial", "2"), "--gpus-per-trial 2: this machine has no GPU; leave it out"),
        (("--", "--tp-size", "8"), "the model has 4 attention heads, which 8 does not divide; choose a divisor"),
        (("--", "--page-size", "small"), "--page-size: 'small' is not a whole number; correct it after `--`"),
        (("--", "--enable-metrics"), "server argument '--enable-metrics': the tuner sets this flag"),
        (("--", "--api-key", "literal"), "server argument '--api-key': a secret is not given literally"),
        (("--enqueue", "seqs-256"), "--enqueue 'seqs-256': "),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, python: Path, model: Path, argv: tuple[str, ...], message: str) -> None:
    given = [] if "--sglang" in argv else ["--sglang", str(python)]
    named = [] if "--model" in argv else ["--model", str(model)]
    done = run_here(tmp_path, *ENGINE, *given, *named, *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_engine_refuses_the_space_and_the_python_of_sglang(tmp_path: Path) -> None:
    simulated = ("optimize", "--engine", "simulated", "--trials", "1")
    space = run_here(tmp_path, *simulated, "--space", "sglang")
    assert (space.code, space.err.count("\n")) == (2, 1)
    assert "--space 'sglang': this space has the flags of sglang, and the study runs vllm" in space.err
    python = run_here(tmp_path, *simulated, "--sglang", "/bin/true")
    assert (python.code, python.err.count("\n")) == (2, 1)
    assert "--sglang '/bin/true': this setting is for SGLang, and this study runs vLLM" in python.err
    assert list(tmp_path.iterdir()) == []


def test_the_space_is_shown_and_doctor_names_the_python(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_here(tmp_path, "space", "--engine", "sglang", "--gpu", "h200")
    assert shown.code == 0
    assert "search space sglang on NVIDIA H200, SGLang of any version" in shown.out
    assert "max_running_requests" in shown.out
    assert "max_num_seqs" not in shown.out
    monkeypatch.setenv("TUNER_SGLANG", str(python))
    facts = json.loads(run_here(tmp_path, "doctor", "--json").out)
    assert (facts["sglang"], facts["sglang_version"], facts["sglang_problem"]) == (str(python), "0.5.23", None)


def test_a_service_refuses_the_engine() -> None:
    with pytest.raises(SettingError, match="a service runs vLLM and simulations") as caught:
        check_plan(StudySettings(engine="sglang", model="m"), {}, "cpu", simulated=False)
    assert caught.value.field == "engine"
