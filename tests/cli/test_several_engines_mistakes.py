"""Mistakes with `--engine` given twice: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import CommandOutput, refused, run_here
from tests.fakes import install_fake_vllm
from tests.gguf_model import write_model

BOTH = ("--engine", "vllm", "--engine", "llama.cpp")
MODELS = ("--model", "GGUF", "--model", "FOLDER")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_fake_vllm(tmp_path_factory.mktemp("bin"))


def optimize(folder: Path, gguf: Path, model: Path, vllm: Path, *argv: str) -> CommandOutput:
    """Run `tuner optimize` with the names GGUF and FOLDER replaced by the models."""
    words = [word.replace("GGUF", str(gguf)).replace("FOLDER", str(model)) for word in argv]
    return run_here(folder, "optimize", "--vllm", str(vllm), *words)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--engine", "vllm"), "--engine 'vllm': this engine is given twice; give each engine once"),
        (
            ("--engine", "openai"),
            "--engine 'openai': a study of several engines measures vllm, llama.cpp, sglang; leave it out, or give it",
        ),
        (("--engine", "none"), "--engine 'none': no engine has this name; engines: auto, vllm, llama.cpp, openai,"),
    ],
)
def test_a_second_engine_that_cannot_be_ranked(
    tmp_path: Path, gguf: Path, model: Path, vllm: Path, argv: tuple[str, ...], message: str
) -> None:
    refused(optimize(tmp_path, gguf, model, vllm, "--engine", "vllm", *argv), tmp_path, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "tuner: llama.cpp serves a GGUF file, and none is given; add --model llama.cpp=MODEL"),
        (("--model", "GGUF"), "vllm serves a folder or a hub name, and none is given; add --model vllm=MODEL"),
        (("--model", "FOLDER"), "llama.cpp serves a GGUF file, and none is given; add --model llama.cpp=MODEL"),
        (
            ("--model", "sglang=GGUF"),
            "this study runs vllm and llama.cpp, not sglang; add --engine sglang, or leave it out",
        ),
        ((*MODELS, "--model", "b"), "--model 'b': vllm serves one model, and two are given; leave one out"),
        ((*MODELS, "--space", "sglang=cpu"), "--space 'sglang=cpu': this study runs vllm and llama.cpp, not sglang;"),
        ((*MODELS, "--space", "cpu", "--space", "cpu"), "--space 'cpu': vllm has one space, and two are given;"),
        ((*MODELS, "--enqueue", "sglang=x"), "--enqueue 'sglang=x': this study runs vllm and llama.cpp, not sglang;"),
        (
            (*MODELS, "--space", "cpu", "--only", "max_num_seqs"),
            "--only 'max_num_seqs': none of these is a parameter of llama.cpp; name one of llama.cpp, such as ",
        ),
        ((*MODELS, "--ray-address", "h:1"), "--ray-address 'h:1': a study of several engines runs on this machine"),
        ((*MODELS, "--", "none=", "--threads", "1"), "'none=' is not an option of `tuner optimize`; flags of"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, gguf: Path, model: Path, vllm: Path, argv: tuple[str, ...], message: str
) -> None:
    refused(optimize(tmp_path, gguf, model, vllm, *BOTH, *argv), tmp_path, message)
