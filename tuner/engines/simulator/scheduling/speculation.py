"""Speculative decoding: what is drafted, what the model accepts, and a scheduler in which tokens a step differ.

An answer is free text at first. From some token on it repeats itself (`loop_at`): that is what small models do when
they decode greedily, and what a repetitive prompt invites; sampling at higher temperatures puts it off, by a factor of
e^(8 T). In free text drafts are short and mostly wrong; within a loop they are as long as the method allows, and right.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.config.speculative_config import Speculation
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.scheduler import Scheduler
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.timing.step_time import Step

_ONSET_GROWTH = 8.0
_REPETITIVE = 0.25
"""Share of the usual onset after which the answer to a repetitive prompt repeats itself."""
_SEEN_BEFORE = (0.5, 0.2, 0.05, 0.02, 0.01)
"""Share of places in free text at which the last 1, 2, … 5 tokens stood somewhere before in the answer. Counted in
English prose of 512 words: 0.5 to 0.6, 0.09 to 0.22, 0.02 to 0.1, 0.01 to 0.07, 0.004 to 0.045."""
_RARE = 0.3
"""Frequency above which suffix decoding drafts nothing in free text: its matches there are of single tokens."""


@dataclass(slots=True)
class Decodes:
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


class AnswerText:
    """How predictable answers are, drawn from one seed."""

    def __init__(self, speculation: Speculation, temperature: float, known: Parameters, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        self._onset = known.loop_onset_tokens * math.exp(_ONSET_GROWTH * temperature)
        self._free = known.free_acceptance
        self._loop = known.loop_acceptance
        self._most, self._factor, self._from = speculation.tokens, speculation.factor, speculation.lookup_min
        self._ngram = speculation.method == "ngram"
        self._guess, self._seen = 1, _SEEN_BEFORE[0] if speculation.min_probability < _RARE else 0.0
        if self._ngram:
            self._guess, self._seen = self._most, _SEEN_BEFORE[min(self._from, len(_SEEN_BEFORE)) - 1]

    def onset(self, sequence: Sequence) -> int:
        """Return the token of its answer from which a sequence repeats itself."""
        mean = self._onset * (_REPETITIVE if sequence.repetitive else 1.0)
        return int(self._random.expovariate(1.0 / mean))

    def advance(self, decodes: Decodes, clock: int, size: int) -> tuple[Decodes, list[Sequence]]:
        """Give sequences what step `clock` brings: a token, and as much of the draft as the model would have said.

        What they ask for next is found in the same loop and without calls: a run takes a hundred thousand turns of it.

        Returns:
            The next step's decodes, should nothing happen to them, and the sequences that have their last token.
        """
        draw, guess, seen, ngram = self._random.random, self._guess, self._seen, self._ngram
        most, factor, least, loop, free = self._most, self._factor, self._from, self._loop, self._free
        following, ended = Decodes(), []
        tokens = context = produced = 0
        for sequence, given in zip(decodes.sequences, decodes.wants, strict=True):
            generated = sequence.generated
            gained, chance = 1, loop if generated > sequence.loop_at else free
            while gained < given and draw() < chance:
                gained += 1
            produced += gained
            sequence.segments.append((clock, gained))
            sequence.generated = generated = generated + gained
            since, left = generated - sequence.loop_at, sequence.output - generated
            if since <= 0:
                draft = guess if seen and draw() < seen else 0
            elif ngram:
                draft = most if since >= least else 0
            else:
                draft = min(most, int(factor * since))
            sequence.draft = draft
            if left <= 0:
                ended.append(sequence)
                continue
            wanted = 1 + draft if draft < left else left
            length = sequence.prompt + generated
            context += length
            tokens += wanted
            if length - 1 + wanted > sequence.blocks * size:
                following.growing.append((sequence, -(-(length - 1 + wanted) // size)))
            following.sequences.append(sequence)
            following.wants.append(wanted)
        decodes.produced, following.tokens, following.context = produced, tokens, context
        return following, ended


class Drafting:
    """The decoding sequences, each with its own number of tokens a step; see `Decoding`.

    `following` are the next step's decodes, unless somebody `changed` who takes part.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clock = 0
        self.context = 0
        self.members: dict[int, Sequence] = {}
        self.following = Decodes()
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


class SpeculativeScheduler(Scheduler):
    """The scheduler with drafts: a decode asks for one token and its draft, as far as the budget goes."""

    def __init__(self, config: ServeConfig, blocks: int, text: AnswerText, together: bool = True) -> None:
        """Make a scheduler; without `together` each sequence is asked in each step, which comes to the same."""
        super().__init__(config, blocks)
        self.drafting = Drafting(config.block_size)
        self._text = text
        self._together = together
        self._decodes = Decodes()
        self._followed = False

    @property
    def steady(self) -> bool:
        """False: every step is planned."""
        return False

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request, and decide how predictable its answer is; see `Scheduler.add`."""
        sequence.loop_at = self._text.onset(sequence)
        super().add(sequence, late)

    def _members(self) -> Drafting:
        return self.drafting

    def _plan_decodes(self) -> int:
        """Take what the step before found, if it still holds and there is room for it; else ask each sequence."""
        following, drafting = self.drafting.following, self.drafting
        room = self.config.max_num_batched_tokens
        holds = self._together and not drafting.changed
        if holds and following.tokens <= room and following.missing <= self.pool.free:
            for sequence, blocks in following.growing:
                sequence.grow(self.pool, blocks)
            self._decodes, self._followed = following, True
        else:
            self._recall()
            self._decodes = self._plan_each(room)
        return self._decodes.tokens

    def _recall(self) -> None:
        """Note what each sequence had computed when the last step was planned, where nobody looked at each."""
        if self._followed:
            for sequence in self._decodes.sequences:
                sequence.computed = sequence.tokens - sequence.segments[-1][1] - 1
        self._followed = False

    def _plan_each(self, budget: int) -> Decodes:
        planned: list[tuple[Sequence, int]] = []
        size, running = self.config.block_size, self.running
        for sequence in list(self.drafting.members.values()):
            generated = sequence.generated
            wanted, left = 1 + sequence.draft, sequence.output - generated
            if wanted > left:
                wanted = left
            if wanted > budget:
                wanted = budget
            if wanted < 1 or (self._was_preempted and sequence.order not in running):
                continue
            computed = sequence.computed = sequence.prompt + generated - 1
            if computed + wanted > sequence.blocks * size:
                if not self._secure(sequence, wanted):
                    continue
                sequence.grow(self.pool, self._blocks_of(computed + wanted))
            planned.append((sequence, wanted))
            budget -= wanted
        decodes = Decodes()
        for sequence, wanted in planned:
            if not self._was_preempted or sequence.order in running:
                decodes.add(sequence, wanted)
        return decodes

    def _remove(self, sequence: Sequence) -> None:
        if self._followed and sequence.order in self.drafting.members:
            sequence.computed = sequence.tokens - 1
        super()._remove(sequence)
        self._decodes.drop(sequence)

    def _step(self, pairs: float) -> Step:
        chunks = self.prefilling.values()
        ending = sum(sequence.computed + chunk == sequence.tokens for sequence, chunk in chunks)
        decodes = self._decodes
        return Step(
            decode=decodes.tokens,
            prefill=sum(chunk for _, chunk in chunks),
            sequences=len(decodes.sequences) + len(self.prefilling),
            sampled=decodes.tokens + ending,
            context=decodes.context,
            pairs=pairs,
            admitted=self._admitted,
            drafting=len(decodes.sequences),
            decodes_only=False,
        )

    def _finish_decodes(self) -> list[Sequence]:
        drafting, counts, decodes = self.drafting, self.counts, self._decodes
        everyone = len(decodes.sequences) == len(drafting.members)
        drafting.following, ended = self._text.advance(decodes, drafting.clock, self.config.block_size)
        drafting.clock += 1
        for sequence in ended:
            drafting.leave(sequence)
        drafting.changed = not everyone
        count = len(decodes.sequences)
        self.produced = decodes.produced
        counts.drafts += count - decodes.wants.count(1)
        counts.drafted_tokens += decodes.tokens - count
        counts.accepted_tokens += self.produced - count
        return ended
