"""Mistakes with `--engine llama.cpp`: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run_here
from tests.gguf_model import write_model
from tuner.errors import SettingError
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings

ENGINE = ("optimize", "--engine", "llama.cpp")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "llama.cpp serves a GGUF file, and none is given; give a GGUF file by --model FILE"),
        (("--model", "none.gguf"), "--model 'none.gguf': there is no such file, and llama.cpp serves a GGUF file;"),
        (("--model", "text.gguf"), "--model 'text.gguf': no GGUF file: it starts with b'hell', and a GGUF file starts"),
        (("--model", "GGUF", "--space", "cpu"), "--space 'cpu': this space has the flags of vllm, and the study runs"),
        (("--model", "GGUF", "--vllm", "/bin/vllm"), "--vllm '/bin/vllm': this setting is for vLLM, and this study"),
        (("--model", "GGUF", "--gpu", "t4"), "--gpu 't4': this setting is for a simulation, and this study is"),
        (("--model", "GGUF", "--ray-address", "h:1"), "--ray-address 'h:1': llama.cpp runs on this machine only;"),
        (("--model", "GGUF", "--llama-server", "none"), "--llama-server 'none': there is no such file; name the"),
        (("--model", "GGUF", "--slo", "quality>=0.99"), "--slo 'quality>=0.99': quality is measured with vLLM only"),
        (
            ("--model", "GGUF", "--input-len", "9999"),
            "requests of 9999 + 512 tokens exceed the model's context of 2048",
        ),
        (
            ("--model", "GGUF", "--input-len", "9", "--", "-m", "b.gguf"),
            "server argument '-m': the tuner sets this flag",
        ),
        (("--model", "GGUF", "--enqueue", "seqs-256"), "--enqueue 'seqs-256': "),
        (("--model", "GGUF", "--workers", "0"), "--workers 0: at least 1 is needed"),
    ],
)
@pytest.mark.program("libgomp1")
def test_a_mistake_is_one_line(tmp_path: Path, gguf: Path, argv: tuple[str, ...], message: str) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    words = [str(gguf) if word == "GGUF" else word for word in argv]
    done = run_here(tmp_path, *ENGINE, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.gguf"]


def test_an_engine_that_is_not_installed_says_what_to_install(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.engines.llama_cpp.engine.PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TUNER_LLAMA_SERVER", raising=False)
    done = run_here(tmp_path, *ENGINE, "--model", str(gguf))
    assert done.code == 2
    assert done.err == (
        "tuner: no llama.cpp found: no llama-server on PATH, and the package no_such_package is not installed; "
        "`pip install xllamacpp`, or put llama-server on PATH or its path into TUNER_LLAMA_SERVER\n"
    )


def test_another_engine_refuses_the_space_and_the_program_of_llama_cpp(tmp_path: Path) -> None:
    simulated = ("optimize", "--engine", "simulated", "--trials", "1")
    space = run_here(tmp_path, *simulated, "--space", "llama.cpp")
    assert (space.code, space.err.count("\n")) == (2, 1)
    assert "--space 'llama.cpp': this space has the flags of llama.cpp, and the study runs vllm" in space.err
    program = run_here(tmp_path, *simulated, "--llama-server", "/bin/true")
    assert (program.code, program.err.count("\n")) == (2, 1)
    assert "--llama-server '/bin/true': this setting is for llama.cpp, and this study runs vLLM" in program.err
    assert list(tmp_path.iterdir()) == []


def test_the_space_is_shown_for_a_model(tmp_path: Path, gguf: Path) -> None:
    shown = run_here(tmp_path, "space", "--engine", "llama.cpp", "--gpu", "cpu", "--model", str(gguf))
    assert shown.code == 0
    assert "search space llama.cpp on CPU, llama.cpp of any version" in shown.out
    assert "cache_type_v *" in shown.out
    assert "max_num_seqs" not in shown.out
    mixed = run_here(tmp_path, "space", "--engine", "llama.cpp", "--space", "cpu")
    assert (mixed.code, mixed.err.count("\n")) == (2, 1)
    vllm = run_here(tmp_path, "space", "--gpu", "t4", "--model", str(gguf))
    assert (vllm.code, vllm.err.count("\n")) == (2, 1)
    assert "this setting is for llama.cpp; the model of another engine is the preset's" in vllm.err
    other = run_here(tmp_path, "space", "--engine", "simulated")
    rule = "this engine has no space of its own; give one of vllm, llama.cpp, sglang, tensorrt-llm"
    assert other.err == f"tuner: --engine 'simulated': {rule}\n"


def test_a_service_refuses_the_engine() -> None:
    with pytest.raises(SettingError, match="a service runs vLLM and simulations") as caught:
        check_plan(StudySettings(engine="llama.cpp", model="m.gguf"), {}, "cpu", simulated=False)
    assert caught.value.field == "engine"
