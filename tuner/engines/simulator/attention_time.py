"""The time of attention and of recurrent layers in a step.

Attention reads the KV cache of the decodes and compares the pairs of tokens of the prefills. With a sliding window w, a
decode reads min(context, w) tokens, and so do pairs; both from the means over the step. Of chunks of w tokens, longer
contexts leave w / 2 on average.

Latent attention (MLA) reads one vector of a token, and compares all heads with it (2 n (2 c + r) FLOP), so that its
arithmetic counts too. Its prompts have keys and values of each head, and FlashAttention's kernels, whatever the
backend.

In a step with prompts or drafts, FlashAttention 2 compares a whole tile of rows for each decode, and takes the longer
of reading and comparing. Each tile has one multiprocessor, so that few drafted sequences with long contexts leave most
of the card idle (`mha_varlen_fwd` splits contexts for single tokens only).

A recurrent layer reads and writes the state of each sequence, and its scan works on each token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.catalogue.layers import Attention, LatentAttention, Recurrent
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.precision import attention_kernels
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.serve_config import ServeConfig

Amount = float | NDArray[np.float64]
"""A number of one step, or one for each of several steps."""

_GIGA = 1e9
_TERA = 1e12


class Reach(NamedTuple):
    """The tokens before it that a token sees: all, those of a window, or those of its chunk, half of one on average."""

    window: int | None = None
    chunked: bool = False

    def read(self, context: Amount, decoding: float) -> Amount:
        """Return the tokens that `decoding` sequences read of a context of so many tokens in all."""
        if self.window is None:
            return context
        most = decoding * self.window
        if isinstance(context, np.ndarray):
            return np.where(context <= most, context, most / (2 if self.chunked else 1))
        return context if context <= most else most / (2 if self.chunked else 1)

    def compared(self, pairs: float, tokens: float) -> float:
        """Return the pairs that so many tokens of prompts compare, of those with all tokens before them."""
        if self.window is None:
            return pairs
        return min(pairs, tokens * self.window / (2 if self.chunked else 1))


def larger(first: Amount, second: Amount) -> Amount:
    """Return the larger one of two amounts; the second is an array only if the first is."""
    return np.maximum(first, second) if isinstance(first, np.ndarray) else max(first, float(second))


def smaller(first: Amount, second: float) -> Amount:
    """Return the smaller one of two amounts."""
    return np.minimum(first, second) if isinstance(first, np.ndarray) else min(first, second)


class AttentionTime:
    """The seconds of the attention of one GPU's layers, for what a step's decodes read and its prefills compare.

    Attributes:
        reading: by reach, seconds for a token of KV cache that decodes read in these layers.
        mixed: the same in a step with prompts, where FlashAttention 2 does not put the heads of a group into one tile.
        alone: by reach, seconds for a token of KV cache that a drafted sequence reads, if each of its heads has one
            multiprocessor: FlashAttention 2 divides a long context among several for single tokens only.
        comparing: by reach, seconds for a pair of tokens of prefills.
        state: seconds for a sequence whose state is read and written.
        scan: seconds for a token of prefills in recurrent layers.
    """

    def __init__(self, config: ServeConfig, parameters: Parameters) -> None:
        card = config.card
        bandwidth = (card.bandwidth_gbs or 1.0) * _GIGA
        kernels = attention_kernels(config.backend, card)
        share: float = getattr(parameters, f"{kernels.lower()}_bandwidth_share")
        is_fp8 = kernels == "FLASH_ATTN_3" and config.kv_element_bytes < 2
        narrow = parameters.flash_attn_3_fp8_factor if is_fp8 else 1.0
        arithmetic = card.tflops["float16"] * _TERA
        flash = arithmetic * parameters.attention_arithmetic_share
        factor = parameters.triton_arithmetic_factor if kernels == "TRITON_ATTN" else 1.0
        comparing = flash * factor
        slower = parameters.head_scale_factor if config.kv_head_scales else 1.0
        # A cache with a scale for each token and head is converted number by number: its small numbers save nothing.
        scaling = 2.0 / config.kv_element_bytes * slower if config.kv_head_scales else 1.0
        self.reading: dict[Reach, float] = {}
        self.mixed: dict[Reach, float] = {}
        self.comparing: dict[Reach, float] = {}
        self._latent: list[tuple[int | None, float, float]] = []
        self.state = self.scan = 0.0
        self.alone: dict[Reach, float] = {}
        tile = parameters.flash_attn_2_tile_tokens if kernels == "FLASH_ATTN_2" else 0.0
        for group in config.shard.groups:
            mixer = group.mixer
            if isinstance(mixer, Recurrent):
                self.state += group.count * 2.0 * mixer.sequence_bytes / (bandwidth * parameters.bandwidth_share)
                self.scan += group.count * mixer.token_flops / (arithmetic * parameters.scan_arithmetic_share)
            elif isinstance(mixer, LatentAttention):
                read = (mixer.cached * config.kv_element_bytes + mixer.index_bytes) / (bandwidth * share)
                compared = mixer.pair_flops / (arithmetic * parameters.latent_arithmetic_share * factor)
                self._latent.append((mixer.top, group.count * read, group.count * compared))
                self._add(Reach(), 0.0, group.count * mixer.prefill_pair_flops / flash)
            elif isinstance(mixer, Attention):
                read = mixer.kv_heads * (mixer.head_dim + mixer.value_numbers) * config.kv_element_bytes
                read *= scaling / (bandwidth * share * narrow)
                compared = group.count * mixer.pair_flops / comparing * slower
                reach = Reach(mixer.window, mixer.chunked)
                self._add(reach, group.count * read, compared, tile)
                alone = tile * compared * (card.multiprocessors or 0) / mixer.heads
                self.alone[reach] = self.alone.get(reach, 0.0) + alone

    def _add(self, reach: Reach, reading: float, comparing: float, tile: float = 0.0) -> None:
        self.mixed[reach] = self.mixed.get(reach, 0.0) + max(reading, tile * comparing)
        self.reading[reach] = self.reading.get(reach, 0.0) + reading
        self.comparing[reach] = self.comparing.get(reach, 0.0) + comparing

    def seconds(self, step: Step) -> Amount:
        """Return the seconds of a step, or of each of several."""
        total: Amount = 0.0
        decoding = step.drafting or step.decode
        for reach, reading in (self.reading if step.decodes_only and not step.drafting else self.mixed).items():
            context = reach.read(step.context, decoding)
            seconds = reading * context
            if step.drafting and step.decodes_only:
                seconds = larger(seconds, self.alone.get(reach, 0.0) * context / decoding)
            total = total + (seconds + self.comparing[reach] * reach.compared(step.pairs, step.prefill))
        checked = step.decode / decoding if decoding else 1.0
        for top, read, compared in self._latent:
            context = step.context if top is None else smaller(step.context, decoding * top)
            total = total + context * math.hypot(read, compared * checked)
        states = step.sequences + (step.decode - decoding) / 2
        return total + self.state * states + self.scan * step.prefill
