"""Read the longest context of a model from its `config.json`, as vLLM derives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.catalogue.model_config import Keys, number, whole_number

_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
"""Keys of the longest context; vLLM takes the smallest."""
_OWN = "model_max_length"
"""The key that comes before all others."""
_UNSCALED = (
    *("default", "su", "longrope", "llama3", "mrope"),
    *("deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"),
)
"""RoPE types whose factor does not lengthen `max_position_embeddings`."""
_YARN = "yarn"
_BY_FACTOR = ("linear", "dynamic")
"""RoPE types whose table has factor × `max_position_embeddings` positions; `_OF_ORIGINAL`: × the original length."""
_OF_ORIGINAL = (_YARN, "deepseek_yarn")
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class ContextLength:
    """The longest context of a model in tokens.

    Attributes:
        longest: what vLLM derives, from 0.32 on for a model with YaRN.
        yarn: the same for a model with YaRN before 0.32: factor × `original_max_position_embeddings`; None without.
        default: what a server without `--max-model-len` has, where that is less (LongRoPE); None: the longest.
    """

    longest: int
    yarn: int | None = None
    default: int | None = None


def find_context_length(keys: Keys, name: str | None) -> ContextLength:
    """Return the longest context that the keys of a decoder declare; `name` is its `model_type`.

    Raises:
        KeyError: if no key has a length.
        TypeError, ValueError: for a value of an impossible type.
    """
    text: Mapping[str, Any] = keys.given
    lengths = [whole_number(text, key) for key in _KEYS if text.get(key) is not None]
    declared = whole_number(text, _OWN) if text.get(_OWN) else min(lengths, default=0) or keys.count(*_KEYS)
    if "gemma3" in (name or ""):  # its length is scaled already
        return ContextLength(declared)
    factor, yarn, is_long = 1.0, None, False
    for rope in _ropes(text):
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        is_long = is_long or kind in ("su", "longrope")
        if kind == _YARN:
            yarn = int(number(rope, _ORIGINAL, declared) * number(rope, "factor", 1.0))
        elif kind not in _UNSCALED:
            factor = number(rope, "factor", 1.0)
    original = keys.count(_ORIGINAL) if is_long and keys.get(_ORIGINAL) is not None else None
    return ContextLength(int(declared * factor), yarn, original)


def rotated_positions(keys: Keys) -> int:
    """Return the positions of vLLM's tables of rotations, one table for each RoPE that the keys of a decoder declare.

    A table has a row for each position, of as many numbers as a head has rotated ones (`get_rope` of vLLM).
    """
    text: Mapping[str, Any] = keys.given
    declared = next((whole_number(text, key) for key in _KEYS if text.get(key) is not None), 0)
    total = declared if text.get("rope_local_base_freq") is not None else 0
    for rope in _ropes(text):
        kind, factor = rope.get("rope_type") or rope.get("type"), number(rope, "factor", 1.0)
        length = number(rope, _ORIGINAL, declared) if kind in _OF_ORIGINAL else declared
        total += int(length * (factor if kind in (*_BY_FACTOR, *_OF_ORIGINAL) else 1.0))
    return total


def _ropes(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the RoPE parameters, of each kind of layer where they differ."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return
    nested = [each for each in rope.values() if isinstance(each, Mapping)]
    yield from nested or [rope]
