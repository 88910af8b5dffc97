"""Which vLLM release is simulated, and what is installed beside it."""

from __future__ import annotations

from search_spaces import HardwareProfile

TURING_VERSION = "0.15.1"
"""The last version whose default attention kernels ran on compute capability 7.5, and the one that was published on."""

DEFAULT_VERSION = "0.25.1"
"""The version that the H200 measurements were made with."""


def default_version(card: HardwareProfile) -> str:
    """Return the vLLM that is simulated on a card where nobody said which."""
    return TURING_VERSION if (card.compute_capability or (0, 0)) < (8, 0) else DEFAULT_VERSION


SIMULATED_PACKAGES = frozenset({"arctic_inference", "bitsandbytes", "flashinfer"})
"""What is taken to be installed beside vLLM: FlashInfer comes with it, the others by pip."""
