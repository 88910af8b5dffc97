"""An API process for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.service.optimizer.api import Api, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A client of an API process with an empty database."""
    with serving(tmp_path) as api:
        yield api
