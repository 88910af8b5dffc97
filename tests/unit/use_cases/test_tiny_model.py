"""The small model: its tokenizer is read by the library, and vLLM's dummy loader needs no more than its files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tuner.errors import SettingError
from tuner.use_cases.tiny_model import VOCABULARY, make_model


def test_the_tokenizer_keeps_texts_and_joins_syllables(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(make_model(tmp_path / "model") / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert tokenizer.encode("banana bibo lu").tokens == ["ba", "na", "na", "Ġbibo", "Ġlu"]
    for text in ("Hello wörld", " \x00\n\t", "zuzuzu", "日本"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([0]) == ""


def test_a_second_call_writes_the_same_files(tmp_path: Path) -> None:
    first = {each.name: each.read_bytes() for each in make_model(tmp_path).iterdir()}
    assert {each.name: each.read_bytes() for each in make_model(tmp_path).iterdir()} == first
    assert {*first} == {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    config = json.loads(first["config.json"])
    assert (config["eos_token_id"], config["architectures"]) == (0, ["Qwen2ForCausalLM"])


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SettingError, match="not empty and no model"):
        make_model(tmp_path)
    with pytest.raises(SettingError, match="cannot be written"):
        make_model(tmp_path / "thesis.txt")
