"""The paged KV cache in counts: which blocks are in use, which are cached, and which are free.

This is vLLM V1's block pool (`v1/core/block_pool.py`). vLLM identifies a block by a hash over its tokens and all tokens
before it, so equal prefixes share blocks. Here every block belongs to a chain: the system prompt, a document, or a
sequence's own tokens. The blocks of a chain are computed in order. Blocks that no sequence uses any more are evicted
from the chain's end, least recently used first. Three numbers therefore describe a chain, and no block is an object.
"""

from __future__ import annotations

from collections import Counter, deque


class Chain:
    """The blocks of one shared prefix, or of one sequence's own tokens.

    Attributes:
        cached: number of the chain's blocks that are in memory; they are its first ones.
        held: number of its first blocks that sequences use.
        depths: number of sequences by how many of the first blocks each uses.
        runs: groups of idle blocks, the last one nearest to the chain's beginning.
    """

    __slots__ = ("cached", "depths", "held", "runs")

    def __init__(self) -> None:
        self.cached = 0
        self.held = 0
        self.depths: Counter[int] = Counter()
        self.runs: list[BlockRun] = []


class BlockRun:
    """Blocks of one chain that became idle together; `count` falls as they are evicted or used again."""

    __slots__ = ("chain", "count")

    def __init__(self, chain: Chain | None, count: int) -> None:
        self.chain = chain
        self.count = count


class BlockPool:
    """All KV cache blocks of a GPU.

    Every block is used (by a sequence), idle (free, with cached content) or blank (free, without content):
    used + idle + blank = total. Without `caching` no block is idle.
    """

    def __init__(self, total: int, caching: bool) -> None:
        self.total = total
        self.caching = caching
        self.blank = total
        self.idle = 0
        self._runs: deque[BlockRun] = deque()

    @property
    def free(self) -> int:
        """Number of blocks that a sequence can get."""
        return self.blank + self.idle

    @property
    def used(self) -> int:
        """Number of blocks that sequences use."""
        return self.total - self.blank - self.idle

    def take(self, count: int) -> None:
        """Give `count` blocks to a sequence: blank ones first, then idle ones, least recently used first.

        Raises:
            ValueError: if fewer blocks are free.
        """
        if count > self.free:
            raise ValueError(f"{count} blocks requested, {self.free} are free")
        blank = min(count, self.blank)
        self.blank -= blank
        self._evict(count - blank)

    def _evict(self, count: int) -> None:
        self.idle -= count
        while count:
            run = self._runs[0]
            evicted = min(count, run.count)
            run.count -= evicted
            count -= evicted
            if run.chain is not None:
                run.chain.cached -= evicted
            if not run.count:
                self._runs.popleft()
                if run.chain is not None and run in run.chain.runs:
                    run.chain.runs.remove(run)

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
        self.idle -= count
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
        self.take(after - before)
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
        self.idle += count

    def discard(self, count: int) -> None:
        """Free blocks that no sequence can reuse; with caching they stay idle until they are evicted."""
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
        chain.runs.clear()
        chain.cached = 0
