"""A fake streaming server for as long as a test runs, and an address where nothing listens."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.loadgen.loads import Fake, url

StartFake = Callable[..., Fake]


@pytest.fixture
def start_fake(tmp_path: Path) -> Iterator[StartFake]:
    """Start a fake server with this pace and these faults."""
    started: list[Fake] = []

    def start(first_ms: float = 5, token_ms: float = 2, faults: dict[str, str] | None = None) -> Fake:
        started.append(Fake(tmp_path, first_ms, token_ms, faults or {}))
        return started[-1]

    yield start
    for fake in started:
        fake.close()


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A URL whose port is taken and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield url(bound.getsockname()[1])
