"""The start of the service: its address, and TLS."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import trustme
import uvicorn

import tuner
from storage import normalise_url, open_store
from storage.service.records import Role
from storage.service.store import open_service_store
from tests.cli.command import refused, run_here
from tests.served import DEVICES, Served
from tuner.errors import SettingError, UserError
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext
from tuner.service.http.server import make_server
from tuner.service.serve import _listen, _signing_in
from tuner.settings.serve import ServeSettings


def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """asyncio sets TCP_NODELAY where a socket names its protocol; accepted ones have that of the listener."""
    service = open_service_store(str(tmp_path / "tuner.db"))
    with closing(service), closing(_listen(ServeSettings(port=0), service)) as listener:
        assert (listener.type, listener.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP)


@pytest.mark.parametrize("url", ["https://tuner.example", "https://tuner.example/", "http://10.0.0.1:8600"])
def test_the_page_s_address_ends_with_a_slash(url: str) -> None:
    assert _signing_in(ServeSettings(public_url=url))["public_url"] == f"{url.rstrip('/')}/"


@pytest.mark.parametrize(
    "url",
    [
        "tuner.example",
        "ftp://x",
        "https://x/page",
        "https://x/?a",
        "https://x/#a",
        "https://u@x",
        "https://[",
        "https://x:a",
    ],
)
def test_another_address_of_the_page_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        _signing_in(ServeSettings(public_url=url))
    assert caught.value.field == "public_url"


def test_a_provider_is_not_told_an_address_that_a_request_invents() -> None:
    provider = {"oidc_issuer": "https://login.test", "oidc_client_id": "tuner", "oidc_role": ("*=viewer",)}
    with pytest.raises(SettingError, match="no setting names its address"):
        _signing_in(ServeSettings(host="0.0.0.0", **provider))  # type: ignore[arg-type]
    for named in ({"public_url": "https://tuner.example"}, {"server_name": ("tuner.example",)}, {"host": "127.0.0.1"}):
        found = _signing_in(ServeSettings(**{"host": "0.0.0.0", **provider, **named}))  # type: ignore[arg-type]
        assert found["provider"] is not None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1, its key, its authority, and another key."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(folder / "cert.pem"), append=True)
    authority.issue_cert("other").private_key_pem.write_to_path(str(folder / "other.pem"))
    (folder / "text.pem").write_text("no certificate")
    return folder


@pytest.fixture(scope="module")
def served(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    url = normalise_url(str(folder / "t.db"))
    certificate = (files / "cert.pem", files / "key.pem")
    with closing(open_service_store(url)) as service, closing(open_store(url)) as store:
        found = Served("", url, folder, service, store)
        found.add_token("ada", "ada", Role.USER)
        listener = _listen(ServeSettings(port=0), service)
        context = ServiceContext(service, store, url, folder, DEVICES, secure=True)
        server: uvicorn.Server = make_server(create_app(context), certificate)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        found.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        yield found
        server.should_exit = True
        thread.join()


def test_clients_with_the_authority_use_it(served: Served, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.submit("first")
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "ca.pem"))
    with tuner.Client(served.url, served.tokens["ada"]) as client:
        assert client.study("first").id == "first"
    monkeypatch.setenv("TUNER_TOKEN", served.tokens["ada"])
    printed = run_here(served.folder, "service", "status", "first", "--server", served.url)
    assert (printed.code, printed.err) == (0, "")
    assert "first" in printed.out


def test_a_client_without_the_authority_refuses(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    client = tuner.Client(served.url, served.tokens["ada"])
    with closing(client), pytest.raises(UserError, match=r"the certificate is not trusted .*set SSL_CERT_FILE"):
        client.study("first")


def test_the_cookie_is_sent_by_https_only(served: Served, files: Path) -> None:
    answer = httpx.post(
        f"{served.url}/v1/session",
        json={"token": served.tokens["ada"]},
        verify=ssl.create_default_context(cafile=str(files / "ca.pem")),
        timeout=60,
    )
    assert answer.status_code == 204
    assert "Secure" in {part.strip() for part in answer.headers["set-cookie"].split(";")}


@pytest.mark.parametrize(
    ("certificate", "key", "parts"),
    [
        ("none.pem", "key.pem", ["--tls-certificate", "none.pem", "no such file", "give a PEM file"]),
        ("cert.pem", "none.pem", ["--tls-key", "none.pem", "no such file"]),
        ("cert.pem", "other.pem", ["--tls-certificate", "cannot be used with its key", "KEY_VALUES_MISMATCH"]),
        ("text.pem", "key.pem", ["--tls-certificate", "cannot be used", "without a password"]),
        ("cert.pem", "text.pem", ["--tls-certificate", "cannot be used"]),
    ],
)
def test_files_that_cannot_be_used_are_one_line(
    files: Path, tmp_path: Path, certificate: str, key: str, parts: list[str]
) -> None:
    words = ["--tls-certificate", str(files / certificate), "--tls-key", str(files / key)]
    refused(run_here(tmp_path, "serve", "--port", "0", "--storage", str(tmp_path / "t.db"), *words), tmp_path, *parts)
