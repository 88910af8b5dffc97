"""The time of one engine step: a roofline model of the card, the exchange between GPUs, and the host's scheduling.

On the card, kernels run one after another:

    card = linear layers + experts + head + attention + recurrent layers + kernels + sampling

- A matrix product takes sqrt(stream² + arithmetic²): `stream` reads its weights at a share of the card's bandwidth,
  `arithmetic` multiplies at a share of its peak. This is the roofline of Williams et al. (CACM 2009) with a rounded
  corner.
- The experts' products take as long, of the experts that the step's tokens choose. If each token chooses `chosen` of E
  experts evenly, n tokens touch T = E (1 - (1 - chosen / E)^n) of them, and the kernel computes the rows of each in
  groups of `_EXPERT_TILE` tokens (vLLM's fused_moe and its `BLOCK_SIZE_M`):
      stream = T × bytes of an expert / bandwidth,  arithmetic = T × rounded up (n chosen / T) × its FLOP / peak
  bitsandbytes reads all E experts and writes them in 16 bits before the products of each step.
  With expert parallelism over r GPUs, a step waits for the GPU with the most tokens. Shares of experts differ by s
  (`expert_skew`, their standard deviation over their mean), and n tokens choose by chance, so that this GPU's load is
      f = 1 + m(r) sqrt((1 - 1/r) (s² r / E + r / (n chosen)))    times the mean, at most r
  with the mean m(r) of the largest of r normal numbers (Blom 1958), if choices are independent and experts have no
  order. Random weights (`--load-format dummy`) have s = 0, as H200 rows show.
- Attention and recurrent layers: what decodes read and prefills compare (`attention_time`).
- Kernels: a least time for each kernel, and passes over the hidden states for the element-wise work.
- Sampling: passes over the logits of each sampled token, and of each draft token that is checked.
- Drafts that are computed: with k draft tokens, a pass over all tokens of the step and k - 1 passes over one token of
  each sequence, each with the equations above for the draft's layers and the head (`speculation.py`). A sequence whose
  draft is checked reads its context once, compares it with each of its tokens, and writes a state for each.

The host prepares the step and launches it:

    host = step_us + step_sequence_us × sequences + admit_us × admitted + draft look-up × drafting
    launches: by whole graph, by piece, or by kernel (`LaunchMode`), and Triton's attention outside a whole graph

Asynchronous scheduling overlaps the host with the step before it:

    period = max(card, host + launches)     with asynchronous scheduling
    period = host + max(card, launches)     without

With tensor parallelism, the card's times are those of one GPU's part (`ServeConfig.shard`) and its collectives, one
after another. Sampling sees all logits. With p groups of layers (pipeline parallelism), the
sequences of a step go in b = min(p, sequences) equal batches through all groups, one group behind another:

    card = p × (layers, their attention, kernels and collectives of one group and one batch) + b × (head + sampling)

so that all GPUs work if there are p sequences, and one at a time works on a single sequence. The host prepares and
launches each batch while others are on the card.

If several servers share a GPU, its processes take turns: `sharing` servers with work each take that many times longer
on the card (processor sharing), and not on the host.

With t GPUs of a tensor parallel group, the bytes that each GPU moves for a tensor of n bytes are those of a ring
(Patarasuk and Yuan, JPDC 2009), and NCCL's and vLLM's kernels reach a share of the link's bandwidth of one direction:

    α          = all_reduce_us + all_reduce_gpu_us × t                   (× pcie_latency_factor over PCIe)
    B          = link_gbs / 2 × nvlink_share or pcie_share
    all-reduce = α + 2 (t - 1) / t × n / B
    all-gather = α + (t - 1) / t × n / B
    send       = α(2) + n / B                                            between two groups of layers

A step has two all-reduces of tokens × hidden in each layer and one after the embedding, an all-gather of the logits,
and a send of the hidden state and of the residual between two groups of layers. Nothing overlaps with arithmetic. A
card without known link counts as one on PCIe Gen4 x16. Expert parallelism within a tensor parallel group has the same
all-reduces. With data parallelism d, the tokens of all copies are gathered before the experts of a layer, and their
results are scattered behind them (vLLM's `allgather_reducescatter`); the copies step together with as many tokens each:

    experts of a layer = all-gather(d n hidden) + reduce-scatter of as much + the experts' share of d n tokens

Arithmetic and memory traffic of a step:

    FLOP  = 2 active tokens + 2 head sampled + FLOP of a pair × pairs, of each layer
    bytes = (linear, touched experts' and head bytes) steps + bytes of a token × context, of each layer

`active` are the parameters that a token passes: the matrices and the chosen experts; `head` are those of the head. A
pair is a token that attention compares with one before it or itself; `context` counts the tokens of KV cache that
decodes read, each of them a pair, too. A multiplication with an addition is 2 FLOP.

All parameters are documented in `parameters.yaml`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from search_spaces import HardwareProfile, ModelShape
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, Recurrent
from tuner.engines.simulator.attention_time import Amount, AttentionTime, larger, smaller
from tuner.engines.simulator.cuda_graphs import LaunchMode
from tuner.engines.simulator.memory import ExpertWeights, Weights, activation_elements, find_weights
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.precision import has_machete, is_hopper
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.serve_config import ServeConfig

AnAmount = TypeVar("AnAmount", float, NDArray[np.float64], Amount)

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
        self._copies = config.parallel.data
        self._expert_layers = sum(each.count for each in config.shard.groups if isinstance(each.mlp, Experts))
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

    def of_experts(self, tokens: int) -> float:
        """Return the seconds in which copies of a model exchange `tokens` tokens each for their experts; 0 for one."""
        if self._copies == 1:
            return 0.0
        moved = (self._copies - 1) * tokens * self._hidden_bytes
        return 2 * self._expert_layers * (self._send_latency + moved / self._bandwidth)

    def of_logits(self, sampled: float) -> float:
        """Return the seconds in which the logits of `sampled` tokens are gathered; 0 on one GPU."""
        return self.all_gather(sampled * self._logit_bytes) if self._gpus > 1 else 0.0

    def of_stages(self, tokens: int, stages: int) -> float:
        """Return the seconds in which the state of `tokens` tokens passes from group to group of layers."""
        return (stages - 1) * self.send(_TENSORS_SENT * tokens * self._hidden_bytes)


@dataclass(frozen=True)
class TokenWork:
    """The factors of both sums.

    Attributes:
        token_flops: FLOP of the layers' matrices for a token.
        head_flops: FLOP of the head for a sampled token.
        pair_flops: FLOP of attention for a pair of tokens.
        weight_bytes: bytes of the matrices, read once a step.
        experts: of each kind of layer with experts; a step reads those that its tokens choose.
        context_bytes: bytes of the KV cache of a token.
    """

    token_flops: float
    head_flops: float
    pair_flops: float
    weight_bytes: float
    experts: tuple[ExpertWeights, ...]
    context_bytes: float

    @classmethod
    def of(cls, config: ServeConfig, weights: Weights) -> TokenWork:
        """Return the factors of a configured server."""
        groups = config.model.groups
        active = weights.linear + sum(each.layers * each.mlp.chosen * each.of_one for each in weights.experts)
        scans = sum(each.count * each.mixer.token_flops for each in groups if isinstance(each.mixer, Recurrent))
        return cls(
            token_flops=2.0 * active + scans,
            head_flops=2.0 * weights.head,
            pair_flops=sum(each.count * _pair_flops(each.mixer) for each in groups),
            weight_bytes=weights.linear_bytes + weights.head_bytes,
            experts=weights.experts,
            context_bytes=config.model.kv_bytes_per_token(1) * config.kv_element_bytes,
        )

    def flops(self, tokens: float, sampled: float, pairs: AnAmount) -> AnAmount:
        """Return the FLOP of so many tokens, sampled tokens and pairs."""
        return self.token_flops * tokens + self.head_flops * sampled + self.pair_flops * pairs

    def bytes(self, steps: float, context: AnAmount, batch: float) -> AnAmount:
        """Return the bytes of so many steps of `batch` tokens each, whose decodes read `context` tokens of KV cache."""
        touched = sum(each.layers * each.mlp.touched(batch) * each.bytes_of_one for each in self.experts)
        return (self.weight_bytes + touched) * steps + self.context_bytes * context


def _pair_flops(mixer: Attention | LatentAttention | Recurrent | None) -> float:
    """Return the FLOP of comparing two tokens in a layer that sees all of them."""
    if isinstance(mixer, Attention):
        return 0.0 if mixer.window else mixer.pair_flops
    return mixer.prefill_pair_flops if isinstance(mixer, LatentAttention) else 0.0


_TERA = 1e12
_UNPACK_FROM_TOKENS = 256
"""Steps of at least so many tokens unpack 4-bit matrices to 16 bits before a plain product (vLLM's awq.py, gptq.py)."""
_TRITON_BACKENDS = ("TRITON_ATTN", "TRITON_MLA")
_QUANTIZES_ACTIVATIONS = ("native", "blocks")
"""Kernels of products whose other side is quantized before each of them (`Weights.kernels`)."""
_AWQ_TILE = 16
"""Tokens that AWQ's own kernel multiplies together; it unpacks the weights anew for each such group, and a part of a
group takes as long as a whole one (vLLM's csrc/quantization/awq, `gemm_forward_4bit_cuda_m16nXk32`)."""
_EXPERT_TILE = 16
"""Tokens of an expert that fused_moe multiplies together at least; a part of such a group takes as long as a whole."""
_UNPACK_TRAFFIC = 2.25
"""Memory traffic of unpacking and multiplying, over that of a 16-bit matrix: read 4 bits, write and read 16 bits."""


_CAUSES = ("weights", "attention", "kernels", "sampling", "launches", "host")
COMMUNICATION = "communication"
"""The cause of a step's time that a server of several GPUs has besides the others."""
DRAFTS = "drafts"
"""The cause of a step's time that a server which computes its drafts has besides the others."""
OTHER_SERVERS = "other servers"
"""The cause of a step's time that a server which shares its GPU has besides the others."""


class StepTime:
    """The time of the steps of one server.

    Attributes:
        seconds: the time of all steps so far by its cause.
        flops: the arithmetic that their tokens need: matrices and attention.
        bytes: the memory traffic that their tokens need: weights once a step, KV cache once a decoded token.
        work: the factors of both.
        sharing: servers that have work on this server's GPU now, itself included.
    """

    def __init__(
        self,
        config: ServeConfig,
        parameters: Parameters,
        marlin_input: str | None = None,
        scale: float = 1.0,
        warm: bool = True,
    ) -> None:
        """Set up the time of a server's steps.

        Args:
            config: the server's configuration.
            parameters: the simulator's parameters.
            marlin_input: 8-bit format of activations in Marlin's kernels; None for 16 bits.
            scale: factor on every step's time.
            warm: whether the server has run a prefill before; the first one loads kernels.
        """
        self.config = config
        self._scale = scale
        self.flops = self.bytes = 0.0
        self.sharing = 1
        self.weights: Weights = find_weights(config, config.shard, marlin_input)
        self.work = TokenWork.of(config, find_weights(config, config.model, marlin_input))
        self._stages = config.parallel.pipeline
        self._copies = config.parallel.data
        is_split = config.parallel.replica_gpus > 1 or (self._copies > 1 and bool(self.weights.experts))
        self._attention = AttentionTime(config, parameters)
        self._draft = None if config.draft is None else StepTime(config.draft, parameters, marlin_input)
        self._passes = config.speculation.tokens if config.speculation else 0
        self._communication = Communication(config, parameters) if is_split else None
        causes = (*_CAUSES, *((COMMUNICATION,) if is_split else ()), *((DRAFTS,) if self._draft else ()))
        self.seconds = dict.fromkeys(causes, 0.0)
        is_triton = config.backend in _TRITON_BACKENDS
        self._first_use_s = parameters.triton_first_use_s if is_triton else parameters.first_use_s
        self._warm = warm
        self._set_card_times(config, parameters)
        self._set_host_times(config, parameters)

    def _set_card_times(self, config: ServeConfig, parameters: Parameters) -> None:
        """Set the seconds of the card's work, each for the unit that its name ends in."""
        model, card, weights = config.shard, config.card, self.weights
        bandwidth = (card.bandwidth_gbs or 1.0) * _GIGA
        streamed = bandwidth * parameters.bandwidth_share
        self._tile = _AWQ_TILE if config.quantization == "awq" and weights.kernels == "gemm" else 1
        reading = parameters.native_bandwidth_factor if weights.kernels in _QUANTIZES_ACTIVATIONS else 1.0
        reading *= parameters.block_bandwidth_factor if weights.kernels == "blocks" else 1.0
        self._linear_stream = weights.linear_bytes / (streamed * reading)
        self._linear_token = 2.0 * weights.linear / self._linear_flops_per_s(parameters)
        self._unpacked_stream = 2.0 * weights.linear * _UNPACK_TRAFFIC / streamed
        plain_flops_per_s = card.tflops["float16"] * _TERA * parameters.arithmetic_share
        self._unpacked_token = 2.0 * weights.linear / plain_flops_per_s
        self._head_stream = weights.head_bytes / streamed
        self._head_token = 2.0 * weights.head / plain_flops_per_s
        hidden_pass = 2.0 * model.hidden * model.layers / streamed
        moved = 2.0 * activation_elements(model) / streamed
        self._elementwise_token = {
            True: hidden_pass * parameters.fused_passes + moved,
            False: hidden_pass * parameters.eager_passes + moved,
        }
        quantize = parameters.quantize_kernels_per_layer if weights.kernels in _QUANTIZES_ACTIVATIONS else 0.0
        quantize += parameters.cache_kernels_per_layer if config.kv_element_bytes < 2 else 0.0
        layers, beside = _whole_layers(model), parameters.expert_kernels_per_layer * _expert_layers(model)
        self._kernel_count = {
            True: layers * (parameters.fused_kernels_per_layer + quantize) + beside,
            False: layers * (parameters.eager_kernels_per_layer + quantize) + beside,
        }
        self._kernel = parameters.kernel_us * _US
        passes = parameters.greedy_passes if config.temperature == 0 else parameters.sampling_passes
        self._sample = 4.0 * config.model.vocab * passes / streamed
        self._set_expert_times(card, weights, parameters)

    def _set_expert_times(self, card: HardwareProfile, weights: Weights, parameters: Parameters) -> None:
        """Set the seconds to stream an expert's matrices and to multiply a token with them, of all layers of a kind."""
        self._skew = 0.0 if self.config.random_weights else parameters.expert_skew
        self._largest = largest_of(self.config.parallel.tensor * self.config.parallel.data)
        narrow = weights.expert_kernels in ("native", "blocks")
        share = parameters.expert_bandwidth_share
        streamed = (card.bandwidth_gbs or 1.0) * _GIGA * share
        factor = parameters.native_arithmetic_factor if narrow else 1.0
        reached = card.tflops[weights.expert_arithmetic] * _TERA * parameters.expert_arithmetic_share * factor
        unpacks = weights.expert_kernels == "unpacked"
        self._experts = [
            (
                each.mlp,
                each.layers * (_ELEMENT_BYTES * each.of_one if unpacks else each.bytes_of_one) / streamed,
                2.0 * each.layers * each.of_one / reached,
            )
            for each in weights.experts
        ]
        moved = (
            each.layers * each.mlp.count * (each.bytes_of_one + _ELEMENT_BYTES * each.of_one)
            for each in weights.experts
        )
        self._unpack_experts = sum(moved) / streamed if unpacks else 0.0

    def _linear_flops_per_s(self, parameters: Parameters) -> float:
        share = {
            "plain": parameters.arithmetic_share,
            "native": parameters.arithmetic_share * parameters.native_arithmetic_factor,
            "blocks": parameters.arithmetic_share * parameters.block_arithmetic_factor,
            "marlin": parameters.arithmetic_share * self._marlin_factor(parameters),
            "gemm": parameters.awq_arithmetic_share if self._tile > 1 else parameters.gemm_arithmetic_share,
        }[self.weights.kernels]
        return self.config.card.tflops[self.weights.arithmetic] * _TERA * share

    def _marlin_factor(self, parameters: Parameters) -> float:
        """Return the factor on `arithmetic_share` for kernels that unpack the weights: Marlin's or Machete's."""
        config = self.config
        factor = parameters.marlin_arithmetic_factor
        factor *= parameters.marlin_8_bit_factor if config.weight_bits == 8 else 1.0
        is_slower = is_hopper(config.card) and not has_machete(config.card, config.quantization, config.version)
        return factor * (parameters.marlin_hopper_factor if is_slower else 1.0)

    def _set_host_times(self, config: ServeConfig, parameters: Parameters) -> None:
        """Set the seconds of the host's work; a slower host takes longer, and launches have the card's `launch_us`."""
        speed = config.card.host_speed or 1.0
        launch = (config.card.launch_us or 0.0) * _US * config.shard.layers
        quantizes = self.weights.kernels in _QUANTIZES_ACTIVATIONS
        quantize = parameters.quantize_launches_per_layer if quantizes else 0.0
        is_flex, is_triton = config.backend == "FLEX_ATTENTION", config.backend in _TRITON_BACKENDS
        attention = parameters.triton_launches_per_layer * launch if is_triton else 0.0
        experts = parameters.expert_launches_per_layer * launch * _expert_layers(config.shard) / config.shard.layers
        self._host_step = (parameters.step_us + (parameters.flex_mask_us if is_flex else 0.0)) * _US / speed
        self._host_admission = parameters.admit_us * _US / speed
        self._host_sequence = parameters.step_sequence_us * _US / speed
        self._launches = {
            LaunchMode.FULL: parameters.full_graph_us * _US / speed,
            LaunchMode.PIECEWISE: parameters.piece_us * _US / speed * config.shard.layers + attention,
            LaunchMode.COMPILED: parameters.fused_launches_per_layer * launch + attention + experts,
            LaunchMode.EAGER: (parameters.eager_launches_per_layer + quantize) * launch + attention + experts,
        }
        draft_us = {"ngram": parameters.ngram_draft_us, "suffix": parameters.suffix_draft_us}
        method = config.speculation.method if config.speculation else ""
        self._host_draft = draft_us.get(method, 0.0) * _US / speed
        self._host_pass = parameters.draft_pass_us * _US / speed

    def advance(self, step: Step) -> float:
        """Return the seconds from the start of a step to the start of the next one, and add them up by cause."""
        period, costs = self._period(step)
        for cause, seconds in costs.items():
            self.seconds[cause] = self.seconds.get(cause, 0.0) + float(seconds)
        flops, traffic = self._work(step)
        self.flops += float(flops)
        self.bytes += float(traffic)
        if not self._warm and step.prefill:
            self._warm = True
            period += self._first_use_s
        return float(period * self._scale)

    def advance_until(self, steps: Step, now: float, until_s: float) -> NDArray[np.float64]:
        """Return the ends of those of several steps that begin before `until_s`, the first of them at `now`.

        Ends and sums are those of `advance` for one step after another, to the last bit.
        """
        period, costs = self._period(steps)
        times = np.empty(np.size(steps.context) + 1)
        times[0], times[1:] = now, period * self._scale
        times = np.add.accumulate(times)
        count = int(times[:-1].searchsorted(until_s))
        flops, traffic = self._work(steps)
        added = [*costs.values(), flops, traffic]
        sums = np.empty((len(added), count + 1))
        sums[:, 0] = [*(self.seconds.get(cause, 0.0) for cause in costs), self.flops, self.bytes]
        for row, each in enumerate(added):
            sums[row, 1:] = each[:count] if isinstance(each, np.ndarray) else each
        *seconds, self.flops, self.bytes = np.add.accumulate(sums, axis=1)[:, -1].tolist()
        self.seconds.update(zip(costs, seconds, strict=True))
        return times[1 : count + 1]

    def _work(self, step: Step) -> tuple[Amount, Amount]:
        """Return the FLOP and the bytes of a step."""
        tokens, context = step.decode + step.prefill, step.context
        return self.work.flops(tokens, step.sampled, step.pairs + context), self.work.bytes(1, context, tokens)

    def _period(self, step: Step) -> tuple[Amount, dict[str, Amount]]:
        """Return the seconds of a step from its start to the start of the next one, in all and by cause."""
        config = self.config
        batches = 1 if self._stages == 1 else max(1, min(self._stages, step.sequences))
        card, launches, costs = self._kernels(step, batches)
        if self._draft is not None:
            drafting, preparing = self._drafts(self._draft, step)
            costs[DRAFTS] = drafting
            card, launches = card + drafting, launches + preparing
        host = self._host_step * batches + self._host_sequence * step.sequences + self._host_draft * step.drafting
        host += self._host_admission * step.admitted
        if config.async_scheduling or batches > 1:
            period = larger(card, host + launches)
            waiting = smaller(period - card, launches)
        else:
            period = host + larger(card, launches)
            waiting = larger(launches - card, 0.0)
        costs["launches"] = waiting
        costs["host"] = period - card - waiting
        return period, costs

    def _kernels(self, step: Step, batches: int) -> tuple[Amount, float, dict[str, Amount]]:
        """Return the seconds of a step's kernels on the card, of their launches by the host, and the first by cause."""
        tokens = -(-(step.decode + step.prefill) // batches)
        launch_mode = self.config.graphs.launch(tokens, step.decodes_only)
        if launch_mode in (LaunchMode.FULL, LaunchMode.PIECEWISE):
            tokens = self.config.graphs.padded(tokens)
        card, costs = self._card(step, tokens, batches, launch_mode is not LaunchMode.EAGER)
        return card, self._launches[launch_mode] * batches, costs

    def _drafts(self, draft: StepTime, step: Step) -> tuple[Amount, float]:
        """Return the seconds of the passes that make the next drafts, on the card and of the host.

        The first pass has all tokens of the step, and each further one a token of each sequence that sampled.
        """
        draft.sharing = self.sharing
        count = step.sampled - step.decode + step.drafting
        card, launches, _ = draft._kernels(step._replace(sampled=count), 1)
        if count and self._passes > 1:
            # a batch of one token for each sequence, whose contexts are those of the step's decodes
            each, launch, _ = draft._kernels(Step(count, 0, count, count, step.context, 0.0), 1)
            card, launches = card + (self._passes - 1) * each, launches + (self._passes - 1) * launch
        return card, launches + self._passes * self._host_pass

    def _card(self, step: Step, tokens: int, batches: int, fused: bool) -> tuple[Amount, dict[str, Amount]]:
        """Return the seconds of a step on the card, in all and by cause.

        Args:
            step: the step.
            tokens: of each of its batches, as many as are computed.
            batches: that are in flight at once.
            fused: whether kernels are fused.
        """
        stages = self._stages
        head = self._head_token * (step.sampled / batches)
        products = self._linear(tokens) + (self._routed(step, tokens) if self._experts else 0.0)
        weights = stages * products + batches * math.sqrt(self._head_stream * self._head_stream + head * head)
        attention = self._attention.seconds(step) * (stages / batches)
        kernels = stages * (self._kernel_count[fused] * self._kernel + self._elementwise_token[fused] * tokens)
        sampling = self._sample * step.sampled
        card = weights + attention + kernels + sampling
        costs = {"weights": weights, "attention": attention, "kernels": kernels, "sampling": sampling}
        if self._communication is not None:
            exchange = stages * self._communication.of_layers(tokens) + self._communication.of_stages(tokens, stages)
            exchange += batches * self._communication.of_logits(step.sampled / batches)
            exchange += stages * self._communication.of_experts(tokens)
            costs[COMMUNICATION] = exchange
            card = card + exchange
        if self.sharing > 1:
            costs[OTHER_SERVERS] = card * (self.sharing - 1)
            card = card * self.sharing
        return card, costs

    def _linear(self, tokens: int) -> float:
        """Return the seconds of the layers' matrix products in a step of `tokens` tokens."""
        stream, arithmetic = self._linear_stream, self._linear_token
        if self.weights.kernels == "gemm" and tokens >= _UNPACK_FROM_TOKENS:
            stream, arithmetic = self._unpacked_stream, self._unpacked_token
        elif self._tile > 1:
            tokens = -(-tokens // self._tile) * self._tile
        return math.sqrt(stream * stream + (arithmetic * tokens) * (arithmetic * tokens))

    def _busiest(self, part: Experts, tokens: float) -> float:
        """Return the load of the GPU with the most tokens over the mean; `part` are the experts of one GPU."""
        gpus = self.config.parallel.tensor * self.config.parallel.data
        if not self.config.parallel.whole_experts or not tokens:
            return 1.0
        variance = (1 - 1 / gpus) * (self._skew**2 / part.count + 1 / (tokens * part.chosen))
        return min(float(gpus), 1.0 + self._largest * math.sqrt(variance))

    def _routed(self, step: Step, tokens: int) -> float:
        """Return the seconds of the experts' products in a batch of `tokens` tokens of each copy of the model."""
        total, count = self._unpack_experts, tokens * self._copies
        choices = step.prefill + (step.decode > 0) if self.config.same_experts else count
        for even, stream, arithmetic in self._experts:
            mlp = replace(even, chosen=min(even.count, even.chosen * self._busiest(even, choices)))
            touched = mlp.touched(choices)
            rows = math.ceil(count * mlp.chosen / touched / _EXPERT_TILE) * _EXPERT_TILE
            total += touched * math.hypot(stream, arithmetic * rows)
        return total


_FIRST_BLOM, _LAST_BLOM = 0.375, 0.25


def largest_of(count: int) -> float:
    """Return the mean of the largest of so many standard normal numbers, by Blom's approximation."""
    return NormalDist().inv_cdf((count - _FIRST_BLOM) / (count + _LAST_BLOM))


def _expert_layers(model: ModelShape) -> int:
    return sum(group.count for group in model.groups if isinstance(group.mlp, Experts))


def _whole_layers(model: ModelShape) -> float:
    """Return the number of layers with a mixer and an MLP; one that has only one of them counts half."""
    return sum(group.count * ((group.mixer is not None) + (group.mlp is not None)) / 2 for group in model.groups)
