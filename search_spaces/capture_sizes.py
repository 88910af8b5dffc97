"""The batch sizes that a load can reach, as CUDA-graph capture sizes."""

from __future__ import annotations

_STRIDE = 8
_CLOSE = 4
_LARGEST = 512


def reachable_sizes(sequences: int, tokens_per_sequence: int = 1, largest: int = _LARGEST) -> tuple[int, ...]:
    """Return capture sizes for decode batches of 1 to `sequences`, ascending.

    The ladder is vLLM's own (1, 2, 4, then every 8), without a rung less than 4 below the top, and with the top
    itself, so that the full batch is not padded: 50 → 1, 2, 4, 8, 16, 24, 32, 40, 50. With speculation a sequence
    brings up to `tokens_per_sequence` tokens (drafts and one): the multiples of the ladder are added. Sizes above
    `largest` (vLLM's 512 by default, or the token budget of a step) are left out.

    Raises:
        ValueError: if `sequences` or `tokens_per_sequence` is below 1.
    """
    if sequences < 1 or tokens_per_sequence < 1:
        raise ValueError(f"sequences {sequences} and tokens_per_sequence {tokens_per_sequence} must be at least 1")
    rungs = [1, 2, 4, *range(_STRIDE, sequences, _STRIDE)]
    ladder = {rung for rung in rungs if rung < sequences and (rung <= _STRIDE or sequences - rung >= _CLOSE)}
    ladder.add(sequences)
    sizes = ladder | {rung * tokens_per_sequence for rung in ladder}
    return tuple(sorted(size for size in sizes if size <= largest))
