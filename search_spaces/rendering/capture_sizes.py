"""CUDA graph capture sizes for the batch sizes that a workload can reach."""

from __future__ import annotations

_STRIDE = 8
_MIN_DISTANCE = 4
_LARGEST = 512


def reachable_sizes(sequences: int, tokens_per_sequence: int = 1, largest: int = _LARGEST) -> tuple[int, ...]:
    """Return capture sizes for decode batches of 1 to `sequences` sequences, ascending.

    The sizes are vLLM's own (1, 2, 4, then every 8) and `sequences` itself, so that the full batch is not padded. A
    size above 8 and less than 4 below `sequences` is left out. For 50: 1, 2, 4, 8, 16, 24, 32, 40, 50.

    Args:
        sequences: the largest number of sequences in a step.
        tokens_per_sequence: tokens of a sequence in a step at most. With speculation this is above 1, and the multiples
            of the sizes are added.
        largest: the largest size to return: vLLM's limit, or the token budget of a step.

    Raises:
        ValueError: if `sequences` or `tokens_per_sequence` is below 1.
    """
    if sequences < 1 or tokens_per_sequence < 1:
        raise ValueError(f"sequences {sequences} and tokens_per_sequence {tokens_per_sequence} must be at least 1")
    defaults = [1, 2, 4, *range(_STRIDE, sequences, _STRIDE)]
    batches = {size for size in defaults if size < sequences and (size <= _STRIDE or sequences - size >= _MIN_DISTANCE)}
    batches.add(sequences)
    sizes = batches | {size * tokens_per_sequence for size in batches}
    return tuple(sorted(size for size in sizes if size <= largest))
