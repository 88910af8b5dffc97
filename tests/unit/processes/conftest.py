from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.processes.started import Starter


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.close()
