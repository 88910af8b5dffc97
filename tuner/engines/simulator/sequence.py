"""Requests inside the engine: sequences, those that decode, how predictable answers are, and the work of a step.

Every member of a `DecodeSet` gets one token a step. With a step counter t, three facts follow, so that a step costs the
same whatever the number of members:

- the context of all members grows by their number each step;
- a member needs a new block every `block_size` steps, whenever t ≡ -phase (mod block_size), and from a known step on
  its windows leave one for it;
- a member's last step is known when it joins: t + its tokens still to generate.

An answer is free text at first, and repeats itself from some token on (`Sequence.loop_at`). Small models do so when
they decode greedily, and a repetitive prompt invites it. That token is drawn from an exponential distribution with the
mean

    loop_onset_tokens × e^(8 × temperature)    (a quarter of that if the prompt is repetitive)

In free text, drafts are short, and each draft token is right with probability `free_acceptance`. In repeating text,
drafts are as long as the method allows, and each token is right with probability `loop_acceptance`. Drafts that are
computed (`speculation.py`) have the length and the rates of their method in both. A draft counts up to its first wrong
token. `parameters.yaml` lists which of the named numbers are fitted, measured or assumed.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.block_pool import BlockPool, Chain, PageRule
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.speculation import Speculation


@dataclass(frozen=True)
class Prompt:
    """A request as the engine receives it. Lengths are in tokens.

    Attributes:
        index: the request's number.
        tokens: length of the prompt.
        output: length of the answer.
        shared: the chains that the prompt begins with, each with its length.
        repetitive: whether the text repeats itself, so that drafts are often right.
        priority: with priority scheduling, lower ones are admitted first.
        continued: the chain that keeps its own part and its answer, with which the session goes on; None: it does not.
    """

    index: int
    tokens: int
    output: int
    shared: tuple[tuple[Chain, int], ...] = ()
    repetitive: bool = False
    priority: int = 0
    continued: Chain | None = None


class Sequence:
    """The engine's state of one request.

    Attributes:
        index: the request's number.
        prompt: tokens of the prompt.
        output: tokens of the whole answer.
        repetitive, priority: as in `Prompt`.
        arrived_s: when the request reached the engine, in seconds.
        scheduled_s: when it first left the queue; None until then.
        computed: tokens whose keys and values are in the cache; 0 after a preemption.
        generated: tokens of the answer that have been sampled.
        order: the number of its admission; a readmission gets a new one.
        joined, phase, finish_at, slides_at: bookkeeping of `DecodeSet`.
        draft: draft tokens of the next step.
        loop_at: the token of the answer from which the text repeats itself.
        segments: the steps at which it got tokens. Without speculation, pairs of a first step and a step after the
            last, with one token a step; with speculation, pairs of a step and its number of tokens.
        own: the chain of the blocks that no other sequence shares, except the next turn of its session.
        continues: whether its session goes on.
        chains: the shared chains, each with the number of blocks that end within it.
        held: blocks of each shared chain that it uses.
        blocks: all blocks that it uses.
        passed: the first ones of them that its windows have left (`PageRule.passed`).
    """

    __slots__ = (
        *("arrived_s", "blocks", "chains", "computed", "continues", "draft", "finish_at", "generated", "held", "index"),
        *("joined", "loop_at", "order", "output", "own", "passed", "phase", "priority", "prompt", "repetitive"),
        *("scheduled_s", "segments", "slides_at"),
    )

    def __init__(self, prompt: Prompt, block_size: int, arrived_s: float) -> None:
        self.index = prompt.index
        self.prompt = prompt.tokens
        self.output = prompt.output
        self.repetitive = prompt.repetitive
        self.priority = prompt.priority
        self.arrived_s = arrived_s
        self.scheduled_s: float | None = None
        self.computed = 0
        self.generated = 0
        self.order = 0
        self.joined = self.phase = self.finish_at = self.slides_at = 0
        self.draft = 0
        self.loop_at = 0
        self.segments: list[tuple[int, int]] = []
        self.continues = prompt.continued is not None
        self.own = prompt.continued or Chain()
        self.chains = _blocks_of_chains(prompt, block_size)
        self.held = [0] * len(self.chains)
        self.blocks = self.passed = 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + self.generated

    def rank(self) -> tuple[int, float]:
        """Return its place in a queue by priority; the lowest one is next."""
        return self.priority, self.arrived_s

    def cached_blocks(self, block_size: int) -> int:
        """Return how many of its first blocks are cached. Its last token is computed in any case."""
        most = (self.tokens - 1) // block_size
        total = 0
        for chain, span in self.chains:
            cached = min(chain.cached, span)
            total += cached
            if cached < span:
                return min(total, most)
        return min(total + self.own.cached, most)

    def blocks_with_state(self, cached: int) -> int:
        """Return how many of its first `cached` blocks can be reused: those up to a place where a state is kept."""
        at = found = 0
        for chain, span in self.chains:
            depth = min(span, cached - at)
            if depth in chain.states:
                found = at + depth
            at += depth
            if depth < span:
                return found
        return cached if cached > at else found

    def keep_states(self, cached: int, block_size: int) -> None:
        """Keep the state where its prefix stops to be shared, after `cached` blocks, and after its last whole block.

        vLLM splits the sequence's prompt there; 0.15 does not find the former place, for which `cached` is 0.
        """
        for place in (cached, self.tokens // block_size):
            at = 0
            for chain, span in self.chains:
                if at < place <= at + span:
                    chain.states = {depth for depth in chain.states if depth <= chain.cached} | {place - at}
                at += span

    def start(self, pool: BlockPool, cached: int, block_size: int) -> None:
        """Use its first `cached` blocks, which must be cached, and take the pages that no table shares."""
        left = cached
        for place, (chain, span) in enumerate(self.chains):
            self.held[place] = min(left, span)
            left -= self.held[place]
            if self.held[place]:
                pool.hold(chain, self.held[place])
        pool.reclaim(self.own, left)
        self.blocks = cached
        self.computed = cached * block_size
        self.passed = pool.rule.passed(self.computed)
        pool.take(pool.rule.states + pool.rule.windowed * (cached - self.passed))

    def missing_pages(self, rule: PageRule, blocks: int) -> int:
        """Return the pages that it takes until it uses `blocks`, less those that it gives up."""
        more = blocks - self.blocks
        return rule.full * more + rule.windowed * (more - max(0, rule.passed(self.computed) - self.passed))

    def slide(self, pool: BlockPool, passed: int) -> None:
        """Give up the pages of its first `passed` blocks in the tables that hold a window."""
        if passed > self.passed:
            pool.discard(pool.rule.windowed * (passed - self.passed))
            self.passed = passed

    def grow(self, pool: BlockPool, blocks: int) -> None:
        """Take blocks until it uses `blocks`. The caller makes sure that enough are free."""
        rule, missing = pool.rule, blocks - self.blocks
        if rule.windowed:
            self.slide(pool, rule.passed(self.computed))
            pool.take(rule.windowed * missing)
        at = 0
        for place, (chain, span) in enumerate(self.chains):
            held = self.held[place]
            target, current = min(span, blocks - at), max(0, min(span, self.blocks - at))
            at += span
            # Blocks that another sequence added to the chain meanwhile are not shared; this sequence has copies.
            if target > current == held == chain.cached:
                pool.extend(chain, held, target)
                self.held[place] = target
                missing -= target - held
            if self.held[place] < span:
                break
        pool.take(rule.full * missing)
        self.blocks = blocks

    def free(self, pool: BlockPool) -> None:
        """Give up all blocks for good; its last blocks are the first to be evicted."""
        pool.discard(pool.rule.full * (self.blocks - sum(self.held)) + self._unshared_pages(pool.rule))
        self._release_shared(pool)

    def complete(self, pool: BlockPool, block_size: int) -> None:
        """Give up all blocks; if its session goes on, those of its own part and its answer stay cached.

        The last token of the answer is not computed.
        """
        shared, own = sum(span for _, span in self.chains), self.blocks - sum(self.held)
        kept = max(0, min(own, (self.tokens - 1) // block_size - shared)) if pool.caching and self.continues else 0
        pool.discard(pool.rule.full * (own - kept) + self._unshared_pages(pool.rule))
        pool.keep(self.own, kept)
        self._release_shared(pool)

    def preempt(self, pool: BlockPool, block_size: int) -> None:
        """Give up all blocks; those that stay cached can be reused when the sequence is admitted again."""
        own = self.blocks - sum(self.held)
        whole = sum(span for _, span in self.chains) == sum(self.held)
        kept = max(0, min(own, self.computed // block_size - sum(self.held))) if pool.caching and whole else 0
        pool.discard(pool.rule.full * (own - kept) + self._unshared_pages(pool.rule))
        pool.keep(self.own, kept)
        self._release_shared(pool)
        self.computed = 0

    def _unshared_pages(self, rule: PageRule) -> int:
        """Return its pages in the tables that hold a window or a state."""
        return rule.windowed * (self.blocks - self.passed) + rule.states

    def _release_shared(self, pool: BlockPool) -> None:
        for place in range(len(self.chains) - 1, -1, -1):
            if self.held[place]:
                pool.release(self.chains[place][0], self.held[place])
                self.held[place] = 0
        self.blocks = self.passed = 0


def _blocks_of_chains(prompt: Prompt, block_size: int) -> list[tuple[Chain, int]]:
    """Return each shared chain with its number of whole blocks; a block that spans two chains counts for the second."""
    spans: list[tuple[Chain, int]] = []
    at = blocks = 0
    for chain, tokens in prompt.shared:
        at += tokens
        whole = min(at, prompt.tokens) // block_size - blocks
        if whole > 0:
            spans.append((chain, whole))
            blocks += whole
    return spans


class DecodeSet:
    """The decoding sequences.

    Attributes:
        clock: the step counter.
        context: tokens of KV cache that the next step reads, over all members.
        members: the sequences by the order of their admission.
    """

    def __init__(self, rule: PageRule) -> None:
        self._rule = rule
        self._block_size = rule.block_size
        self._of_block = rule.full + rule.windowed
        self._phases = [0] * rule.block_size
        self._sliding = [0] * rule.block_size
        self._slides: list[tuple[int, int, Sequence]] = []
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
        self._phases[sequence.phase] += self._of_block
        self.members[sequence.order] = sequence
        self.context += sequence.tokens
        heapq.heappush(self._ends, (sequence.finish_at, sequence.order, sequence))
        if self._rule.windowed:
            first = self.clock + (-sequence.phase - self.clock) % self._block_size
            sequence.slides_at = first + max(0, self._rule.window + 1 - sequence.blocks) * self._block_size
            heapq.heappush(self._slides, (sequence.slides_at, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence and bring its tokens, blocks and segments up to date."""
        sequence.segments.append((sequence.joined - 1, self.clock))
        sequence.generated += self.clock - sequence.joined
        sequence.computed = sequence.tokens - 1
        sequence.blocks = max(sequence.blocks, -(-sequence.computed // self._block_size))
        if self._rule.windowed:
            self._start_slides()
            sequence.passed = max(sequence.passed, sequence.blocks - self._rule.window - 1)
            self._sliding[sequence.phase] -= self._rule.windowed * (sequence.slides_at <= self.clock)
            sequence.slides_at = -1
        del self.members[sequence.order]
        self._phases[sequence.phase] -= self._of_block
        self.context -= sequence.tokens
        sequence.finish_at = -1

    def _start_slides(self) -> None:
        """Count the members whose windows leave a block with each new one from now on."""
        while self._slides and self._slides[0][0] <= self.clock:
            clock, order, sequence = heapq.heappop(self._slides)
            if (sequence.slides_at, sequence.order) == (clock, order):
                self._sliding[sequence.phase] += self._rule.windowed

    def new_pages(self, sequence: Sequence) -> int:
        """Return how many pages the next step, if it is planned, gives a member that `Sequence.blocks` lacks yet."""
        if sequence.phase != -self.clock % self._block_size:
            return 0
        return self._of_block - self._rule.windowed * (0 <= sequence.slides_at <= self.clock)

    def pages_taken(self) -> int:
        """Return how many pages the next step takes."""
        return self._phases[-self.clock % self._block_size]

    def pages_left(self) -> int:
        """Return how many pages the windows leave before the next step."""
        self._start_slides()
        return self._sliding[-self.clock % self._block_size]

    def pages_ahead(self, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many pages the next steps take, and how many the windows leave, up to each of them.

        The steps end before the windows of another member begin to leave pages.
        """
        self._start_slides()
        if self._slides:
            steps = min(steps, self._slides[0][0] - self.clock)
        places = -(self.clock + np.arange(steps)) % self._block_size
        taken, left = (np.array(pages)[places].cumsum() for pages in (self._phases, self._sliding))
        return taken, left

    def steps_to_end(self) -> int:
        """Return the number of steps until the next member ends. There must be a member."""
        while self._ends[0][2].finish_at != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.clock

    def step(self, steps: int = 1) -> None:
        """Give each member one token in each of so many steps."""
        self.clock += steps
        self.context += steps * len(self.members)

    def pop_ended(self) -> list[Sequence]:
        """Remove and return the members that have their last token."""
        ended = []
        while self.members and self.steps_to_end() == 0:
            sequence = heapq.heappop(self._ends)[2]
            self.leave(sequence)
            ended.append(sequence)
        return ended


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

    `following` are the decodes of the next step. They are valid unless the members have `changed` since. `first_draft`
    are the draft tokens of a sequence behind its prompt, whose last step makes them if drafts are computed.
    """

    def __init__(self, first_draft: int = 0) -> None:
        self._first_draft = first_draft
        self.clock = 0
        self.members: dict[int, Sequence] = {}
        self.following = PlannedDecodes()
        self.changed = False

    def join(self, sequence: Sequence) -> None:
        self.members[sequence.order] = sequence
        sequence.draft = self._first_draft
        sequence.segments.append((self.clock - 1, 1))
        self.changed = True

    def leave(self, sequence: Sequence) -> None:
        del self.members[sequence.order]
        self.changed = True

    def new_pages(self, sequence: Sequence) -> int:
        """Return 0: `Sequence.grow` takes the pages here and counts them."""
        return 0


_ONSET_GROWTH = 8.0
_REPETITIVE_PROMPT_FACTOR = 0.25
_REPEATED_PIECES = (0.5, 0.2, 0.05, 0.02, 0.01)
"""Share of the places in free text where the last 1, 2, … 5 tokens occur earlier in the answer. Counts in English prose
of 512 words gave 0.5 to 0.6, 0.09 to 0.22, 0.02 to 0.1, 0.01 to 0.07 and 0.004 to 0.045."""
_FREE_TEXT_PROBABILITY = 0.3
"""From this `min_probability` on, suffix decoding drafts nothing in free text, where it matches single tokens only."""


def _acceptance(speculation: Speculation, parameters: Parameters) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the probability that each draft token is right if those before it are, in free and in repeating text."""
    if speculation.rates is not None:
        return speculation.rates, speculation.rates
    computed = {
        "mtp": parameters.mtp_acceptance,
        "eagle": parameters.eagle_acceptance,
        "eagle3": parameters.eagle_acceptance,
        "draft_model": parameters.draft_model_acceptance,
    }.get(speculation.method)
    free = parameters.free_acceptance if computed is None else computed
    loop = parameters.loop_acceptance if computed is None else computed
    return (free,) * speculation.tokens, (loop,) * speculation.tokens


class AnswerText:
    """The predictability of the answers of one run, drawn from one seed."""

    def __init__(self, speculation: Speculation, temperature: float, parameters: Parameters, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        self._mean_onset = parameters.loop_onset_tokens * math.exp(_ONSET_GROWTH * temperature)
        self._free_rates, self._loop_rates = _acceptance(speculation, parameters)
        self._is_computed = not speculation.is_looked_up
        self._max_draft = speculation.tokens
        self._factor = speculation.factor
        self._lookup_min = speculation.lookup_min
        self._is_ngram = speculation.method == "ngram"
        self._free_draft = 1
        self._free_draft_probability = (
            _REPEATED_PIECES[0] if speculation.min_probability < _FREE_TEXT_PROBABILITY else 0.0
        )
        if self._is_ngram:
            self._free_draft = self._max_draft
            self._free_draft_probability = _REPEATED_PIECES[min(self._lookup_min, len(_REPEATED_PIECES)) - 1]

    def draw_onset(self, sequence: Sequence) -> int:
        """Return the token of the answer from which a sequence repeats itself."""
        mean = self._mean_onset * (_REPETITIVE_PROMPT_FACTOR if sequence.repetitive else 1.0)
        return int(self._random.expovariate(1.0 / mean))

    def advance(self, decodes: PlannedDecodes, clock: int, block_size: int) -> tuple[PlannedDecodes, list[Sequence]]:
        """Give each sequence its tokens of step `clock` (one, and the accepted part of its draft) and a new draft.

        Returns:
            The decodes of the next step, valid unless the members change, and the sequences with their last token.
        """
        # one loop that calls almost nothing, because a run repeats it about a hundred thousand times
        draw, free_draft, free_draft_probability = self._random.random, self._free_draft, self._free_draft_probability
        is_ngram, max_draft, factor, lookup_min = self._is_ngram, self._max_draft, self._factor, self._lookup_min
        loop_rates, free_rates, is_computed = self._loop_rates, self._free_rates, self._is_computed
        following, ended, tokens, context, produced = PlannedDecodes(), [], 0, 0, 0
        for sequence, given in zip(decodes.sequences, decodes.token_counts, strict=True):
            generated = sequence.generated
            gained, rates = 1, loop_rates if generated > sequence.loop_at else free_rates
            while gained < given and draw() < rates[gained - 1]:
                gained += 1
            produced += gained
            sequence.segments.append((clock, gained))
            sequence.generated = generated = generated + gained
            looped, left = generated - sequence.loop_at, sequence.output - generated
            if is_computed:
                draft = max_draft
            elif looped <= 0:
                draft = free_draft if free_draft_probability and draw() < free_draft_probability else 0
            elif is_ngram:
                draft = max_draft if looped >= lookup_min else 0
            else:
                draft = min(max_draft, int(factor * looped))
            sequence.draft = draft
            if left <= 0:
                ended.append(sequence)
                continue
            token_count = 1 + draft if draft < left else left
            length = sequence.prompt + generated
            context += length
            tokens += token_count
            if length - 1 + token_count > sequence.blocks * block_size:
                following.growing.append((sequence, -(-(length - 1 + token_count) // block_size)))
            following.sequences.append(sequence)
            following.token_counts.append(token_count)
        decodes.produced, following.tokens, following.context = produced, tokens, context
        return following, ended


class Step(NamedTuple):
    """The work of one engine step.

    Attributes:
        decode: tokens of decoding sequences, drafts included.
        prefill: tokens of prompts.
        sequences: sequences that take part.
        sampled: positions at which a token is sampled or a draft token is checked.
        context: tokens of KV cache that the decodes read; an array of several steps' that are equal otherwise.
        pairs: pairs of tokens that the prefills' attention compares.
        admitted: requests that leave the queue in this step.
        drafting: sequences for which a draft is looked up.
        decodes_only: whether a full CUDA graph for decodes may run the step.
    """

    decode: int
    prefill: int
    sequences: int
    sampled: int
    context: int | NDArray[np.float64]
    pairs: float
    admitted: int = 0
    drafting: int = 0
    decodes_only: bool = True
