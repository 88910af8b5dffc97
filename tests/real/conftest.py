"""Fixtures of the tests against a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.tiny_model import make_model
from tuner.engines.base import EngineSettings
from tuner.engines.vllm.engine import VllmEngine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the made model, for vLLM's dummy loader."""
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def engine(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """An engine with vLLM, without the hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        made = VllmEngine(EngineSettings("vllm", str(vllm), tmp_path_factory.mktemp("home")))
    yield made
    made.close()
