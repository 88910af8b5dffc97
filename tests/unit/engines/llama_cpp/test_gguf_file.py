"""The header of a GGUF file, read from a made one; and files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from search_spaces import ModelShape
from tests.gguf_model import MadeModel, write_model
from tuner.engines.server.gguf_file import GgufError, GgufHeader, read_header


def test_the_header_has_the_shape_of_the_model(gguf: Path) -> None:
    header = read_header(gguf)
    assert (header.architecture, header.file_type, header.vocabulary) == ("llama", "f16", 1024)
    assert header.shape == ModelShape(2, 64, 128, 2, 1, 32, 1024, 2048, False, "float16", None)


def test_ordinary_tokens_are_neither_control_tokens_nor_bytes(gguf: Path) -> None:
    tokens = read_header(gguf).text_tokens
    assert tokens == tuple(range(3 + 256, 1024))


def test_a_made_model_is_the_same_every_time(gguf: Path, tmp_path: Path) -> None:
    assert write_model(tmp_path / "again.gguf").read_bytes() == gguf.read_bytes()
    assert write_model(tmp_path / "other.gguf", MadeModel(seed=8)).read_bytes() != gguf.read_bytes()


def test_a_model_without_a_length_has_no_shape(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf.read_bytes().replace(b"llama.context_length", b"llama.context_lengzh"))
    assert read_header(file).shape is None


def test_a_mixture_of_experts_has_their_number() -> None:
    own = {"attention.head_count": 32, "attention.head_count_kv": 4, "embedding_length": 2048, "block_count": 48}
    own |= {"context_length": 40960, "expert_count": 128, "expert_feed_forward_length": 768}
    values = {f"qwen3moe.{key}": value for key, value in own.items()}
    shape = GgufHeader({"general.architecture": "qwen3moe", "tokenizer.ggml.tokens": 151_936, **values}).shape
    assert shape is not None
    assert (shape.experts, shape.intermediate, shape.kv_heads, shape.groups) == (128, 768, 4, ())


def pairs(count: int, content: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + content


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello", "it starts with b'hell', and a GGUF file starts with b'GGUF'"),
        (b"", "it starts with b''"),
        (pairs(0, version=1), "GGUF version 1; versions 2 and 3 are known"),
        (pairs(10**9), "1000000000 key-value pairs; 65536 are possible"),
        (pairs(1), "its header is cut off"),
        (pairs(1, struct.pack("<Q", 2**60)), "a text of 1152921504606846976 bytes"),
        (pairs(1, text(b"key") + struct.pack("<I", 99)), "a value of the unknown type 99"),
        (pairs(1, text(b"key") + struct.pack("<IIQ", 9, 4, 2**40)), "an array of 1099511627776 elements"),
        (pairs(1, text(b"key") + struct.pack("<IIQ", 9, 9, 1)), "an array of arrays"),
    ],
)
def test_a_file_that_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(GgufError) as caught:
        read_header(file)
    assert reason in str(caught.value)
