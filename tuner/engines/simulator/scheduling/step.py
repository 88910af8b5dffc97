"""What one engine step computes, in counts: the scheduler plans it, `StepTime` turns it into seconds."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """What a step holds. `prefill` and `decode` are tokens, `sequences` all that take part, `sampled` the positions
    that a token (or a draft's check) is sampled at; `context` are the tokens that decodes read, `pairs` the pairs of
    tokens that prefills compare.
    """

    decode: int
    prefill: int
    sequences: int
    sampled: int
    context: int
    pairs: float
    admitted: int = 0
    drafting: int = 0
    decodes_only: bool = True
