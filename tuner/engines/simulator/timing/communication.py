"""The time in which the GPUs of one server exchange data, t = α + bytes / B (Hockney, Parallel Computing 20, 1994).

With t GPUs of a tensor parallel group, the bytes that each GPU moves for a tensor of n bytes are those of a ring
(Patarasuk and Yuan, JPDC 2009), and NCCL's and vLLM's kernels reach a share of the link's bandwidth of one direction:

    α          = all_reduce_us + all_reduce_gpu_us × t                   (× pcie_latency_factor over PCIe)
    B          = link_gbs / 2 × nvlink_share or pcie_share
    all-reduce = α + 2 (t - 1) / t × n / B
    all-gather = α + (t - 1) / t × n / B
    send       = α(2) + n / B                                            between two groups of layers

A step has two all-reduces of tokens × hidden in each layer and one after the embedding, an all-gather of the logits,
and a send of the hidden state and of the residual between two groups of layers. Nothing overlaps with arithmetic. A
card without known link counts as one on PCIe Gen4 x16.
"""

from __future__ import annotations

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.parameters import Parameters

_US = 1e-6
_GIGA = 1e9
_ELEMENT_BYTES = 2
_UNKNOWN_LINK_GBS = 64.0
_TENSORS_SENT = 2
"""vLLM sends the hidden state and the residual to the next group of layers."""


class Communication:
    """The seconds of the collectives of one server."""

    def __init__(self, config: ServeConfig, parameters: Parameters) -> None:
        card, self._gpus = config.card, config.parallel.tensor
        is_nvlink = card.link == "nvlink"
        share = parameters.nvlink_share if is_nvlink else parameters.pcie_share
        self._bandwidth = (card.link_gbs or _UNKNOWN_LINK_GBS) / 2 * _GIGA * share
        factor = (1.0 if is_nvlink else parameters.pcie_latency_factor) * _US
        self._latency = factor * (parameters.all_reduce_us + parameters.all_reduce_gpu_us * self._gpus)
        self._send_latency = factor * (parameters.all_reduce_us + parameters.all_reduce_gpu_us * 2)
        self._all_reduces = 2 * config.shard.layers + 1
        self._hidden_bytes = _ELEMENT_BYTES * config.model.hidden
        self._logit_bytes = _ELEMENT_BYTES * config.model.vocab

    def all_reduce(self, size: float) -> float:
        """Return the seconds in which every GPU of a group gets the sum of all tensors of `size` bytes."""
        return self._latency + 2.0 * (self._gpus - 1) / self._gpus * size / self._bandwidth

    def all_gather(self, size: float) -> float:
        """Return the seconds in which every GPU of a group gets the whole tensor of `size` bytes."""
        return self._latency + (self._gpus - 1) / self._gpus * size / self._bandwidth

    def send(self, size: float) -> float:
        """Return the seconds in which a GPU gets a tensor of `size` bytes from another one."""
        return self._send_latency + size / self._bandwidth

    def of_layers(self, tokens: int) -> float:
        """Return the seconds of the all-reduces of a group of layers for `tokens` tokens; 0 on one GPU."""
        return self._all_reduces * self.all_reduce(tokens * self._hidden_bytes) if self._gpus > 1 else 0.0

    def of_logits(self, sampled: float) -> float:
        """Return the seconds in which the logits of `sampled` tokens are gathered; 0 on one GPU."""
        return self.all_gather(sampled * self._logit_bytes) if self._gpus > 1 else 0.0

    def of_stages(self, tokens: int, stages: int) -> float:
        """Return the seconds in which the state of `tokens` tokens passes from group to group of layers."""
        return (stages - 1) * self.send(_TENSORS_SENT * tokens * self._hidden_bytes)
