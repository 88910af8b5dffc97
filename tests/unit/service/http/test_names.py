"""Requests for other servers' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.service.http.conftest import Api
from tuner.service.serve import _names
from tuner.settings.serve import ServeSettings

OWN = frozenset({"localhost", "127.0.0.1", "::1"})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, OWN),
        ({"host": "127.0.0.2"}, OWN | {"127.0.0.2"}),
        ({"server_name": ("Tuner.example",)}, OWN | {"tuner.example"}),
        ({"host": "0.0.0.0"}, None),
        ({"tls_certificate": Path("c"), "tls_key": Path("k")}, None),
        ({"host": "0.0.0.0", "server_name": ("tuner.example",)}, OWN | {"0.0.0.0", "tuner.example"}),
    ],
)
def test_the_names_of_a_server(settings: dict[str, object], names: frozenset[str] | None) -> None:
    assert _names(ServeSettings(**settings)) == names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8600", 401), ("LOCALHOST", 401), ("[::1]:8600", 401), ("evil.test", 421), ("[", 421), ("", 421)],
)
def test_another_name_is_refused(api: Api, host: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = api.client.app.middleware_stack  # type: ignore[attr-defined]
    while not hasattr(guard, "_names"):
        guard = guard.app
    monkeypatch.setattr(guard, "_names", OWN)
    assert api.call("GET", "/v1/queue", None, headers={"Host": host}).status_code == status
    assert api.call("GET", "/healthz", None, headers={"Host": host}).status_code == 200
