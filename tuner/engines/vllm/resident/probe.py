"""Print as JSON vLLM's version and the optional packages that are installed beside it, without importing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys

PACKAGES = (
    "arctic_inference",
    "bitsandbytes",
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


def installed(name: str, vllm: str | None) -> bool:
    """Return whether vLLM can import a package: from its environment, or its own copy. `vllm` is the file of vLLM."""
    if importlib.util.find_spec(name) is not None:
        return True
    # Looking for the module `vllm.third_party.NAME` would import vLLM, which takes seconds.
    copy = os.path.join(os.path.dirname(vllm or ""), "third_party", name, "__init__.py")
    return vllm is not None and name in BUNDLED and os.path.isfile(copy)


def version(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    spec = importlib.util.find_spec("vllm")
    vllm = None if spec is None else spec.origin
    found = [name for name in PACKAGES if installed(name, vllm)]
    result = {
        "version": version("vllm"),
        "torch": version("torch"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "vllm": vllm,
        "packages": found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
