"""Fixtures of the tests against a real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.tiny_model import make_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the made model, for vLLM's dummy loader."""
    return make_model(tmp_path_factory.mktemp("tiny") / "model")
