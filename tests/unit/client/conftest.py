"""A served API, and both clients behind one face: tests run on each."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.served import Served, serving
from tuner.client.client import AsyncClient, Client

MakeClient = Callable[..., Any]


class Blocking:
    """An `AsyncClient` whose methods wait; what it yields is a list."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(*arguments, **more)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **more: Any) -> Any:
            result = method(*arguments, **more)
            return self._runner.run(result if inspect.iscoroutine(result) else _collect(result))

        return call

    def end(self) -> None:
        self._runner.run(self.client.close())
        self._runner.close()


async def _collect(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_client(kind: str) -> Iterator[MakeClient]:
    """Returns a client whose waits take no time; a list of them is `slept`."""
    made: list[Any] = []

    def make(url: str, token: str, transport: Any = None) -> Any:
        slept: list[float] = []
        client: Any
        if kind == "sync":
            client = Client(url, token, transport=transport, sleep=slept.append)
        else:

            async def sleep(seconds: float) -> None:
                slept.append(seconds)

            client = Blocking(url, token, transport=transport, sleep=sleep)
        client.__dict__["slept"] = slept
        made.append(client)
        return client

    yield make
    for client in made:
        client.close() if isinstance(client, Client) else client.end()


@pytest.fixture
def ada(served: Served, make_client: MakeClient) -> Any:
    return make_client(served.url, served.tokens["ada"])


@pytest.fixture
def root(served: Served, make_client: MakeClient) -> Any:
    return make_client(served.url, served.tokens["root"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
