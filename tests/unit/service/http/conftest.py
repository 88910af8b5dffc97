"""An API process without a scheduler, and callers with tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from storage import normalise_url, open_store
from storage.service.records import Role, Token
from storage.service.store import ServiceStore, open_service_store
from tests.empty_database import write_empty_database
from tuner.service.asked.rules import ServerRules
from tuner.service.http.access import new_token
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext
from tuner.service.http.edge.rates import Rates
from tuner.service.watching.webhooks import find_webhooks

HOST = "http://tuner.test"


@dataclass
class Api:
    """The API as its callers see it; `tokens` are secrets by the token's name."""

    client: TestClient
    service: ServiceStore
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, owner: str, role: Role, expires_at: datetime | None = None) -> str:
        secret, digest = new_token()
        self.service.add_token(Token(name, owner, role, digest, datetime.now(UTC), expires_at))
        self.tokens[name] = secret
        return secret

    def call(self, method: str, path: str, token: str | None = "ada", **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens[token]}"
        return self.client.request(method, path, headers=headers, **more)

    def submit(self, id: str, token: str = "ada", **more: Any) -> Any:
        body = {"id": id, "settings": {"engine": "simulated", "trials": 4}, **more}
        return self.call("POST", "/v1/studies", token, json=body)


@contextmanager
def serving_with(folder: Path, rates: Rates | None = None) -> Iterator[Api]:
    """Serve a new database in a folder."""
    write_empty_database(folder / "t.db")
    url = normalise_url(str(folder / "t.db"))
    devices = {"cpu": ("cpu:0",), "simulated": ("simulated:0", "simulated:1")}
    service, store = open_service_store(url), open_store(url)
    webhooks = find_webhooks(["team"], None, {"TUNER_WEBHOOK_TEAM": "https://hooks.test/T0/secret"})
    context = ServiceContext(service, store, url, folder, devices, ServerRules(), webhooks=webhooks)
    with TestClient(create_app(context, rates), base_url=HOST, raise_server_exceptions=False) as client:
        found = Api(client, service, folder)
        found.add("ada", "ada", Role.USER)
        found.add("ben", "ben", Role.USER)
        found.add("eve", "ada", Role.VIEWER)
        found.add("root", "root", Role.ADMIN)
        found.add("old", "ada", Role.USER, datetime.now(UTC) - timedelta(seconds=1))
        found.add("gone", "ada", Role.USER)
        service.revoke_token("gone", datetime.now(UTC))
        yield found
    store.close()
    service.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving_with(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One process for the tests of a module whose requests are refused: each checks that nothing is stored."""
    with serving_with(tmp_path_factory.mktemp("refusing")) as found:
        yield found
