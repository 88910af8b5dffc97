"""Sequences that decode one token a step, all together: what a step reads and needs, without looking at each.

A step counter runs with the engine. Every sequence gets one token a step, so the context of all grows by their number,
the block that each needs comes every `block_size` steps at a phase of its own, and each one's last step is known when
it joins.
"""

from __future__ import annotations

import heapq

from tuner.engines.simulator.scheduling.sequence import Sequence


class DecodeSet:
    """The sequences that decode. `context` is the tokens that their next step reads, over all of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._phases = [0] * block_size
        self._ends: list[tuple[int, int, Sequence]] = []
        self.clock = 0
        self.context = 0
        self.members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, sequence: Sequence) -> None:
        """Let a sequence decode; it has generated at least one token and computed all others."""
        sequence.joined = self.clock
        sequence.finish_at = self.clock + sequence.output - sequence.generated
        sequence.phase = (sequence.tokens - 1 - self.clock) % self._block_size
        self._phases[sequence.phase] += 1
        self.members[sequence.order] = sequence
        self.context += sequence.tokens
        heapq.heappush(self._ends, (sequence.finish_at, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, its tokens and blocks brought up to date and the steps of its tokens noted."""
        sequence.segments.append((sequence.joined - 1, self.clock))
        sequence.generated += self.clock - sequence.joined
        sequence.computed = sequence.tokens - 1
        sequence.blocks = max(sequence.blocks, -(-sequence.computed // self._block_size))
        del self.members[sequence.order]
        self._phases[sequence.phase] -= 1
        self.context -= sequence.tokens
        sequence.finish_at = -1

    def needs_block(self, sequence: Sequence) -> bool:
        """Return whether the next step gives a member a block."""
        return sequence.phase == -self.clock % self._block_size

    def blocks_needed(self) -> int:
        """Return how many blocks the next step takes."""
        return self._phases[-self.clock % self._block_size]

    def steps_to_end(self) -> int:
        """Return after how many steps the next sequence ends; only while there are any."""
        while self._ends[0][2].finish_at != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.clock

    def step(self) -> None:
        """Give each one token."""
        self.clock += 1
        self.context += len(self.members)

    def ended(self) -> list[Sequence]:
        """Return the sequences that have their last token, taken out."""
        found = []
        while self.members and self.steps_to_end() == 0:
            sequence = heapq.heappop(self._ends)[2]
            self.leave(sequence)
            found.append(sequence)
        return found
