"""A Python that has the fake SGLang."""

import shlex
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[3] / "fakes" / "sglang_site"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs this Python with the fake SGLang on its path."""
    made = tmp_path_factory.mktemp("venv") / "bin" / "python"
    made.parent.mkdir(parents=True)
    words = ["exec", "env", f"PYTHONPATH={SITE}", sys.executable]
    made.write_text(f'#!/bin/sh\n{shlex.join(words)} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    return made
