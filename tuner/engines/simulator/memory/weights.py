"""The weights of a dense decoder: bytes in memory, bytes per step, and the arithmetic of their matrix products.

Parameters of the linear layers, per layer, with hidden size h, head size d, n query heads, k key-value heads and
intermediate size f (the q, k, v and o projections and the gated MLP's three matrices):

    h d (2 n + 2 k) + 3 h f
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import HardwareProfile, ModelShape

_SCALES_FACTOR = 1.04
"""Bytes of a quantized matrix with its scales (16 bits for each group of 128 four-bit weights), over those without."""
_GEMM_METHODS = ("awq", "gptq", "bitsandbytes")


@dataclass(frozen=True)
class Weights:
    """A model's matrices on a card.

    Attributes:
        linear: parameters of the layers' matrices.
        linear_bytes: bytes of the layers' matrices, which each step reads once.
        head: parameters of the matrix from the hidden state to the vocabulary.
        head_bytes: bytes of that matrix, which stays at 16 bits.
        resident_bytes: bytes of all weights in memory.
        arithmetic: number format of the products, a key of the card's `tflops`.
        kernels: `plain`; `native` (8 bits on both sides); `blocks` (the same with scales by blocks, slowly);
            `marlin` (the kernel unpacks the weights); `gemm` (weights are unpacked before a plain product).
    """

    linear: int
    linear_bytes: float
    head: int
    head_bytes: float
    resident_bytes: float
    arithmetic: str
    kernels: str


def find_weights(
    model: ModelShape,
    card: HardwareProfile,
    dtype: str,
    quantization: str | None,
    bits: int,
    marlin_input: str | None,
    fast_blocks: bool = True,
) -> Weights:
    """Return the weights of a model on a card.

    Args:
        model: the shape of the model.
        card: the GPU.
        dtype: 16-bit format of weights and arithmetic.
        quantization: quantization method; None for 16-bit weights.
        bits: stored bits of a weight in a linear layer.
        marlin_input: 8-bit format of activations in Marlin's kernels (`int8`, `fp8`); None for 16 bits.
        fast_blocks: whether FP8 matrices with scales by blocks are multiplied as fast as those with one scale.
    """
    linear = linear_parameters(model)
    head = model.vocab * model.hidden
    linear_bytes = linear * bits / 8 * (_SCALES_FACTOR if bits < 16 and not _has_few_scales(model) else 1.0)
    kernels, arithmetic = _kernels(card, dtype, quantization, marlin_input)
    if kernels == "native" and quantization == "fp8_per_block" and not fast_blocks:
        kernels = "blocks"
    embeddings_and_norms = 2 * (head * (1 if model.tied else 2) + model.hidden * (2 * model.layers + 1))
    return Weights(linear, linear_bytes, head, 2.0 * head, linear_bytes + embeddings_and_norms, arithmetic, kernels)


def _has_few_scales(model: ModelShape) -> bool:
    """Return whether a checkpoint has FP8 weights with one scale for a matrix or a row."""
    return (model.weight_bits, model.weight_type) == (8, "float") and not model.weight_blocks


def linear_parameters(model: ModelShape) -> int:
    """Return the parameters of the layers' matrices; the module's docstring has the equation."""
    attention = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.intermediate)


def activation_elements(model: ModelShape) -> int:
    """Return the numbers that the matrix products of one token read and write besides weights, over all layers."""
    queries = model.heads * model.head_dim
    attention = model.hidden + queries + 2 * model.kv_heads * model.head_dim + queries + model.hidden
    mlp = model.hidden + 2 * model.intermediate + model.intermediate + model.hidden
    return model.layers * (attention + mlp)


def _kernels(card: HardwareProfile, dtype: str, quantization: str | None, marlin_input: str | None) -> tuple[str, str]:
    """Return the kernels of the products and the number format that they compute in."""
    if quantization is None:
        return "plain", dtype
    if quantization.startswith("fp8"):
        return ("native", "fp8") if "fp8" in card.tflops else ("marlin", "float16")
    if quantization in _GEMM_METHODS and not (marlin_input and quantization != "bitsandbytes"):
        return "gemm", "float16"
    if marlin_input and marlin_input in card.tflops:
        return "marlin", marlin_input
    return "marlin", dtype
