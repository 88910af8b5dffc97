"""The KV cache in the host's memory: vLLM's `--kv-offloading-size` with its own connector (`v1/kv_offload`).

vLLM copies each whole block to the host and evicts the one that was used least recently. A request whose next blocks
only the host has waits until they are copied back, one request after the other, while others run:

    seconds of a load = bytes of its blocks / offload_gbs

As in `block_pool.py`, blocks are numbers of a chain, and a chain is evicted from its end.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.sequence import Sequence


class HostCache:
    """Blocks in the host's memory, and the requests whose blocks are copied from there.

    Attributes:
        loading: requests that wait for their blocks, each with the time in seconds at which it has them.
    """

    def __init__(self, blocks: int, block_s: float) -> None:
        """Take the number of blocks that fit, and the seconds in which one is copied to the GPU."""
        self._free = blocks
        self._block_s = block_s
        self._depths: OrderedDict[Chain, int] = OrderedDict()
        self._link_free_s = 0.0
        self.loading: deque[tuple[float, Sequence]] = deque()

    def found_blocks(self, sequence: Sequence, block_size: int) -> int:
        """Return how many of a sequence's first blocks the GPU or the host has; its last token is computed anyway."""
        most = (sequence.tokens - 1) // block_size
        total = 0
        for chain, span in sequence.chains:
            depth = min(span, max(chain.cached, self._depths.get(chain, 0)))
            total += depth
            if depth < span:
                return min(total, most)
        own = max(sequence.own.cached, self._depths.get(sequence.own, 0))
        return min(total + own, most)

    def load(self, sequence: Sequence, blocks: int, now: float) -> None:
        """Start to copy blocks for a request, after those of the requests before it."""
        self._link_free_s = max(now, self._link_free_s) + blocks * self._block_s
        self.loading.append((self._link_free_s, sequence))

    def loaded(self, now: float) -> list[Sequence]:
        """Remove and return the requests that have their blocks."""
        ready = []
        while self.loading and self.loading[0][0] <= now:
            ready.append(self.loading.popleft()[1])
        return ready

    def abort(self, sequence: Sequence) -> bool:
        """Drop a request that waits for its blocks; return whether there was one."""
        kept = [each for each in self.loading if each[1] is not sequence]
        dropped = len(kept) < len(self.loading)
        self.loading = deque(kept)
        return dropped

    def store(self, sequence: Sequence) -> None:
        """Keep the blocks of a sequence, as those that were used last."""
        for (chain, _), depth in zip(sequence.chains, sequence.held, strict=True):
            self._keep(chain, depth)
        self._keep(sequence.own, sequence.blocks - sum(sequence.held))

    def _keep(self, chain: Chain, depth: int) -> None:
        before = self._depths.pop(chain, 0)
        if max(before, depth):
            self._depths[chain] = max(before, depth)
            self._free -= max(before, depth) - before
        while self._free < 0:
            oldest, blocks = next(iter(self._depths.items()))
            evicted = min(blocks, -self._free)
            self._free += evicted
            if evicted < blocks:
                self._depths[oldest] = blocks - evicted
            else:
                del self._depths[oldest]
