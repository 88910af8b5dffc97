"""The sequences that decode one token a step, described by sums instead of one by one.

Every member gets one token a step. With a step counter t, three facts follow, so that a step costs the same whatever
the number of members:

- the context of all members grows by their number each step;
- a member needs a new block every `block_size` steps, whenever t ≡ -phase (mod block_size);
- a member's last step is known when it joins: t + its tokens still to generate.
"""

from __future__ import annotations

import heapq

from tuner.engines.simulator.scheduling.sequence import Sequence


class DecodeSet:
    """The decoding sequences.

    Attributes:
        clock: the step counter.
        context: tokens of KV cache that the next step reads, over all members.
        members: the sequences by the order of their admission.
    """

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
        """Add a sequence that has at least one token of its answer and all other tokens in the cache."""
        sequence.joined = self.clock
        sequence.finish_at = self.clock + sequence.output - sequence.generated
        sequence.phase = (sequence.tokens - 1 - self.clock) % self._block_size
        self._phases[sequence.phase] += 1
        self.members[sequence.order] = sequence
        self.context += sequence.tokens
        heapq.heappush(self._ends, (sequence.finish_at, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence and bring its tokens, blocks and segments up to date."""
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
        """Return the number of steps until the next member ends. There must be a member."""
        while self._ends[0][2].finish_at != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.clock

    def step(self) -> None:
        """Give each member one token."""
        self.clock += 1
        self.context += len(self.members)

    def pop_ended(self) -> list[Sequence]:
        """Remove and return the members that have their last token."""
        ended = []
        while self.members and self.steps_to_end() == 0:
            sequence = heapq.heappop(self._ends)[2]
            self.leave(sequence)
            ended.append(sequence)
        return ended
