"""Mistakes with `--engine openai`: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run_here
from tests.gguf_model import write_model
from tuner.errors import SettingError
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings

SPACE = """
engine: openai
parameters:
  slots: {description: Answers at a time., type: categorical, choices: [null, 1, 2], flag: --slots}
"""
COMMAND = ("--server-command", "python3 serve.py --port {port}")
COMPLETE = (*COMMAND, "--space", "my.yaml", "--model", "made.gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.yaml").write_text(SPACE)
    (tmp_path / "of_vllm.yaml").write_text(SPACE.replace("engine: openai", ""))
    write_model(tmp_path / "made.gguf")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "this engine starts a command, and none is given; give --server-command 'PROGRAM ARGUMENTS', with {port}"),
        (("--server-command", "python3 serve.py"), "no argument has {port}, and each trial has a port of its own; add"),
        (("--server-command", "no-such --port {port}"), "--server-command 'no-such': there is no such program; name a"),
        (COMMAND, "no space that is shipped has them; give --space FILE.yaml, with the line 'engine: openai'"),
        ((*COMMAND, "--space", "cpu"), "--space 'cpu': this space has the flags of vllm, and the study runs openai;"),
        ((*COMMAND, "--space", "of_vllm.yaml"), "the study runs openai; write 'engine: openai' into it"),
        ((*COMMAND, "--space", "my.yaml"), "give the name that /v1/models lists by --model NAME"),
        ((*COMPLETE, "--tokenizer", "."), "there is no tokenizer.json; give the model's by --tokenizer: a folder with"),
        ((*COMPLETE, "--temperature", "0"), "--temperature 0: the flag of the temperature is not known for a command"),
        ((*COMPLETE, "--vllm", "/bin/vllm"), "--vllm '/bin/vllm': this setting is for vLLM, and this study runs a"),
        ((*COMPLETE, "--llama-server", "x"), "--llama-server 'x': this setting is for llama.cpp, and this study runs"),
        ((*COMPLETE, "--ray-address", "h:1"), "--ray-address 'h:1': a command runs on this machine only; leave it out"),
        ((*COMPLETE, "--gpu", "t4"), "--gpu 't4': this setting is for a simulation, and this study is measured"),
        ((*COMPLETE, "--slo", "quality>=0.9"), "quality is measured with vLLM only, not with openai; leave it out"),
        (
            ("--server-command", "python3 x {port} --api-key abcdefgh", *COMPLETE[2:]),
            "server argument '--api-key': a secret is not given literally",
        ),
        (
            ("--server-command", "python3 x {port} --api-key ${NO_SUCH_KEY}", *COMPLETE[2:]),
            "--server-command '${NO_SUCH_KEY}': the environment has no variable NO_SUCH_KEY",
        ),
    ],
)
def test_a_mistake_is_one_line(folder: Path, argv: tuple[str, ...], message: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = run_here(folder, "optimize", "--engine", "openai", *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_another_engine_refuses_a_command(tmp_path: Path) -> None:
    done = run_here(tmp_path, "optimize", "--engine", "simulated", *COMMAND)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "this setting is for a command, and this study runs vLLM; add --engine openai" in done.err


def test_the_space_of_a_file_is_shown(folder: Path) -> None:
    shown = run_here(folder, "space", "--engine", "openai", "--space", "my.yaml", "--gpu", "cpu")
    assert shown.code == 0
    assert "search space my on CPU, a command of any version" in shown.out
    assert "slots" in shown.out
    none = run_here(folder, "space", "--engine", "openai")
    assert none.err == "tuner: the flags of a command are in no space that is shipped; give --space FILE\n"
    mixed = run_here(folder, "space", "--engine", "openai", "--space", "cpu")
    assert (mixed.code, mixed.err.count("\n")) == (2, 1)


def test_doctor_shows_the_program_of_a_command(tmp_path: Path) -> None:
    program = tmp_path / "serve"
    program.write_text("#!/bin/sh\necho serve 4.5.6\n")
    program.chmod(0o755)
    shown = run_here(tmp_path, "doctor", "--server-command", "./serve {port}")
    assert str(program) in shown.out
    assert "4.5.6" in shown.out
    missing = run_here(tmp_path, "doctor", "--server-command", "./none {port}")
    assert (missing.code, missing.err.count("\n")) == (2, 1)


def test_a_service_refuses_the_engine() -> None:
    with pytest.raises(SettingError, match="a service runs vLLM and simulations, and openai only `tuner optimize`"):
        check_plan(StudySettings(engine="openai", model="m"), {}, "cpu", simulated=False)
