"""Lengths and blocks of texts that a log has; the texts themselves are not kept.

Two prompts share a block if their texts are the same from the beginning to the block's end. Blocks are numbered in the
order of their appearance. Without a tokenizer, a token is taken as four characters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

CHARACTERS_PER_TOKEN = 4
"""Estimate for texts whose tokenizer is not there."""

BLOCK_TOKENS = 16
"""Tokens of a block, as in vLLM's cache."""

ESTIMATED = f"lengths are estimates, at {CHARACTERS_PER_TOKEN} characters a token; a tokenizer gives exact ones"


class TextMeter:
    """Measures texts. `encode` returns a text's tokens; None: there is no tokenizer."""

    def __init__(self, encode: Callable[[str], Sequence[int]] | None) -> None:
        self._encode = encode
        self._known: dict[tuple[int, Hashable], int] = {}

    @property
    def remarks(self) -> tuple[str, ...]:
        """How the lengths were found, if they are no counts."""
        return (ESTIMATED,) if self._encode is None else ()

    def tokens(self, text: str) -> int:
        """Return the tokens of a text; 0 for an empty one."""
        return -(-len(text) // CHARACTERS_PER_TOKEN) if self._encode is None else len(self._encode(text))

    def measure(self, text: str) -> tuple[int, tuple[int, ...]]:
        """Return the tokens of a prompt and the numbers of its blocks."""
        if self._encode is not None:
            return self.measure_ids(self._encode(text))
        return self.tokens(text), self._blocks(text, BLOCK_TOKENS * CHARACTERS_PER_TOKEN)

    def measure_ids(self, ids: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return the tokens of a prompt that is given as tokens, and the numbers of its blocks."""
        return len(ids), self._blocks(tuple(ids), BLOCK_TOKENS)

    def _blocks(self, parts: str | tuple[int, ...], size: int) -> tuple[int, ...]:
        found, before = [], -1
        for begin in range(0, len(parts), size):
            before = self._known.setdefault((before, parts[begin : begin + size]), len(self._known))
            found.append(before)
        return tuple(found)
