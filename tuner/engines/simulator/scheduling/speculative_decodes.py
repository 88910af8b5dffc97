"""The decodes of a step with speculation, in which each sequence gets its own number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.engines.simulator.scheduling.sequence import Sequence


@dataclass(slots=True)
class PlannedDecodes:
    """The decodes of a step: each sequence with the tokens that it is given, one and its draft.

    `tokens` are those of all, `context` is what they read, `growing` says which need blocks and how many they then
    hold, `missing` how many that is together; `produced` is what they brought.
    """

    sequences: list[Sequence] = field(default_factory=list)
    wants: list[int] = field(default_factory=list)
    tokens: int = 0
    context: int = 0
    growing: list[tuple[Sequence, int]] = field(default_factory=list)
    produced: int = 0

    @property
    def missing(self) -> int:
        """Blocks that they need, over all of them."""
        return sum([blocks - sequence.blocks for sequence, blocks in self.growing])

    def add(self, sequence: Sequence, wanted: int) -> None:
        """Add a sequence that has the blocks that it needs."""
        self.sequences.append(sequence)
        self.wants.append(wanted)
        self.tokens += wanted
        self.context += sequence.tokens

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out, if it takes part."""
        if sequence in self.sequences:
            place = self.sequences.index(sequence)
            del self.sequences[place]
            self.tokens -= self.wants.pop(place)
            self.context -= sequence.tokens


class SpeculativeDecodeSet:
    """The decoding sequences, each with its own number of tokens a step; see `Decoding`.

    `following` are the next step's decodes, unless somebody `changed` who takes part.
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
        """Let a sequence decode."""
        self.members[sequence.order] = sequence
        sequence.draft = 0
        sequence.segments.append((self.clock - 1, 1))
        self.changed = True

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        del self.members[sequence.order]
        self.changed = True

    def needs_block(self, sequence: Sequence) -> bool:
        """Return False: blocks are taken by `Sequence.grow` here, which keeps their number."""
        return False
