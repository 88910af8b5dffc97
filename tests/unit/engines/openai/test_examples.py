"""The examples of docs/engines.md: the space of two engines, the script that starts one, and a model in two formats."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

from search_spaces import Context, hardware_named, load_space
from tests.gguf_model import MadeModel
from tests.two_formats import unpermuted, write_both

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({}, ()),
        ({"max_num_seqs": 4}, ("--max-num-seqs", "4")),
        ({"engine": "llama.cpp"}, ("--engine", "llama.cpp")),
        ({"engine": "llama.cpp", "parallel": 2}, ("--engine", "llama.cpp", "--parallel", "2")),
    ],
)
def test_each_engine_opens_its_own_parameters(config: dict[str, str | int], argv: tuple[str, ...]) -> None:
    space = load_space(EXAMPLES / "two_engines.yaml").resolve(Context(hardware_named("cpu"), engine="openai"))
    assert space.render(space.complete(config)).argv == argv
    assert space.contains(config)
    assert not space.contains({"parallel": 2}), "a parameter of llama.cpp counts with llama.cpp only"


@pytest.mark.parametrize(
    ("words", "started"),
    [
        ([], ["vllm", "serve", "/folder", "--served-model-name", "m", "--host", "127.0.0.1", "--port", "81"]),
        (
            ["--engine", "llama.cpp", "--parallel", "2"],
            [
                *("llama", "--model", "/file", "--alias", "m", "--host", "127.0.0.1", "--port", "81"),
                *("--parallel", "2"),
            ],
        ),
    ],
)
def test_the_script_starts_the_engine_of_the_trial(tmp_path: Path, words: list[str], started: list[str]) -> None:
    variables = {"MODEL_FOLDER": "/folder", "MODEL_FILE": "/file", "PATH": "/usr/bin:/bin"}
    for variable, name in (("VLLM", "vllm"), ("LLAMA_SERVER", "llama")):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        stub.chmod(0o755)
        variables[variable] = str(stub)
    script = [str(EXAMPLES / "one_of_two_engines.sh"), "81", "m", *words]
    done = subprocess.run(script, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == started


def test_another_engine_is_refused(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "one_of_two_engines.sh"), "81", "m", "--engine", "other"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: argument --engine: invalid choice: other\n")


def test_rows_of_queries_are_ordered_by_halves() -> None:
    """llama.cpp rotates rows 0 and 1 together, then 2 and 3; transformers 0 and 2, then 1 and 3."""
    rows = np.array([[0], [1], [2], [3]], np.float16)
    assert unpermuted(rows, 1).ravel().tolist() == [0, 2, 1, 3]
    assert unpermuted(rows, 2).ravel().tolist() == [0, 1, 2, 3]


def test_both_formats_have_the_same_weights(tmp_path: Path) -> None:
    file, folder = write_both(tmp_path, MadeModel(layers=1))
    content = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    head = json.loads(content[8 : 8 + size])
    begin, end = head["lm_head.weight"]["data_offsets"]
    stored = np.frombuffer(content[8 + size + begin : 8 + size + end], np.float16)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(file)).tensors}
    assert np.array_equal(stored, np.asarray(tensors["output.weight"].data).ravel())
    assert len(head) == len(tensors) == 12
