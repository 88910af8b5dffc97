"""The decodes of a step with speculation, where each sequence gets its own number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.engines.simulator.scheduling.sequence import Sequence


@dataclass(slots=True)
class PlannedDecodes:
    """The decodes of one step.

    Attributes:
        sequences: the sequences that decode.
        token_counts: tokens that each is given: one and its draft.
        tokens: the sum of `token_counts`.
        context: tokens of KV cache that they read.
        growing: the sequences that need blocks, each with the number of blocks that it uses afterwards.
        produced: tokens that the model accepted, over all sequences.
    """

    sequences: list[Sequence] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    tokens: int = 0
    context: int = 0
    growing: list[tuple[Sequence, int]] = field(default_factory=list)
    produced: int = 0

    @property
    def missing_blocks(self) -> int:
        """Blocks that the sequences need, over all of them."""
        return sum([blocks - sequence.blocks for sequence, blocks in self.growing])

    def add(self, sequence: Sequence, token_count: int) -> None:
        """Add a sequence that has the blocks for its tokens."""
        self.sequences.append(sequence)
        self.token_counts.append(token_count)
        self.tokens += token_count
        self.context += sequence.tokens

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence, if it takes part."""
        if sequence in self.sequences:
            place = self.sequences.index(sequence)
            del self.sequences[place]
            self.tokens -= self.token_counts.pop(place)
            self.context -= sequence.tokens


class SpeculativeDecodeSet:
    """The sequences that decode with drafts; see `DecodeSet` for the set without.

    `following` are the decodes of the next step. They are valid unless the members have `changed` since.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clock = 0
        self.context = 0
        self.members: dict[int, Sequence] = {}
        self.following = PlannedDecodes()
        self.changed = False

    def __len__(self) -> int:
        return len(self.members)

    def join(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self.members[sequence.order] = sequence
        sequence.draft = 0
        sequence.segments.append((self.clock - 1, 1))
        self.changed = True

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        del self.members[sequence.order]
        self.changed = True

    def needs_block(self, sequence: Sequence) -> bool:
        """Return False: `Sequence.grow` takes the blocks here and counts them."""
        return False
