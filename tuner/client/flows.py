"""Methods that are written once for the synchronous and the asynchronous client.

A method is a flow: a generator that yields what to do next, as httpx's authentication does. `Client` does each step and
waits for it, `AsyncClient` awaits it; what a flow returns is the answer of both.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

if TYPE_CHECKING:
    from tuner.client.client import AsyncClient, Client
    from tuner.client.streams import EventPlace

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Outcome = httpx.Response | httpx.RequestError
"""An answer, or how the request failed."""

Flow = Generator[Any, Any, Answer]
"""Yields a `Call`, for its outcome, or seconds to wait, and returns one answer."""

Flows = Generator["list[Answer] | EventPlace | Call | float", Any, None]
"""Yields lists of its answers and, for the events of a connection, an `EventPlace`, too."""


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        path: below the server's address.
        query: parameters of the address; None is left out.
        body: sent as JSON; None: nothing is sent.
        repeatable: whether it may be sent again although the server may have done it.
        done_by: status with which the server refuses a repetition of what it has done.
        timeout_s: seconds that the server has for its answer.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    repeatable: bool = True
    done_by: int | None = None
    timeout_s: float = 60.0

    @property
    def request(self) -> dict[str, Any]:
        """The arguments of httpx's request."""
        query = {name: value for name, value in self.query.items() if value is not None}
        return {
            "method": self.method,
            "url": self.path,
            "params": query,
            "json": self.body,
            "timeout": self.timeout_s,
        }


class _Shared:
    """A method of both clients, with the name, the signature and the docstring of its flow."""

    runner: str

    def __init__(self, flow: Callable[..., Any]) -> None:
        functools.update_wrapper(self, flow)
        self._flow = flow

    def __call__(self, client: Any, *arguments: Any, **more: Any) -> Any:
        return getattr(client, self.runner)(self._flow(client, *arguments, **more))


class Method(_Shared, Generic[Given, Answer]):
    """A method with one answer, which an `AsyncClient` awaits."""

    runner = "_run"

    def __init__(self, flow: Callable[Concatenate[Any, Given], Flow[Answer]]) -> None:
        super().__init__(flow)

    @overload
    def __get__(self, client: None, kind: type) -> Method[Given, Answer]: ...
    @overload
    def __get__(self, client: Client, kind: type) -> Callable[Given, Answer]: ...
    @overload
    def __get__(self, client: AsyncClient, kind: type) -> Callable[Given, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: Client | AsyncClient | None, kind: type) -> Any:
        return self if client is None else MethodType(self, client)


class Several(_Shared, Generic[Given, Answer]):
    """A method that yields answers, an asynchronous iterator of an `AsyncClient`."""

    runner = "_iterate"

    def __init__(self, flow: Callable[Concatenate[Any, Given], Flows[Answer]]) -> None:
        super().__init__(flow)

    @overload
    def __get__(self, client: None, kind: type) -> Several[Given, Answer]: ...
    @overload
    def __get__(self, client: Client, kind: type) -> Callable[Given, Iterator[Answer]]: ...
    @overload
    def __get__(self, client: AsyncClient, kind: type) -> Callable[Given, AsyncIterator[Answer]]: ...
    def __get__(self, client: Client | AsyncClient | None, kind: type) -> Any:
        return self if client is None else MethodType(self, client)
