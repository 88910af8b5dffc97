"""A model's weights on a card: the bytes that a step streams, the arithmetic that a token takes, in which format."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import HardwareProfile, ModelShape

_SCALES = 1.04
"""Bytes of a quantized matrix with its scales (16 bits for each group of 128 four-bit weights), by those without."""
_GEMM_KERNELS = ("awq", "gptq", "bitsandbytes")


@dataclass(frozen=True)
class Weights:
    """A model's matrices. Counts are parameters, sizes bytes.

    `linear` are the layers' matrices, `head` the one from the hidden state to the vocabulary, which stays at 16 bits.
    `resident_bytes` is all that lies in memory. `arithmetic` is the format that a step multiplies in, a key of the
    card's `tflops`.
    """

    linear: int
    linear_bytes: float
    head: int
    head_bytes: float
    resident_bytes: float
    arithmetic: str
    kernels: str
    """`plain`; `native` (8 bits on both sides); `marlin` (unpacked within the kernel); `gemm` (unpacked before it)."""


def find_weights(
    model: ModelShape, card: HardwareProfile, dtype: str, quantization: str | None, bits: int, eight_bit: str | None
) -> Weights:
    """Return a model's weights; `eight_bit` is the format of activations that Marlin was told (`int8`, `fp8`)."""
    linear = linear_parameters(model)
    head = model.vocab * model.hidden
    size = linear * bits / 8 * (_SCALES if bits < 16 else 1.0)
    kernels, arithmetic = _kernels(card, dtype, quantization, eight_bit)
    rest = 2 * (head * (1 if model.tied else 2) + model.hidden * (2 * model.layers + 1))
    return Weights(linear, size, head, 2.0 * head, size + rest, arithmetic, kernels)


def linear_parameters(model: ModelShape) -> int:
    """Return the parameters of the layers' matrices: q, k, v, o and the gated MLP's three."""
    attention = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.intermediate)


def moved_by_products(model: ModelShape) -> int:
    """Return the numbers that a token's matrix products read and write besides weights, over all layers."""
    queries = model.heads * model.head_dim
    attention = model.hidden + queries + 2 * model.kv_heads * model.head_dim + queries + model.hidden
    mlp = model.hidden + 2 * model.intermediate + model.intermediate + model.hidden
    return model.layers * (attention + mlp)


def _kernels(card: HardwareProfile, dtype: str, quantization: str | None, eight_bit: str | None) -> tuple[str, str]:
    if quantization is None:
        return "plain", dtype
    if quantization.startswith("fp8"):
        return ("native", "fp8") if "fp8" in card.tflops else ("marlin", "float16")
    if quantization in _GEMM_KERNELS and not (eight_bit and quantization != "bitsandbytes"):
        return "gemm", "float16"
    if eight_bit and eight_bit in card.tflops:
        return "marlin", eight_bit
    return "marlin", dtype
