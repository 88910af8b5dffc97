"""Print as JSON vLLM's version and the optional packages that are installed beside it, without importing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
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


def version(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    found = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    spec = importlib.util.find_spec("vllm")
    result = {
        "version": version("vllm"),
        "torch": version("torch"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "vllm": None if spec is None else spec.origin,
        "packages": found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
