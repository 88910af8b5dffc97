"""How long one step of the engine takes: a roofline for the card, launches and scheduling for the host.

On the card the kernels run one after another: matrices, attention, element-wise work, sampling, and for each kernel a
least time of its own. A matrix product takes √(m² + c²), m for streaming its weights and c for its arithmetic: near the
larger one, and more where both count (Williams et al., "Roofline", 2009, with a rounded corner). The host schedules,
prepares and launches; with asynchronous scheduling it does so while the step before runs.
"""

from __future__ import annotations

import math

from tuner.engines.simulator.config.cuda_graphs import LaunchMode
from tuner.engines.simulator.config.precision import kernels_named
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.weights import Weights, find_weights, moved_by_products
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.step import Step

_US = 1e-6
_TERA = 1e12
_GIGA = 1e9
_UNPACK_FROM = 256
"""Tokens from which 4-bit matrices are unpacked to 16 bits before a plain product (awq.py, gptq.py)."""


class StepTime:
    """Seconds of steps of one server, times `scale`; one that is not `warm` loads kernels at its first prefill.

    `seconds` adds up where the time of every step went, `flops` and `bytes` the arithmetic and the memory traffic that
    its tokens need: matrices and attention, weights once a step and context once a token.
    """

    def __init__(
        self,
        config: ServeConfig,
        parameters: Parameters,
        eight_bit: str | None = None,
        scale: float = 1.0,
        warm: bool = True,
    ) -> None:
        self.config = config
        self._scale = scale
        self.flops = self.bytes = 0.0
        self.weights: Weights = find_weights(
            config.model, config.card, config.dtype, config.quantization, config.weight_bits, eight_bit
        )
        self.seconds = {"weights": 0.0, "attention": 0.0, "kernels": 0.0, "sampling": 0.0, "launches": 0.0, "host": 0.0}
        self._first_use = parameters.triton_first_use_s if config.backend == "TRITON_ATTN" else parameters.first_use_s
        self._used = warm
        self._set_card(config, parameters)
        self._set_host(config, parameters)

    def _set_card(self, config: ServeConfig, known: Parameters) -> None:
        model, card = config.model, config.card
        bandwidth = (card.bandwidth_gbs or 1.0) * _GIGA
        streamed = bandwidth * known.bandwidth_share
        self._model_bytes = self.weights.linear_bytes + self.weights.head_bytes
        self._token_flops = 2.0 * self.weights.linear
        self._linear_stream = self.weights.linear_bytes / streamed
        self._linear_token = 2.0 * self.weights.linear / self._flops(known, self.weights)
        self._unpacked_stream = 2.0 * self.weights.linear * 2.25 / streamed
        plain = card.tflops["float16"] * _TERA * known.arithmetic_share
        self._unpacked_token = 2.0 * self.weights.linear / plain
        self._head_stream = self.weights.head_bytes / streamed
        self._head_token = 2.0 * self.weights.head / plain
        kv_bytes = 2 * model.layers * model.kv_heads * model.head_dim * config.kv_element_bytes
        backend = kernels_named(config.backend, card)
        reading: float = getattr(known, f"{backend.lower()}_bandwidth_share")
        self._context_token = kv_bytes / (bandwidth * reading)
        self._context_bytes = kv_bytes
        self._pair_flops = 4.0 * model.heads * model.head_dim * model.layers
        attending = card.tflops["float16"] * _TERA * known.attention_arithmetic_share
        self._pair = self._pair_flops / attending
        element = 2.0 * model.hidden * model.layers / streamed
        moved = 2.0 * moved_by_products(model) / streamed
        self._element = {True: element * known.fused_passes + moved, False: element * known.eager_passes + moved}
        extra = known.quantize_kernels_per_layer if self.weights.kernels == "native" else 0.0
        self._kernels = {
            True: model.layers * (known.fused_kernels_per_layer + extra),
            False: model.layers * (known.eager_kernels_per_layer + extra),
        }
        self._kernel = known.kernel_us * _US
        passes = known.greedy_passes if config.temperature == 0 else known.sampling_passes
        self._sample = 4.0 * model.vocab * passes / streamed

    def _flops(self, known: Parameters, weights: Weights) -> float:
        share = {
            "plain": known.arithmetic_share,
            "native": known.arithmetic_share * known.native_arithmetic_factor,
            "marlin": known.arithmetic_share * known.marlin_arithmetic_factor,
            "gemm": known.gemm_arithmetic_share,
        }[weights.kernels]
        return self.config.card.tflops[weights.arithmetic] * _TERA * share

    def _set_host(self, config: ServeConfig, known: Parameters) -> None:
        speed = config.card.host_speed or 1.0
        launch = (config.card.launch_us or 0.0) * _US * config.model.layers
        extra = known.quantize_launches_per_layer if self.weights.kernels == "native" else 0.0
        self._schedule = known.step_us * _US / speed
        self._admit = known.admit_us * _US / speed
        self._schedule_sequence = known.step_sequence_us * _US / speed
        self._launch = {
            LaunchMode.FULL: known.full_graph_us * _US / speed,
            LaunchMode.PIECEWISE: known.piece_us * _US / speed * config.model.layers,
            LaunchMode.COMPILED: known.fused_launches_per_layer * launch,
            LaunchMode.EAGER: (known.eager_launches_per_layer + extra) * launch,
        }
        drafts = {"ngram": known.ngram_draft_us, "suffix": known.suffix_draft_us}
        method = config.speculation.method if config.speculation else ""
        self._draft = drafts.get(method, 0.0) * _US / speed

    def take(self, step: Step) -> float:
        """Return the seconds from the start of a step to the start of the next, and add up where they went."""
        config = self.config
        tokens = step.decode + step.prefill
        launch = config.graphs.launch(tokens, step.decodes_only)
        if launch in (LaunchMode.FULL, LaunchMode.PIECEWISE):
            tokens = config.graphs.padded(tokens)
        fused = launch is not LaunchMode.EAGER
        head = self._head_token * step.sampled
        weights = self._linear(tokens) + math.sqrt(self._head_stream * self._head_stream + head * head)
        attention = self._context_token * step.context + self._pair * step.pairs
        kernels = self._kernels[fused] * self._kernel + self._element[fused] * tokens
        sampling = self._sample * step.sampled
        card = weights + attention + kernels + sampling
        launching = self._launch[launch]
        host = self._schedule + self._schedule_sequence * step.sequences + self._draft * step.drafting
        host += self._admit * step.admitted
        if config.async_scheduling:
            period = max(card, host + launching)
            waiting = min(launching, period - card)
        else:
            period = host + max(card, launching)
            waiting = max(0.0, launching - card)
        self.flops += (
            self._token_flops * (step.decode + step.prefill)
            + 2.0 * self.weights.head * step.sampled
            + self._pair_flops * (step.pairs + step.context)
        )
        self.bytes += self._model_bytes + self._context_bytes * step.context
        seconds = self.seconds
        seconds["weights"] += weights
        seconds["attention"] += attention
        seconds["kernels"] += kernels
        seconds["sampling"] += sampling
        seconds["launches"] += waiting
        seconds["host"] += period - card - waiting
        if not self._used and step.prefill:
            self._used = True
            period += self._first_use
        return period * self._scale

    def _linear(self, tokens: int) -> float:
        """Return the seconds of the layers' matrices for a step of so many tokens."""
        stream, arithmetic = self._linear_stream, self._linear_token
        if self.weights.kernels == "gemm" and tokens >= _UNPACK_FROM:
            stream, arithmetic = self._unpacked_stream, self._unpacked_token
        return math.sqrt(stream * stream + (arithmetic * tokens) * (arithmetic * tokens))
