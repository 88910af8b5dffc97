"""Answer `tuner/engines/server/probe.py` for vLLM. vLLM's Python runs it, and it does not import vLLM."""

from __future__ import annotations

import importlib.util
import os

DISTRIBUTION = "vllm"

PACKAGES = (
    "arctic_inference",
    "bitsandbytes",
    "deep_ep",
    "deep_gemm",
    "flash_attn",
    "flashinfer",
    "humming",
    "lmcache",
    "mooncake",
    "nixl",
    "ray",
    "runai_model_streamer",
    "torchao",
    "uvloop",
    "xgrammar",
)
BUNDLED = ("deep_gemm",)
"""Packages of which vLLM's wheel may bring a copy, in `vllm/third_party`; vLLM prefers the installed one."""


def installed(name: str) -> bool:
    """Return whether vLLM can import a package: from its environment, or its own copy."""
    if importlib.util.find_spec(name) is not None:
        return True
    spec = importlib.util.find_spec("vllm")
    if name not in BUNDLED or spec is None or spec.origin is None:
        return False
    # Looking for the module `vllm.third_party.NAME` would import vllm, which takes seconds.
    return os.path.isfile(os.path.join(os.path.dirname(spec.origin), "third_party", name, "__init__.py"))
