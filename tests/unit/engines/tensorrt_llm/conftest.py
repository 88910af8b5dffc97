"""A fake TensorRT-LLM."""

from pathlib import Path

import pytest

from tests.tensorrt_llm_program import write_program


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `trtllm-serve` of the fake."""
    return write_program(tmp_path_factory.mktemp("venv") / "bin")
