"""The objects that the parts of an API process share, and how its places are hidden from users."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

import tuner
from storage.service.store import ServiceStore
from storage.store import Store
from tuner.files import home
from tuner.service.asked.rules import ServerRules
from tuner.service.scheduler.scheduler import QueueState
from tuner.service.watching.deployed import DeployedServers
from tuner.service.watching.meters import Meters
from tuner.service.watching.webhooks import Webhooks

if TYPE_CHECKING:
    from tuner.service.http.optimizations.studies import Optimizations
    from tuner.service.http.provider import Provider

OF_DATABASE = ("artifacts", "mlartifacts", "mlflow.db", "quality")
"""What lies beside an SQLite file; the folder itself may be that of a user's models, which keep their paths."""


class Places:
    """Hides where a server has its files: below its folder, and beside its database."""

    def __init__(self, folder: Path, url: str) -> None:
        places = {os.path.abspath(each) for each in _places(folder, url)}
        found = {each for each in places if os.path.dirname(each) != "/"}  # `/usr` says nothing
        self._roots = {each.encode(): os.path.dirname(each).encode() + b"/" for each in found}
        longest_first = b"|".join(re.escape(each) for each in sorted(self._roots, key=len, reverse=True))
        self._pattern = re.compile(rb"(?<![\w.~-])(" + longest_first + rb")(?![\w-])")

    def hidden(self, content: bytes) -> bytes:
        """Return a text whose paths begin with the name of the server's folder that they are in."""
        return self._pattern.sub(lambda found: found[1].removeprefix(self._roots[found[1]]), content)

    def hidden_text(self, text: str) -> str:
        return self.hidden(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def masked(self, content: bytes) -> bytes:
        """Return as many bytes, with asterisks in the place of the server's folders: a reader counts the bytes."""

        def mask(found: re.Match[bytes]) -> bytes:
            root = self._roots[found[1]]
            return b"*" * len(root) + found[1].removeprefix(root)

        return self._pattern.sub(mask, content)

    @property
    def longest(self) -> int:
        """Most bytes of a place."""
        return max(map(len, self._roots))


def _places(folder: Path, url: str) -> Iterable[str]:
    """Yield files and folders of the server."""
    yield from (os.path.join(folder, name) for name in ("submissions", "mlflow.db", "mlartifacts"))
    file = url.removeprefix("sqlite:///")
    if file != url:
        yield file
        yield from (os.path.join(os.path.dirname(file), name) for name in OF_DATABASE)
    yield from (sys.prefix, os.path.dirname(tuner.__file__), str(home()))


@dataclass(frozen=True)
class ServiceContext:
    """One API process.

    Attributes:
        service: the service's store.
        store: of studies and trials, in the same database.
        url: of the database.
        folder: the service's folder, with one for each submission below `submissions/`.
        devices: names of the devices by kind.
        rules: what submissions may ask.
        queue: what the scheduler of this process found last.
        clock: returns the time of operations on optimizations.
        secure: whether it answers by HTTPS.
        meters: counts requests and trials for `/metrics`.
        webhooks: which submissions may name.
        deployed: servers that users may let the service read.
        names: of this server, in lower case, for requests to be answered; None: any name.
        public_url: the page's address, as browsers know it; None: that of the request.
        provider: at which people sign in; None: people log in with tokens alone.
        sign_in_time: how long the token of a sign-in is valid.
    """

    service: ServiceStore
    store: Store
    url: str
    folder: Path
    devices: Mapping[str, Sequence[str]]
    rules: ServerRules = field(default_factory=ServerRules)
    queue: QueueState = field(default_factory=QueueState)
    secure: bool = False
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    meters: Meters = field(default_factory=Meters)
    webhooks: Webhooks = field(default_factory=Webhooks)
    deployed: DeployedServers = field(default_factory=DeployedServers)
    names: frozenset[str] | None = None
    public_url: str | None = None
    provider: Provider | None = None
    sign_in_time: timedelta = timedelta(hours=12)

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it by HTTPS, so that cookies need it, too."""
        return self.secure or (self.public_url or "").startswith("https:")

    @cached_property
    def places(self) -> Places:
        """What hides the server's paths from users."""
        return Places(self.folder, self.url)

    @cached_property
    def optimizations(self) -> Optimizations:
        """The optimizations in the same database."""
        from tuner.service.http.optimizations.studies import Optimizations  # loads Optuna and SciPy

        return Optimizations(self.url, self.service, self.clock)


def context_of(request: Request) -> ServiceContext:
    context: ServiceContext = request.app.state.context
    return context


Context = Annotated[ServiceContext, Depends(context_of)]
