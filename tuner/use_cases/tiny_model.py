"""Make a small model: a configuration of Qwen2's architecture and a tokenizer, without weights.

Four layers of width 256 and 4,096 tokens are small enough for two CPU cores. vLLM takes every step that it takes for a
large model; its dummy loader fills in random weights.
"""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path
from typing import Any

from tuner.errors import SettingError, reason_of

VOCABULARY = 4096
_END = "<|endoftext|>"
_CONTEXT = 4096
_MARK = "config.json"
_SYLLABLES = [(consonant, vowel) for consonant in "bcdfghjklmnprstvz" for vowel in "aeiou"]


def make_model(folder: Path) -> Path:
    """Write config.json, generation_config.json and the tokenizer's files to `folder` and return it.

    Raises:
        SettingError: if the folder has other files, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {each.name for each in folder.iterdir()}
        if others and _MARK not in others:
            raise SettingError("tiny_model", str(folder), "the folder is not empty and no model", "name a new one")
        end = make_tokenizer(folder)
        special = {"bos_token_id": end, "eos_token_id": end}
        _write(folder / _MARK, {**_SHAPE, **special})
        _write(folder / "generation_config.json", special)
    except OSError as error:
        rule = f"the folder cannot be written ({reason_of(error)})"
        raise SettingError("tiny_model", str(folder), rule, "name another one") from None
    return folder


_SHAPE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": _CONTEXT,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "max_window_layers": 4,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


def make_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer whose merges are made syllables; return the id of its end-of-text token."""
    letters = _byte_letters()
    merges = [*_SYLLABLES, *((letters[ord(" ")], "".join(each)) for each in _SYLLABLES)]
    words = product([first + second for first, second in merges[len(_SYLLABLES) :]], ["".join(s) for s in _SYLLABLES])
    merges += islice(words, VOCABULARY - 1 - len(letters) - len(merges))
    tokens = [_END, *letters, *(first + second for first, second in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 0, "content": _END, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{**end, **flags}],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: place for place, token in enumerate(tokens)}, "merges": merges},
    }
    _write(folder / "tokenizer.json", tokenizer)
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "pad_token": _END}
    _write(folder / "tokenizer_config.json", {**own, "model_max_length": _CONTEXT})
    return 0


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in a byte-level tokenizer, as GPT-2 chose them."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    unprinted = [byte for byte in range(256) if byte not in printed]
    return [chr(byte if byte in printed else 256 + unprinted.index(byte)) for byte in range(256)]


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
