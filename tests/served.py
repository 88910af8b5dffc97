"""The service's API in a thread of this process: real HTTP on a free port, and no scheduler."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from storage import Store, normalise_url, open_store
from storage.service.records import Driver, Lease, Role, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.empty_database import write_empty_database
from tuner.service.asked.rules import ServerRules
from tuner.service.http.access import store_token
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext

DRIVER = Driver("here", 4711, 123, "boot")
DEVICES = {"cpu": ("cpu:0",), "simulated": ("simulated:0", "simulated:1")}
TOKENS = (
    ("ada", "ada", Role.USER),
    ("ben", "ben", Role.USER),
    ("eve", "ada", Role.VIEWER),
    ("root", "root", Role.ADMIN),
)


@dataclass
class Served:
    """A running API.

    Attributes:
        url: its address.
        storage: URL of its database.
        folder: of the service.
        service: its store.
        store: of its studies.
        tokens: secrets by the token's name; `ada` and `ben` are users, `eve` a viewer of ada's, `root` an admin.
    """

    url: str
    storage: str
    folder: Path
    service: ServiceStore
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def add_token(self, name: str, owner: str, role: Role, expires_at: datetime | None = None) -> str:
        lasts = None if expires_at is None else expires_at - self.now()
        self.tokens[name], _ = store_token(self.service, name, owner, role, lasts)
        return self.tokens[name]

    def submit(self, id: str, owner: str = "ada", shared: bool = False) -> None:
        """Submit a study without a look at its settings."""
        now = self.now()
        self.service.submit(Submission(id, owner, {"trials": 4}, "simulated", 1, 0, now, now, shared=shared))

    def start(self, id: str) -> None:
        """Give a study its device and its driver, as the scheduler does."""
        lease = self.service.take_lease("scheduler", "test", 3600, self.now())
        assert isinstance(lease, Lease)
        assert self.service.start(id, ("simulated:0",), lease, self.now())
        self.service.set_driver(id, DRIVER, self.now())

    def end(self, id: str, state: SubmissionState, reason: str | None = None) -> None:
        """Let the driver end a study in a state."""
        self.service.end(id, DRIVER, state, reason, None, self.now())


@contextmanager
def listening(context: ServiceContext, port: int = 0) -> Iterator[int]:
    """Serve in a thread, and yield the port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()  # requests wait until the thread accepts them
    config = uvicorn.Config(
        create_app(context), log_level="warning", access_log=False, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="api")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def context_at(served: Served, **more: Any) -> ServiceContext:
    """Return the context of an API process on the same database."""
    places = (served.service, served.store, served.storage, served.folder)
    return ServiceContext(*places, DEVICES, ServerRules(), **more)


@contextmanager
def stored(folder: Path) -> Iterator[Served]:
    """Open the database of a folder, a new one with tokens."""
    storage = normalise_url(str(folder / "service.db"))
    write_empty_database(folder / "service.db")
    with closing(open_service_store(storage)) as service, closing(open_store(storage)) as store:
        served = Served("", storage, folder, service, store)
        if not service.tokens():
            for name, owner, role in TOKENS:
                served.add_token(name, owner, role)
        yield served


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a new database in a folder, with tokens."""
    with stored(folder) as served, listening(context_at(served)) as port:
        served.url = f"http://127.0.0.1:{port}"
        yield served
