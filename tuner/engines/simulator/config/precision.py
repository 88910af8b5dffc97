"""In which formats weights and cache are kept and which kernels attend to it, with vLLM's refusals in its words."""

from __future__ import annotations

from search_spaces import HardwareProfile, ModelShape

_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
_KV_DTYPES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_KV_DTYPES_025 = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0, "int4_per_token_head": 0.5}
_WEIGHTS = {
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
}
_ON_LOAD = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "bitsandbytes")


class ConfigRefused(ValueError):
    """vLLM would refuse the configuration before it touches the device; the message is in its words."""


def find_dtype(said: str | None, model: ModelShape, card: HardwareProfile) -> str:
    """Return the 16-bit format of weights and arithmetic."""
    wanted = {"half": "float16", None: "auto"}.get(said, said)
    if wanted not in ("auto", "float16", "bfloat16"):
        raise ConfigRefused(f"--dtype {said}: float16 and bfloat16 are simulated; measure others with --engine vllm")
    native = "bfloat16" in card.tflops
    if wanted == "auto":
        wanted = "bfloat16" if native and model.dtype.endswith("bfloat16") else "float16"
    if wanted == "bfloat16" and not native:
        capability = ".".join(map(str, card.compute_capability or ()))
        raise ConfigRefused(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
            f"{card.name} GPU has compute capability {capability}. You can use float16 instead by explicitly setting "
            "the `dtype` flag in CLI, for example: --dtype=half."
        )
    return str(wanted)


def find_quantization(
    said: str | None, model: ModelShape, card: HardwareProfile, version: tuple[int, ...], dtype: str
) -> tuple[str | None, int]:
    """Return the method in force and its bits. A 4-bit checkpoint whose method is left open gets Marlin's kernels."""
    own = model.quantization
    method = said or ({"awq": "awq_marlin", "gptq": "gptq_marlin"}.get(own, own) if own else None)
    if method is None:
        return None, 16
    if method not in _WEIGHTS or (method == "bitsandbytes" and version >= (0, 28)):
        raise ConfigRefused(f"Unknown quantization method: {method}. Must be one of {sorted(_WEIGHTS)}.")
    if own is not None and method.split("_")[0] != own.split("_")[0]:
        raise ConfigRefused(
            f"Quantization method specified in the model config ({own}) does not match the quantization method "
            f"specified in the `quantization` argument ({method})."
        )
    if own is None and method not in _ON_LOAD:
        raise ConfigRefused(f"Cannot find the config file for {method}")
    least, bits = _WEIGHTS[method]
    if _capability(card) < least:
        raise ConfigRefused(
            f"The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. "
            f"Current capability: {_capability(card)}."
        )
    if method in ("awq", "gptq") and version < (0, 25) and dtype != "float16":
        raise ConfigRefused(
            f"torch.{dtype} is not supported for quantization method {method}. Supported dtypes: [torch.float16]"
        )
    return method, bits


def find_kv_element_bytes(said: str, card: HardwareProfile, version: tuple[int, ...]) -> float:
    """Return the bytes of one number in the KV cache."""
    known = {**_KV_DTYPES, **(_KV_DTYPES_025 if version >= (0, 25) else {})}
    if said not in known:
        raise ConfigRefused(f"argument --kv-cache-dtype: invalid choice: '{said}' (choose from {', '.join(known)})")
    if said.startswith("fp8") and "fp8" not in card.tflops and (version >= (0, 25) or _capability(card) >= 80):
        capability = ".".join(map(str, card.compute_capability or ()))
        raise ConfigRefused(
            f"FP8 KV cache is not supported by the Triton attention backend on {card.name} (compute capability "
            f"{capability}); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype float16."
        )
    return known[said]


def find_backend(
    said: str | None, card: HardwareProfile, version: tuple[int, ...], kv_dtype: str, packages: frozenset[str]
) -> str:
    """Return the attention backend: the one that was named, else the first of vLLM's order that can."""
    usable = [name for name in _BACKENDS if _can_attend(name, card, version, kv_dtype, packages)]
    if said is None or (said.lower() == "auto" and version >= (0, 25)):
        return usable[0]
    name = said.upper()
    if name not in _BACKENDS:
        raise ConfigRefused(f"Unknown attention backend: '{said}'. Valid options are: {', '.join(_BACKENDS)}")
    if name not in usable:
        raise ConfigRefused(
            f"Selected backend AttentionBackendEnum.{name} is not valid for this configuration. Reason: "
            f"['{_why_not(name, card, version, packages)}']"
        )
    return name


def _can_attend(
    name: str, card: HardwareProfile, version: tuple[int, ...], kv_dtype: str, packages: frozenset[str]
) -> bool:
    if kv_dtype in _KV_DTYPES_025:
        return name == "TRITON_ATTN"
    capability, narrow = _capability(card), _KV_DTYPES[kv_dtype] < 2.0
    if name == "FLASH_ATTN":
        return capability >= (90 if narrow else 80)
    if name == "FLASHINFER":
        return "flashinfer" in packages and capability >= (75 if version < (0, 25) else 80)
    return name == "TRITON_ATTN" or not narrow


def _why_not(name: str, card: HardwareProfile, version: tuple[int, ...], packages: frozenset[str]) -> str:
    if name == "FLASHINFER" and "flashinfer" not in packages:
        return "FlashInfer is not installed"
    ok = _can_attend(name, card, version, "auto", packages)
    return "kv_cache_dtype not supported" if ok else "compute capability not supported"


def kernels_named(backend: str, card: HardwareProfile) -> str:
    """Return the kernels of an attention backend: FlashAttention is 3 on Hopper and 2 elsewhere."""
    if backend != "FLASH_ATTN":
        return backend
    return "FLASH_ATTN_3" if _capability(card) >= 90 else "FLASH_ATTN_2"


def _capability(card: HardwareProfile) -> int:
    major, minor = card.compute_capability or (0, 0)
    return 10 * major + minor
