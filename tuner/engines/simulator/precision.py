"""Predict which number formats and attention kernels vLLM selects for a configuration, or its error message.

A configuration chooses the 16-bit format of weights and arithmetic, the quantization of the weights, and the format of
the KV cache. The KV cache's format decides which attention backends can serve it.
"""

from __future__ import annotations

from typing import NamedTuple

from search_spaces import HardwareProfile, ModelShape
from search_spaces.catalogue.layers import LatentAttention

_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
"""Attention backends in vLLM's order of preference."""
_LATENT_BACKENDS = {
    "FLASH_ATTN_MLA": ((90, 100), 16, False, "FLASH_ATTN_3"),
    "FLASHMLA": ((90, 100), 64, True, "FLASH_ATTN_3"),
    "FLASHINFER_MLA": ((100, 110), 32, True, "FLASHINFER"),
    "CUTLASS_MLA": ((100, 110), 128, True, "FLASHINFER"),
    "TRITON_MLA": ((0, 1000), 16, True, "TRITON_ATTN"),
}
"""Backends of latent attention in vLLM's order: compute capabilities times 10 (from, below), the tokens of which a
block is a multiple, whether they read an FP8 cache, and the backend whose shares of bandwidth they are assumed to
reach. The sources are `get_supported_kernel_block_sizes`, `supports_compute_capability` and `supported_kv_cache_dtypes`
in `v1/attention/backends/mla` of vLLM 0.32."""
_SPARSE_BACKEND = "FLASHMLA_SPARSE"
"""The backend of sparse latent attention on Hopper and on compute capability 10."""
_TRITON_MLA_READS_FP8 = (0, 25)
_KV_ELEMENT_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_KV_ELEMENT_BYTES_FROM_0_25 = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0, "int4_per_token_head": 0.5}
"""Bytes of one number in the KV cache by the value of `--kv-cache-dtype`; the second part exists from vLLM 0.25 on."""
_METHODS = {
    "fp8": (75, 8),
    "fp8_per_tensor": (75, 8),
    "fp8_per_block": (75, 8),
    "fp8_per_channel": (75, 8),
    "bitsandbytes": (70, 4),
    "awq": (75, 4),
    "awq_marlin": (75, 4),
    "gptq": (60, 4),
    "gptq_marlin": (75, 4),
    "compressed-tensors": (70, 4),
    "mxfp4": (80, 4),
}
"""Quantization method to its least compute capability, times 10 (75 is 7.5), and the bits of a weight."""
EXPERTS_ONLY = ("mxfp4",)
"""Methods of checkpoints whose experts alone are quantized."""
_METHODS_FROM_0_25 = ("fp8_per_tensor", "fp8_per_block", "fp8_per_channel")
"""Methods that vLLM has from 0.25 on."""
_METHODS_UNTIL_0_28 = ("bitsandbytes",)
"""Methods that vLLM has before 0.28."""
_FP8_CHECKPOINTS = ("fp8", "modelopt", "compressed-tensors", "fbgemm_fp8", "quark")
"""Methods of checkpoints whose weights and activations are multiplied as 8-bit floats, by the kernels of `fp8`."""
NVFP4 = "nvfp4"
"""The method of checkpoints with 4-bit floats and scales for 16 of them, whatever tool wrote them."""
_NVFP4_CHECKPOINTS = ("modelopt", "modelopt_fp4", "compressed-tensors")
_QUANTIZES_ON_LOAD = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "bitsandbytes")
"""Methods that quantize a 16-bit checkpoint while it is loaded; the others need a quantized checkpoint."""


class Site(NamedTuple):
    """Where a server runs.

    Attributes:
        card: the GPU.
        version: vLLM's, such as (0, 25).
        packages: the optional Python packages beside vLLM, such as `flashinfer` and `deep_gemm`.
    """

    card: HardwareProfile
    version: tuple[int, ...]
    packages: frozenset[str] = frozenset()


class ConfigRefused(ValueError):
    """A configuration that vLLM refuses before it uses the GPU; the message is vLLM's."""


class NotSimulated(ConfigRefused):
    """A configuration that the simulator cannot predict, although vLLM may serve it."""


def require_simulated(model: ModelShape) -> None:
    """Refuse a model that the simulator's equations do not cover; the message has the key of its config.json.

    Raises:
        NotSimulated: for a model with `ModelShape.unread`.
    """
    if model.unread is not None:
        raise NotSimulated(f"{model.unread}; measure it with the engine vllm")


def find_dtype(given: str | None, model: ModelShape, card: HardwareProfile) -> str:
    """Return the 16-bit format of weights and arithmetic, `float16` or `bfloat16`, for the value of `--dtype`."""
    dtype = {"half": "float16", None: "auto"}.get(given, given)
    if dtype not in ("auto", "float16", "bfloat16"):
        raise NotSimulated(f"--dtype {given}: float16 and bfloat16 are simulated; measure others with the engine vllm")
    has_bfloat16 = "bfloat16" in card.tflops
    if dtype == "auto":
        # a checkpoint in float32, or whose config.json does not say, gets the first format of the card
        is_half = model.dtype.removeprefix("torch.") in ("float16", "half")
        dtype = "bfloat16" if has_bfloat16 and not is_half else "float16"
    if dtype == "bfloat16" and not has_bfloat16:
        capability = ".".join(map(str, card.compute_capability or ()))
        raise ConfigRefused(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
            f"{card.name} GPU has compute capability {capability}. You can use float16 instead by explicitly setting "
            "the `dtype` flag in CLI, for example: --dtype=half."
        )
    return str(dtype)


def _own_kernels(model: ModelShape) -> tuple[str, int] | None:
    """Return the quantization and the bits of a checkpoint whose method does not name them: FP8 and NVFP4."""
    if (
        model.quantization in _FP8_CHECKPOINTS
        and (model.weight_bits, model.weight_type) == (8, "float")
        and (model.activation_bits or 8) == 8
    ):
        return ("fp8_per_block" if model.weight_blocks else "fp8"), 8
    return (NVFP4, 4) if model.quantization in _NVFP4_CHECKPOINTS and _is_nvfp4(model) else None


def find_quantization(given: str | None, model: ModelShape, site: Site, dtype: str) -> tuple[str | None, int]:
    """Return the quantization method and the bits of a weight; None and 16 without quantization.

    Without `--quantization`, an AWQ or GPTQ checkpoint gets Marlin's kernels, and an FP8 checkpoint those of `fp8`.

    Raises:
        ConfigRefused: if vLLM refuses the method for this checkpoint, GPU or version.
        NotSimulated: for a method, or a checkpoint's activations, that the simulator cannot predict.
    """
    checkpoint, capability = model.quantization, _capability(site.card)
    method = given or ({"awq": "awq_marlin", "gptq": "gptq_marlin"}.get(checkpoint, checkpoint) if checkpoint else None)
    if method is None:
        return None, 16
    own = _own_kernels(model) if method == checkpoint else None
    if own is not None:
        return own
    if method not in _METHODS:
        whose = f"--quantization {method}" if given else f"a checkpoint of {model.stored_bits} bits by {method}"
        raise NotSimulated(f"{whose}: not simulated; measure that with the engine vllm")
    is_older = site.version < (0, 25)
    absent = _METHODS_FROM_0_25 if is_older else _METHODS_UNTIL_0_28 if site.version >= (0, 28) else ()
    if method in absent:
        known = sorted(_METHODS.keys() - set(absent))
        raise ConfigRefused(f"Unknown quantization method: {method}. Must be one of {known}.")
    if checkpoint is not None and method.split("_")[0] != checkpoint.split("_")[0]:
        raise ConfigRefused(
            f"Quantization method specified in the model config ({checkpoint}) does not match the quantization method "
            f"specified in the `quantization` argument ({method})."
        )
    if checkpoint is None and method not in _QUANTIZES_ON_LOAD:
        raise ConfigRefused(f"Cannot find the config file for {method}")
    least_capability, bits = _METHODS[method]
    if capability < least_capability:
        raise ConfigRefused(
            f"The quantization method {method} is not supported for the current GPU. Minimum capability: "
            f"{least_capability}. Current capability: {capability}."
        )
    if checkpoint is not None and (model.activation_bits or 16) < 16 and method == "compressed-tensors":
        raise NotSimulated(
            f"a checkpoint with activations of {model.activation_bits} bits is not simulated; measure that with the "
            "engine vllm"
        )
    if method in ("awq", "gptq") and is_older and dtype != "float16":
        raise ConfigRefused(
            f"torch.{dtype} is not supported for quantization method {method}. Supported dtypes: [torch.float16]"
        )
    return method, bits if checkpoint is None or model.weight_bits is None else model.weight_bits


def _is_nvfp4(model: ModelShape) -> bool:
    return model.weight_bits == 4 and model.weight_type in ("float", None) and (model.activation_bits or 4) == 4


def chooses_same_experts(load_format: str | None, quantization: str | None, model: ModelShape) -> bool:
    """Return whether all sequences that decode in a step choose the same experts, as random weights make them.

    With `--load-format dummy`, decodes of a mixture of experts are as fast as if a step read the experts of one token:
    seen with vLLM 0.25.1 on an H200 in all rows with weights that are quantized to FP8 while they are loaded, and in
    those of a model with latent attention, and in no row with 16-bit weights and plain attention
    (docs/reports/2026-11-28-h200-experts.md). Such a measurement flatters FP8: real weights spread their tokens.
    """
    if load_format != "dummy" or not model.is_mixture_of_experts:
        return False
    quantizes = model.quantization is None and quantization is not None
    return quantizes or model.has_latent_attention


def has_fast_blocks(site: Site, dtype: str) -> bool:
    """Return whether vLLM multiplies FP8 matrices with a scale for each block as fast as those with a single scale.

    vLLM takes DeepGEMM's kernels on Hopper and later GPUs, and CUTLASS's without that package, and for a result in
    float16, which DeepGEMM cannot write (`model_executor/kernels/linear` of 0.25 and 0.32). On Hopper, every recorded
    trial with CUTLASS's in bfloat16 is slow, and the one in float16 is not. On a B200, a whole run with CUTLASS's was
    1.5 % slower than with a single scale (vLLM pull request 38138). An H100 with up to 128 tokens reaches 0.78 to 1.03
    of the arithmetic with a single scale (pull request 49363); for more tokens no ratio is published, hence no factor.
    """
    capability = _capability(site.card)
    return capability >= 100 or (capability >= 90 and (dtype == "float16" or "deep_gemm" in site.packages))


def find_kv_dtype(given: str | None, model: ModelShape, card: HardwareProfile) -> str:
    """Return the format of the KV cache for the value of `--kv-cache-dtype`; `auto` and None take the checkpoint's."""
    if given not in (None, "auto") or model.cache_bits is None:
        return given or "auto"
    if model.cache_bits != 8 or "fp8" not in card.tflops:
        raise NotSimulated(
            f"a checkpoint that asks for a KV cache of {model.cache_bits} bits is not simulated on {card.name}; give "
            "--kv-cache-dtype, or measure it with the engine vllm"
        )
    return "fp8"


def find_kv_element_bytes(given: str, site: Site) -> float:
    """Return the bytes of one number in the KV cache for the value of `--kv-cache-dtype`."""
    card, version, _ = site
    element_bytes = {**_KV_ELEMENT_BYTES, **(_KV_ELEMENT_BYTES_FROM_0_25 if version >= (0, 25) else {})}
    if given not in {**_KV_ELEMENT_BYTES, **_KV_ELEMENT_BYTES_FROM_0_25}:
        raise NotSimulated(f"--kv-cache-dtype {given}: not simulated; measure that with the engine vllm")
    if given not in element_bytes:
        raise ConfigRefused(
            f"argument --kv-cache-dtype: invalid choice: '{given}' (choose from {', '.join(element_bytes)})"
        )
    if given.startswith("fp8") and "fp8" not in card.tflops and version < (0, 25) and _capability(card) < 80:
        raise NotSimulated(
            f"--kv-cache-dtype {given} on {card.name}: not simulated, because no run of it is recorded; vLLM's "
            "selector accepts it with FlashInfer; measure that with the engine vllm"
        )
    if given.startswith("fp8") and "fp8" not in card.tflops:
        capability = ".".join(map(str, card.compute_capability or ()))
        raise ConfigRefused(
            f"FP8 KV cache is not supported by the Triton attention backend on {card.name} (compute capability "
            f"{capability}); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype float16."
        )
    return element_bytes[given]


def find_backend(given: str | None, site: Site, kv_dtype: str) -> str:
    """Return the attention backend: the value of `--attention-backend`, else vLLM's first that can serve `kv_dtype`."""
    usable = [name for name in _BACKENDS if _can_serve(name, site, kv_dtype)]
    if given is None or (given.lower() == "auto" and site.version >= (0, 25)):
        return usable[0]
    name = given.upper()
    if name in (*_LATENT_BACKENDS, _SPARSE_BACKEND):
        raise _refused_backend(name, "non-MLA not supported")
    if name == "AUTO":
        raise ConfigRefused(f"Unknown attention backend: '{given}'. Valid options are: {', '.join(_BACKENDS)}")
    if name not in _BACKENDS:
        raise NotSimulated(f"--attention-backend {given}: not simulated; these are: {', '.join(_BACKENDS)}")
    if name not in usable:
        raise _refused_backend(name, _reason(name, site))
    return name


def find_latent_backend(given: str | None, model: ModelShape, site: Site, kv_dtype: str, block_size: int | None) -> str:
    """Return the backend of latent attention: the value of `--attention-backend`, else vLLM's first that can serve.

    The model's latent attention may be sparse. Before 0.25, vLLM raises `--block-size` to what the backend needs.
    """
    given_size = block_size if site.version >= (0, 25) else None
    if kv_dtype in _KV_ELEMENT_BYTES_FROM_0_25:
        raise ConfigRefused(f"No valid attention backend found for cuda with kv_cache_dtype={kv_dtype}, use_mla=True.")
    reasons = {
        name: _latent_reason(name, model, site, kv_dtype, given_size) for name in (*_LATENT_BACKENDS, _SPARSE_BACKEND)
    }
    if given is None or given.lower() == "auto":
        name = next((each for each, reason in reasons.items() if reason is None), "")
        if not name:
            raise ConfigRefused(f"No valid attention backend found for cuda on {site.card.name} with use_mla=True.")
        return name
    name = given.upper()
    if name not in (*_BACKENDS, *reasons):
        raise NotSimulated(f"--attention-backend {given}: not simulated; these are: {', '.join(_LATENT_BACKENDS)}")
    reason = reasons.get(name, "MLA not supported")
    if reason is not None:
        raise _refused_backend(name, reason)
    return name


def _refused_backend(name: str, reason: str) -> ConfigRefused:
    rule = f"Selected backend AttentionBackendEnum.{name} is not valid for this configuration"
    return ConfigRefused(f"{rule}. Reason: ['{reason}']")


def _latent_reason(name: str, model: ModelShape, site: Site, kv_dtype: str, block_size: int | None) -> str | None:
    """Return vLLM's reason why a backend of latent attention cannot serve a configuration; None if it can."""
    is_sparse = any(isinstance(group.mixer, LatentAttention) and group.mixer.indexed for group in model.groups)
    capability = _capability(site.card)
    if name == _SPARSE_BACKEND:
        if not is_sparse:
            return "non-sparse not supported"
        return None if 90 <= capability < 110 else "compute capability not supported"
    (least, below), multiple, reads_fp8, _ = _LATENT_BACKENDS[name]
    if is_sparse:
        return "sparse not supported"
    if not least <= capability < below:
        return "compute capability not supported"
    reads_fp8 = reads_fp8 and (name != "TRITON_MLA" or site.version >= _TRITON_MLA_READS_FP8)
    if _KV_ELEMENT_BYTES[kv_dtype] < 2.0 and not reads_fp8:
        return "kv_cache_dtype not supported"
    return "block_size not supported" if block_size is not None and block_size % multiple else None


def block_multiple(backend: str) -> int:
    """Return the tokens of which a block of the KV cache is a multiple."""
    if backend == _SPARSE_BACKEND:
        return 64
    return _LATENT_BACKENDS[backend][1] if backend in _LATENT_BACKENDS else 16


def _can_serve(backend: str, site: Site, kv_dtype: str) -> bool:
    """Return whether an attention backend runs on the GPU and reads a KV cache of the format."""
    if kv_dtype in _KV_ELEMENT_BYTES_FROM_0_25:
        return backend == "TRITON_ATTN"
    capability, is_quantized = _capability(site.card), _KV_ELEMENT_BYTES[kv_dtype] < 2.0
    if backend == "FLASH_ATTN":
        return is_hopper(site.card) or (capability >= 80 and not is_quantized)
    if backend == "FLASHINFER":
        return "flashinfer" in site.packages and capability >= (75 if site.version < (0, 25) else 80)
    return backend == "TRITON_ATTN" or not is_quantized


def _reason(backend: str, site: Site) -> str:
    """Return vLLM's reason why a backend cannot serve a configuration."""
    if backend == "FLASHINFER" and "flashinfer" not in site.packages:
        return "FlashInfer is not installed"
    serves_16_bits = _can_serve(backend, site, "auto")
    return "kv_cache_dtype not supported" if serves_16_bits else "compute capability not supported"


def attention_kernels(backend: str, card: HardwareProfile) -> str:
    """Return the name of the kernels whose shares an attention backend has.

    `FLASH_ATTN` is FlashAttention 3 on Hopper and 2 elsewhere. No kernel of latent attention was measured alone.
    """
    if backend in _LATENT_BACKENDS:
        return _LATENT_BACKENDS[backend][3]
    if backend not in ("FLASH_ATTN", _SPARSE_BACKEND):
        return backend
    return "FLASH_ATTN_3" if is_hopper(card) else "FLASH_ATTN_2"


def has_machete(card: HardwareProfile, quantization: str | None, version: tuple[int, ...]) -> bool:
    """Return whether Machete's kernels replace Marlin's, which vLLM prefers on Hopper.

    AWQ weights have them since pull request 36505, GPTQ and compressed-tensors in every version here.
    """
    prepared = ("gptq_marlin", "compressed-tensors", *(("awq_marlin",) if version >= (0, 19) else ()))
    return is_hopper(card) and quantization in prepared


def is_hopper(card: HardwareProfile) -> bool:
    """Return whether a card has Hopper's matrix instructions and FlashAttention 3."""
    return 90 <= _capability(card) < 100


def _capability(card: HardwareProfile) -> int:
    """Return the compute capability times 10: 75 for 7.5; 0 if it is unknown."""
    major, minor = card.compute_capability or (0, 0)
    return 10 * major + minor
