"""A made model's folder, for engines that read a tokenizer without a library."""

import json
from pathlib import Path

import pytest

from tests.model_configs import TINY_QWEN

VOCABULARY = {f"t{number}": number for number in range(40)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder: a config and a tokenizer with 39 ordinary tokens, an added one, and a special one."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {**TINY_QWEN, "max_position_embeddings": 32768}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    added = [{"id": 40, "content": "<end>", "special": True}, {"id": 3, "content": "t3", "special": False}]
    tokenizer = {"model": {"type": "BPE", "vocab": {**VOCABULARY, "<end>": 40}}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder
