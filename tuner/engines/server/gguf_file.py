"""Read the header of a GGUF file: the model's shape and which of its tokens make prompts.

The format is that of llama.cpp's `docs/gguf.md`: the magic `GGUF`, a version, the numbers of tensors and of key-value
pairs, then the pairs. Tensors are not read. Sizes in the file are checked before anything of that size is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from search_spaces import ModelShape

MAGIC = b"GGUF"
VERSIONS = (2, 3)
PAIRS_LIMIT = 65_536
STRING_LIMIT = 2**24
ARRAY_LIMIT = 2**24
"""Most pairs of a header, bytes of a text, and elements of an array; a vocabulary has up to 300,000 tokens."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_NORMAL = 1
"""The type of a token that is part of ordinary text; others are control tokens, bytes, and unused ones."""

_FILE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 32: "bf16"}
_PLAIN = ("f32", "f16", "bf16")
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class GgufError(ValueError):
    """A file is no GGUF file that can be read; the text says why."""


@dataclass(frozen=True)
class GgufHeader:
    """The key-value pairs of a file; an array of texts is stored as its length, unless its texts were read."""

    values: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """The name of the architecture, such as `llama` or `qwen2`."""
        return str(self.values.get("general.architecture", "unknown"))

    @property
    def file_type(self) -> str | None:
        """The format of most weights, such as `q4_0`; None if it has no plain name here."""
        return _FILE_TYPES.get(self.values.get("general.file_type", -1))

    @property
    def vocabulary(self) -> int:
        """The number of tokens; 0 if the file has no tokenizer."""
        tokens = self.values.get("tokenizer.ggml.tokens", 0)
        return len(tokens) if isinstance(tokens, tuple) else int(tokens)

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """The ids of tokens that are part of ordinary text, all of them if the file states no types."""
        types = self.values.get("tokenizer.ggml.token_type")
        if not isinstance(types, tuple):
            return tuple(range(self.vocabulary))
        return tuple(token for token, kind in enumerate(types) if kind == _NORMAL)

    @property
    def shape(self) -> ModelShape | None:
        """The model's shape; None if the file lacks a part of it, or its layers differ.

        Of a mixture of experts it has their number; its layers are not read.
        """
        heads, hidden = self._own("attention.head_count"), self._own("embedding_length")
        layers, context = self._own("block_count"), self._own("context_length")
        inner = self._own("feed_forward_length") or self._own("expert_feed_forward_length")
        experts = self._own("expert_count") or 0
        kv_heads = self._own("attention.head_count_kv") or heads
        if not (heads and hidden and layers and context and inner and kv_heads and self.vocabulary):
            return None
        stored = self.file_type
        return ModelShape(
            layers=layers,
            hidden=hidden,
            intermediate=inner,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=self._own("attention.key_length") or hidden // heads,
            vocab=self.vocabulary,
            max_position_embeddings=context,
            tied=False,
            dtype=_DTYPES.get(stored or "", "float16"),
            quantization=None if stored in _PLAIN else stored or "gguf",
            experts=experts,
            decoder=() if experts > 1 else None,
        )

    def _own(self, key: str) -> int | None:
        """Return a whole number of the architecture; None if it is missing or not the same for all layers."""
        value = self.values.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_header(path: Path, *, texts: bool = False) -> GgufHeader:
    """Return the header of a GGUF file.

    Args:
        path: of the file.
        texts: whether to keep the texts of arrays, such as the tokens.

    Raises:
        GgufError: if it is not such a file, or its header is cut off or has impossible sizes.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != MAGIC:
            raise GgufError(f"it starts with {magic!r}, and a GGUF file starts with {MAGIC!r}")
        version = _number(file, "<I")
        if version not in VERSIONS:
            raise GgufError(f"GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are known")
        _number(file, "<Q")
        pairs = _number(file, "<Q")
        if pairs > PAIRS_LIMIT:
            raise GgufError(f"{pairs} key-value pairs; {PAIRS_LIMIT} are possible")
        values: dict[str, Any] = {}
        for _ in range(pairs):
            key = _text(file)
            values[key] = _value(file, _number(file, "<I"), texts=texts)
    return GgufHeader(values)


def _value(file: BinaryIO, kind: int, *, texts: bool) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind == _ARRAY:
        return _array(file, texts=texts)
    return _number(file, _format(kind))


def _array(file: BinaryIO, *, texts: bool) -> Any:
    """Return an array of numbers as a tuple; of texts, a tuple with `texts`, else the length."""
    kind, length = _number(file, "<I"), _number(file, "<Q")
    if length > ARRAY_LIMIT:
        raise GgufError(f"an array of {length} elements; {ARRAY_LIMIT} are possible")
    if kind == _STRING and texts:
        return tuple(_text(file) for _ in range(length))
    if kind == _STRING:
        for _ in range(length):
            _bytes(file, _size_of_text(file))
        return length
    if kind == _ARRAY:
        raise GgufError("an array of arrays")
    one = _format(kind)[1]
    return struct.unpack(f"<{length}{one}", _bytes(file, length * struct.calcsize(f"<{one}")))


def _format(kind: int) -> str:
    if kind not in _NUMBERS:
        raise GgufError(f"a value of the unknown type {kind}")
    return _NUMBERS[kind]


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, _bytes(file, struct.calcsize(form)))[0]


def _size_of_text(file: BinaryIO) -> int:
    size: int = _number(file, "<Q")
    if size > STRING_LIMIT:
        raise GgufError(f"a text of {size} bytes; {STRING_LIMIT} are possible")
    return size


def _text(file: BinaryIO) -> str:
    return _bytes(file, _size_of_text(file)).decode("utf-8", "replace")


def _bytes(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise GgufError("its header is cut off")
    return content
