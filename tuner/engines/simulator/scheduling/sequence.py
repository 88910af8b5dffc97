"""A request inside the engine: its tokens, the blocks that it holds, and what it shares with others."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.engines.simulator.memory.block_pool import BlockPool, Chain


@dataclass(frozen=True)
class Prompt:
    """A request as the engine gets it: lengths in tokens.

    `shared` are the chains that its prompt begins with, each with its tokens. `repetitive` says that its text repeats
    itself, which drafts can guess.
    """

    index: int
    tokens: int
    output: int
    shared: tuple[tuple[Chain, int], ...] = ()
    repetitive: bool = False


class Sequence:
    """The engine's state of a request.

    Keys and values of `computed` tokens are in the cache; `generated` tokens have been sampled. One that was preempted
    has computed nothing and goes on with its next token once its prompt and answer so far are computed again.
    `segments` says at which steps it got tokens: from the first of each pair up to, not including, the second, one a
    step; with speculation, the step and how many.
    """

    __slots__ = (
        *("arrived_s", "blocks", "chains", "computed", "draft", "finish_at", "generated", "held", "index"),
        *("joined", "loop_at", "order", "output", "own", "phase", "prompt", "repetitive", "scheduled_s", "segments"),
    )

    def __init__(self, prompt: Prompt, block_size: int, arrived_s: float) -> None:
        self.index = prompt.index
        self.prompt = prompt.tokens
        self.output = prompt.output
        self.repetitive = prompt.repetitive
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
        self.chains = _spans(prompt, block_size)
        self.held = [0] * len(self.chains)
        self.blocks = 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + self.generated

    def known_blocks(self, block_size: int) -> int:
        """Return how many of its first blocks are cached; its last token is computed in any case."""
        most = (self.tokens - 1) // block_size
        found = 0
        for chain, span in self.chains:
            cached = min(chain.cached, span)
            found += cached
            if cached < span:
                return min(found, most)
        return min(found + self.own.cached, most)

    def start(self, pool: BlockPool, known: int, block_size: int) -> None:
        """Hold its first `known` blocks, which are cached."""
        left = known
        for place, (chain, span) in enumerate(self.chains):
            self.held[place] = min(left, span)
            left -= self.held[place]
            if self.held[place]:
                pool.hold(chain, self.held[place])
        pool.reclaim(self.own, left)
        self.blocks = known
        self.computed = known * block_size

    def grow(self, pool: BlockPool, blocks: int) -> None:
        """Take as many more blocks as make `blocks`; the caller has made sure that they are free."""
        missing = blocks - self.blocks
        at = 0
        for place, (chain, span) in enumerate(self.chains):
            held = self.held[place]
            wanted, had = min(span, blocks - at), min(span, self.blocks - at)
            at += span
            # where another sequence computed this part in the meantime, this one has a copy of its own
            if wanted > had == held == chain.cached:
                pool.extend(chain, held, wanted)
                self.held[place] = wanted
                missing -= wanted - held
            if self.held[place] < span:
                break
        pool.take(missing)
        self.blocks = blocks

    def free(self, pool: BlockPool) -> None:
        """Give up all blocks for good, the last ones first in line to be evicted."""
        pool.discard(self.blocks - sum(self.held))
        self._release_shared(pool)

    def preempt(self, pool: BlockPool, block_size: int) -> None:
        """Give up all blocks; what is cached may be found again when its turn comes."""
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


def _spans(prompt: Prompt, block_size: int) -> list[tuple[Chain, int]]:
    """Return each shared chain with the blocks that end within it; one across a border belongs to what follows."""
    spans: list[tuple[Chain, int]] = []
    at = blocks = 0
    for chain, tokens in prompt.shared:
        at += tokens
        whole = min(at, prompt.tokens) // block_size - blocks
        if whole > 0:
            spans.append((chain, whole))
            blocks += whole
    return spans
