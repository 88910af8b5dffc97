"""An API process without a scheduler, and callers with tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from storage.service.records import Role
from storage.service.store import ServiceStore
from tests.served import Served, context_at, stored
from tuner.service.http.app import create_app
from tuner.service.http.edge.rates import Rates
from tuner.service.watching.webhooks import find_webhooks

HOST = "http://tuner.test"


@dataclass
class Api:
    """The API as its callers see it, and what it stores."""

    client: TestClient
    served: Served

    @property
    def service(self) -> ServiceStore:
        return self.served.service

    @property
    def folder(self) -> Path:
        return self.served.folder

    @property
    def tokens(self) -> dict[str, str]:
        """Secrets by the token's name."""
        return self.served.tokens

    def call(self, method: str, path: str, token: str | None = "ada", **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens[token]}"
        return self.client.request(method, path, headers=headers, **more)

    def submit(self, id: str, token: str = "ada", **more: Any) -> Any:
        body = {"id": id, "settings": {"engine": "simulated", "trials": 4}, **more}
        return self.call("POST", "/v1/studies", token, json=body)


@contextmanager
def serving_with(folder: Path, rates: Rates | None = None, **context: Any) -> Iterator[Api]:
    """Serve a new database in a folder."""
    webhooks = find_webhooks(["team"], None, {"TUNER_WEBHOOK_TEAM": "https://hooks.test/T0/secret"})
    with stored(folder) as served:
        app = create_app(context_at(served, webhooks=webhooks, **context), rates)
        with TestClient(app, base_url=HOST, raise_server_exceptions=False) as client:
            yield Api(client, served)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving_with(tmp_path) as found:
        served = found.served
        served.add_token("old", "ada", Role.USER, served.now() - timedelta(seconds=1))
        served.add_token("gone", "ada", Role.USER)
        served.service.revoke_token("gone", served.now())
        yield found


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One process for the tests of a module whose requests are refused: each checks that nothing is stored."""
    with serving_with(tmp_path_factory.mktemp("refusing")) as found:
        yield found
