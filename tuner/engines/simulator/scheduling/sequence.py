"""A request inside the engine: its tokens, its KV cache blocks, and the prefixes that it shares."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.engines.simulator.memory.block_pool import BlockPool, Chain


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
    """

    index: int
    tokens: int
    output: int
    shared: tuple[tuple[Chain, int], ...] = ()
    repetitive: bool = False
    priority: int = 0


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
        joined, phase, finish_at: bookkeeping of `DecodeSet`.
        draft: draft tokens of the next step.
        loop_at: the token of the answer from which the text repeats itself.
        segments: the steps at which it got tokens. Without speculation, pairs of a first step and a step after the
            last, with one token a step; with speculation, pairs of a step and its number of tokens.
        own: the chain of the blocks that no other sequence shares.
        chains: the shared chains, each with the number of blocks that end within it.
        held: blocks of each shared chain that it uses.
        blocks: all blocks that it uses.
    """

    __slots__ = (
        *("arrived_s", "blocks", "chains", "computed", "draft", "finish_at", "generated", "held", "index"),
        *("joined", "loop_at", "order", "output", "own", "phase", "priority", "prompt", "repetitive"),
        *("scheduled_s", "segments"),
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
        self.joined = self.phase = self.finish_at = 0
        self.draft = 0
        self.loop_at = 0
        self.segments: list[tuple[int, int]] = []
        self.own = Chain()
        self.chains = _blocks_of_chains(prompt, block_size)
        self.held = [0] * len(self.chains)
        self.blocks = 0

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

    def start(self, pool: BlockPool, cached: int, block_size: int) -> None:
        """Use its first `cached` blocks, which must be cached."""
        left = cached
        for place, (chain, span) in enumerate(self.chains):
            self.held[place] = min(left, span)
            left -= self.held[place]
            if self.held[place]:
                pool.hold(chain, self.held[place])
        pool.reclaim(self.own, left)
        self.blocks = cached
        self.computed = cached * block_size

    def grow(self, pool: BlockPool, blocks: int) -> None:
        """Take blocks until it uses `blocks`. The caller makes sure that enough are free."""
        missing = blocks - self.blocks
        at = 0
        for place, (chain, span) in enumerate(self.chains):
            held = self.held[place]
            target, current = min(span, blocks - at), min(span, self.blocks - at)
            at += span
            # Blocks that another sequence added to the chain meanwhile are not shared; this sequence has copies.
            if target > current == held == chain.cached:
                pool.extend(chain, held, target)
                self.held[place] = target
                missing -= target - held
            if self.held[place] < span:
                break
        pool.take(missing)
        self.blocks = blocks

    def free(self, pool: BlockPool) -> None:
        """Give up all blocks for good; its last blocks are the first to be evicted."""
        pool.discard(self.blocks - sum(self.held))
        self._release_shared(pool)

    def preempt(self, pool: BlockPool, block_size: int) -> None:
        """Give up all blocks; those that stay cached can be reused when the sequence is admitted again."""
        own = self.blocks - sum(self.held)
        whole = sum(span for _, span in self.chains) == sum(self.held)
        kept = max(0, min(own, self.computed // block_size - sum(self.held))) if pool.caching and whole else 0
        pool.discard(own - kept)
        pool.keep(self.own, kept)
        self._release_shared(pool)
        self.computed = 0

    def _release_shared(self, pool: BlockPool) -> None:
        for place in range(len(self.chains) - 1, -1, -1):
            if self.held[place]:
                pool.release(self.chains[place][0], self.held[place])
                self.held[place] = 0
        self.blocks = 0


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
