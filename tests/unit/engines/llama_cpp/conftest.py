"""A made model for llama.cpp."""

from pathlib import Path

import pytest

from tests.gguf_model import write_model


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file of the made model."""
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")
