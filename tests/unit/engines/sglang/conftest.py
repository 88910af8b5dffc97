"""A Python that has the fake SGLang, and a made model's folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[3] / "fakes" / "sglang_site"
VOCABULARY = {f"t{number}": number for number in range(40)}


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs this Python with the fake SGLang on its path."""
    made = tmp_path_factory.mktemp("venv") / "bin" / "python"
    made.parent.mkdir(parents=True)
    words = ["exec", "env", f"PYTHONPATH={SITE}", sys.executable]
    made.write_text(f'#!/bin/sh\n{shlex.join(words)} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder: a config and a tokenizer with 40 ordinary tokens and a special one."""
    folder = tmp_path / "model"
    folder.mkdir()
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 41, **shape}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}), encoding="utf-8")
    added = [{"id": 40, "content": "<end>", "special": True}, {"id": 3, "content": "t3", "special": False}]
    tokenizer = {"model": {"type": "BPE", "vocab": {**VOCABULARY, "<end>": 40}}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder
