"""Mistakes with `--engine tensorrt-llm`: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import run_here
from tests.tensorrt_llm_program import VERSION, write_program
from tuner.errors import SettingError
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings

ENGINE = ("optimize", "--engine", "tensorrt-llm")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("venv") / "bin")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"model_type": "qwen2", "vocab_size": 41, "max_position_embeddings": 2048, **shape}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--space", "cpu"), "--space 'cpu': this space has the flags of vllm, and the study runs tensorrt-llm;"),
        (("--vllm", "/bin/vllm"), "--vllm '/bin/vllm': this setting is for vLLM, and this study runs TensorRT-LLM;"),
        (("--ray-address", "h:1"), "--ray-address 'h:1': TensorRT-LLM runs on this machine only;"),
        (("--gpus-per-trial", "2"), "--gpus-per-trial 2: "),
        (("--trtllm-serve", "none"), "--trtllm-serve 'none': there is no such file; name the trtllm-serve of its"),
        (("--trtllm-serve", "/bin/true"), "/bin/true is not the script that TensorRT-LLM installs; name the"),
        (("--slo", "quality>=0.99"), "quality is measured with vLLM only, not with tensorrt-llm"),
        (("--temperature", "0.5"), "--temperature 0.5: TensorRT-LLM has no flag for it; leave it out here"),
        (("--", "--config", "my.yaml"), "server argument '--config': the tuner sets this flag; give each option as"),
        (("--", "--config.a.b"), "server argument '--config.a.b': a value is missing; give it as --config.KEY VALUE"),
        (("--", "--max-batch-size", "8"), "tensorrt-llm 1.3.0rc7 has no such flag"),
        (("--", "--tp_size", "2"), "server argument '--tp_size': the tuner sets this flag; leave it out: a trial of"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, program: Path, model: Path, argv: tuple[str, ...], message: str) -> None:
    given = [] if "--trtllm-serve" in argv else ["--trtllm-serve", str(program)]
    done = run_here(tmp_path, *ENGINE, *given, "--model", str(model), *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_installed_is_one_line(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("TUNER_TRTLLM_SERVE", raising=False)
    done = run_here(tmp_path, *ENGINE, "--model", str(model))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "no TensorRT-LLM found: no trtllm-serve on PATH; install one by NVIDIA's guide" in done.err


def test_another_engine_refuses_the_program_and_the_space(tmp_path: Path) -> None:
    simulated = ("optimize", "--engine", "simulated", "--trials", "1")
    named = run_here(tmp_path, *simulated, "--trtllm-serve", "/bin/true")
    assert (named.code, named.err.count("\n")) == (2, 1)
    rule = "this setting is for TensorRT-LLM, and this study runs vLLM; add --engine tensorrt-llm"
    assert f"--trtllm-serve '/bin/true': {rule}" in named.err
    space = run_here(tmp_path, *simulated, "--space", "tensorrt-llm")
    assert "this space has the flags of tensorrt-llm, and the study runs vllm" in space.err
    assert list(tmp_path.iterdir()) == []


def test_the_space_is_shown_and_doctor_names_the_program(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_here(tmp_path, "space", "--engine", "tensorrt-llm", "--gpu", "h200")
    assert shown.code == 0
    assert "search space tensorrt-llm on NVIDIA H200, TensorRT-LLM of any version" in shown.out
    assert "kv_memory_fraction" in shown.out
    assert "max_num_seqs" not in shown.out
    monkeypatch.setenv("TUNER_TRTLLM_SERVE", str(program))
    facts = json.loads(run_here(tmp_path, "doctor", "--json").out)
    found = (facts["trtllm_serve"], facts["tensorrt_llm_version"], facts["tensorrt_llm_problem"])
    assert found == (str(program), VERSION, None)


def test_a_service_refuses_the_engine() -> None:
    with pytest.raises(SettingError, match="a service runs vLLM and simulations") as caught:
        check_plan(StudySettings(engine="tensorrt-llm", model="m"), {}, "cpu", simulated=False)
    assert caught.value.field == "engine"
