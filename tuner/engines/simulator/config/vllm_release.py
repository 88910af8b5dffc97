"""The vLLM release that is simulated, and the packages that count as installed beside it."""

from __future__ import annotations

from search_spaces import HardwareProfile

TURING_VERSION = "0.15.1"
"""The last release whose default attention kernels run on compute capability 7.5; the published T4 runs used it."""

DEFAULT_VERSION = "0.25.1"
"""The release of the H200 measurements."""

SIMULATED_PACKAGES = frozenset({"arctic_inference", "bitsandbytes", "deep_gemm", "flashinfer", "haproxy"})
"""Packages that count as installed. vLLM depends on FlashInfer, its wheel has DeepGEMM, pip installs the others, and
HAProxy is a package of every distribution."""


def default_version(card: HardwareProfile) -> str:
    """Return the release that is simulated on a card if `--vllm-version` is not given."""
    return TURING_VERSION if (card.compute_capability or (0, 0)) < (8, 0) else DEFAULT_VERSION
