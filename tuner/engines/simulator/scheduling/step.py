"""The work of one engine step, in counts: the scheduler plans it and `StepTime` turns it into seconds."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """The work of one engine step.

    Attributes:
        decode: tokens of decoding sequences, drafts included.
        prefill: tokens of prompts.
        sequences: sequences that take part.
        sampled: positions at which a token is sampled or a draft token is checked.
        context: tokens of KV cache that the decodes read.
        pairs: pairs of tokens that the prefills' attention compares.
        admitted: requests that leave the queue in this step.
        drafting: sequences for which a draft is looked up.
        decodes_only: whether a full CUDA graph for decodes may run the step.
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
