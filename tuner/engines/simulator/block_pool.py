"""The paged KV cache in counts: which blocks are in use, which are cached, and which are free.

This is vLLM V1's block pool (`v1/core/block_pool.py`). vLLM identifies a block by a hash over its tokens and all tokens
before it, so equal prefixes share blocks. Here every block belongs to a chain: the system prompt, a document, or a
sequence's own tokens. The blocks of a chain are computed in order. Blocks that no sequence uses any more are evicted
from the chain's end, least recently used first. Three numbers therefore describe a chain, and no block is an object.

A model may have several tables of blocks (`kv_cache.py`). Here a block has all tables' tokens, and a page is the part
of one table: what vLLM calls a block, and what the pool counts. With one table of all layers, a block is a page.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PageRule:
    """The pages that a sequence takes.

    Attributes:
        block_size: tokens of a block.
        full: pages of a block in the tables that hold every token.
        windowed: further pages of each block of the window.
        window: blocks before the newest one that a window reaches into.
        states: pages of a sequence whatever its length.
        reuses_states: whether a prefix is reused only up to a place where a state is kept.
    """

    block_size: int
    full: int = 1
    windowed: int = 0
    window: int = 0
    states: int = 0
    reuses_states: bool = False

    def passed(self, computed: int) -> int:
        """Return the first blocks that no later token sees through a window, after `computed` tokens."""
        return max(0, computed // self.block_size - self.window)

    def of_sequence(self, tokens: int, in_flight: int = 0) -> int:
        """Return the pages of a sequence of so many tokens, with `in_flight` of them in the step that computes it."""
        blocks = -(-tokens // self.block_size)
        windowed = min(blocks, self.window + 1 + -(-in_flight // self.block_size))
        return self.full * blocks + self.windowed * windowed + self.states


@dataclass(slots=True, eq=False)
class Chain:
    """The blocks of one shared prefix, or of one sequence's own tokens.

    Attributes:
        cached: number of the chain's blocks that are in memory; they are its first ones.
        held: number of its first blocks that sequences use.
        depths: number of sequences by how many of the first blocks each uses.
        runs: groups of idle blocks, the last one nearest to the chain's beginning.
        states: the numbers of first blocks after which the state of recurrent layers is kept.
    """

    cached: int = 0
    held: int = 0
    depths: Counter[int] = field(default_factory=Counter)
    runs: list[BlockRun] = field(default_factory=list)
    states: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class BlockRun:
    """Blocks of one chain that became idle together; `count` falls as they are evicted or used again.

    Without a chain, they are single pages.
    """

    chain: Chain | None
    count: int


class BlockPool:
    """All KV cache pages of a GPU.

    Every page is used (by a sequence), idle (free, with cached content) or blank (free, without content):
    used + idle + blank = total. Without `caching` no page is idle. Chains and sequences count blocks.
    """

    def __init__(self, total: int, caching: bool, rule: PageRule | None = None) -> None:
        self.total = total
        self.caching = caching
        self.rule = rule or PageRule(1)
        self._of_block = self.rule.full
        self.blank = total
        self.idle = 0
        self._runs: deque[BlockRun] = deque()
        self._required = 0
        self._depends_on_size = False

    @property
    def free(self) -> int:
        """Number of pages that a sequence can get."""
        return self.blank + self.idle

    @property
    def used(self) -> int:
        """Number of pages that sequences use."""
        return self.total - self.blank - self.idle

    def lacks(self, count: int) -> bool:
        """Return whether fewer than `count` pages are free; the answer counts for `sufficient`."""
        if count > self.blank + self.idle:
            self._depends_on_size = True
            return True
        self.require(count)
        return False

    def require(self, count: int) -> None:
        """Count for `sufficient` that `count` pages, which are free, have to be."""
        required = self.total - self.blank - self.idle + count
        if required > self._required:
            self._required = required

    @property
    def sufficient(self) -> int | None:
        """The pages of a pool with which everything so far would have gone the same way, and with any larger one.

        None if that depends on the pool's size: pages were lacking, or cached blocks were evicted.
        """
        return None if self._depends_on_size else self._required

    def take(self, count: int) -> None:
        """Give `count` pages to a sequence: blank ones first, then idle ones, least recently used first.

        Raises:
            ValueError: if fewer pages are free.
        """
        if count > self.free:
            raise ValueError(f"{count} pages requested, {self.free} are free")
        blank = min(count, self.blank)
        self.blank -= blank
        if count > blank:
            self._evict(count - blank)
        # A smaller pool would evict pages with content as soon as none of its own is blank.
        if self.total - self.blank > self._required:
            self._required = self.total - self.blank

    def _evict(self, count: int) -> None:
        """Evict blocks until `count` pages are free of content; what is left of the last block is blank."""
        self.idle -= count
        while count > 0:
            run = self._runs[0]
            pages = 1 if run.chain is None else self._of_block
            evicted = min(-(-count // pages), run.count) if pages else run.count
            run.count -= evicted
            count -= evicted * pages
            if run.chain is not None:
                run.chain.cached -= evicted
                self._depends_on_size = True
            if not run.count:
                self._runs.popleft()
                if run.chain is not None and run in run.chain.runs:
                    run.chain.runs.remove(run)
        self.idle += count
        self.blank -= count

    def hold(self, chain: Chain, depth: int) -> None:
        """Let a sequence use the first `depth` blocks of a chain, all of which must be cached.

        Raises:
            ValueError: if fewer blocks are cached.
        """
        if depth > chain.cached:
            raise ValueError(f"{depth} blocks of a chain requested, {chain.cached} are cached")
        chain.depths[depth] += 1
        if depth > chain.held:
            self._reuse(chain, depth - chain.held)
            chain.held = depth

    def _reuse(self, chain: Chain, count: int) -> None:
        """Take idle blocks of a chain into use, nearest to its beginning first; these became idle last."""
        self.idle -= count * self._of_block
        while count:
            run = chain.runs[-1]
            reused = min(count, run.count)
            run.count -= reused
            count -= reused
            if not run.count:
                chain.runs.pop()
                self._runs.remove(run)

    def extend(self, chain: Chain, before: int, after: int) -> None:
        """Extend a chain from `before` blocks, all of which a sequence uses, to `after` blocks.

        Raises:
            ValueError: if the chain does not have `before` cached blocks, or too few blocks are free.
        """
        if before != chain.cached:
            raise ValueError(f"a chain of {chain.cached} blocks cannot be extended from {before}")
        self.take((after - before) * self._of_block)
        chain.cached = chain.held = after
        if before:
            self._forget_user(chain, before)
        chain.depths[after] += 1

    def _forget_user(self, chain: Chain, depth: int) -> None:
        chain.depths[depth] -= 1
        if not chain.depths[depth]:
            del chain.depths[depth]

    def release(self, chain: Chain, depth: int) -> None:
        """Let a sequence give up the first `depth` blocks of a chain; blocks without any user become idle."""
        self._forget_user(chain, depth)
        held = max(chain.depths, default=0)
        if held < chain.held:
            self._make_idle(chain, chain.held - held)
            chain.held = held

    def _make_idle(self, chain: Chain, count: int) -> None:
        run = BlockRun(chain, count)
        self._runs.append(run)
        chain.runs.append(run)
        self.idle += count * self._of_block

    def discard(self, count: int) -> None:
        """Free pages that no sequence can reuse; with caching they stay idle until they are evicted."""
        if self.caching and count:
            self._runs.append(BlockRun(None, count))
            self.idle += count
        else:
            self.blank += count

    def keep(self, chain: Chain, count: int) -> None:
        """Free the first `count` blocks of a sequence's own chain, which the sequence may reuse later."""
        chain.cached = count
        if count:
            self._make_idle(chain, count)

    def reclaim(self, chain: Chain, count: int) -> None:
        """Give a sequence the first `count` of the blocks that it kept; no sequence can reuse the others."""
        self._reuse(chain, count)
        for run in chain.runs:
            run.chain = None
            run.count *= self._of_block
        chain.runs.clear()
        chain.cached = 0
