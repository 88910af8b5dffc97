"""The paged KV cache: blocks, who holds them, and what stays in them for later (vLLM V1's block pool, in counts).

A block's content is known by what comes before it, so it belongs to a chain: the system prompt, a document, or what a
sequence has for itself. Blocks of a chain are computed in order and, when nobody holds them any more, are evicted from
its end, the longest unused first; so a chain is told by three numbers and no block has to exist as an object.
"""

from __future__ import annotations

from collections import Counter, deque


class Chain:
    """Blocks that begin alike. `cached` blocks of it are in memory, the first `held` of them in use by sequences."""

    __slots__ = ("cached", "depths", "held", "runs")

    def __init__(self) -> None:
        self.cached = 0
        self.held = 0
        self.depths: Counter[int] = Counter()
        self.runs: list[BlockRun] = []


class BlockRun:
    """Blocks of one chain that became free at the same time; `count` falls as they are evicted or used again."""

    __slots__ = ("chain", "count")

    def __init__(self, chain: Chain | None, count: int) -> None:
        self.chain = chain
        self.count = count


class BlockPool:
    """All blocks of a device.

    Every block is used (held by a sequence), idle (free, its content still known) or blank; the three add up to
    `total`. With `caching` off nothing is ever idle.
    """

    def __init__(self, total: int, caching: bool) -> None:
        self.total = total
        self.caching = caching
        self.blank = total
        self.idle = 0
        self._runs: deque[BlockRun] = deque()

    @property
    def free(self) -> int:
        """Blocks that a sequence can be given."""
        return self.blank + self.idle

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.blank - self.idle

    def take(self, count: int) -> None:
        """Give blocks away: blank ones first, then those that were unused the longest.

        Raises:
            ValueError: when there are fewer.
        """
        if count > self.free:
            raise ValueError(f"{count} blocks wanted, {self.free} are free")
        blank = min(count, self.blank)
        self.blank -= blank
        self._evict(count - blank)

    def _evict(self, count: int) -> None:
        self.idle -= count
        while count:
            run = self._runs[0]
            gone = min(count, run.count)
            run.count -= gone
            count -= gone
            if run.chain is not None:
                run.chain.cached -= gone
            if not run.count:
                self._runs.popleft()
                if run.chain is not None and run in run.chain.runs:
                    run.chain.runs.remove(run)

    def hold(self, chain: Chain, depth: int) -> None:
        """Let a sequence hold the first `depth` blocks of a chain, all of which must be cached."""
        if depth > chain.cached:
            raise ValueError(f"{depth} blocks of a chain wanted, {chain.cached} are cached")
        chain.depths[depth] += 1
        if depth > chain.held:
            self._wake(chain, depth - chain.held)
            chain.held = depth

    def _wake(self, chain: Chain, count: int) -> None:
        """Take idle blocks of a chain into use, the ones nearest to its beginning, which were freed last."""
        self.idle -= count
        while count:
            run = chain.runs[-1]
            gone = min(count, run.count)
            run.count -= gone
            count -= gone
            if not run.count:
                chain.runs.pop()
                self._runs.remove(run)

    def extend(self, chain: Chain, before: int, after: int) -> None:
        """Let a sequence that holds all `before` blocks that there are of a chain take more of it, and fill them."""
        if before != chain.cached:
            raise ValueError(f"a chain of {chain.cached} blocks cannot be extended from {before}")
        self.take(after - before)
        chain.cached = chain.held = after
        if before:
            self._let_go(chain, before)
        chain.depths[after] += 1

    def _let_go(self, chain: Chain, depth: int) -> None:
        chain.depths[depth] -= 1
        if not chain.depths[depth]:
            del chain.depths[depth]

    def release(self, chain: Chain, depth: int) -> None:
        """Let a sequence give up the first `depth` blocks of a chain; what nobody holds then becomes idle."""
        self._let_go(chain, depth)
        held = max(chain.depths, default=0)
        if held < chain.held:
            self._lay_down(chain, chain.held - held)
            chain.held = held

    def _lay_down(self, chain: Chain, count: int) -> None:
        run = BlockRun(chain, count)
        self._runs.append(run)
        chain.runs.append(run)
        self.idle += count

    def discard(self, count: int) -> None:
        """Free blocks that nobody will ask for again; with caching their content stays until they are evicted."""
        if self.caching and count:
            self._runs.append(BlockRun(None, count))
            self.idle += count
        else:
            self.blank += count

    def keep(self, chain: Chain, count: int) -> None:
        """Free all blocks of a chain that one sequence has for itself, and may ask for again."""
        chain.cached = count
        if count:
            self._lay_down(chain, count)

    def reclaim(self, chain: Chain, count: int) -> None:
        """Give a sequence back the first `count` blocks that it kept; the others belong to nobody from now on."""
        self._wake(chain, count)
        for run in chain.runs:
            run.chain = None
        chain.runs.clear()
        chain.cached = 0
