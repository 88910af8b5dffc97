"""Why no answer came, told apart: certificates, protocols, names and ports, for the libraries that are used."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import httpx
import pytest
import trustme

from tests.fakes.raw_server import answering
from tuner.client.failures import wait_before_repeating
from tuner.errors import SettingError, UserError
from tuner.http import HttpError, ReadLimits, fetch
from tuner.transport import Unreached, explained
from tuner.use_cases.load import served_model

LIMITS = ReadLimits(10.0)
PAST = datetime.now(UTC) - timedelta(days=2)


@contextmanager
def tls_server(certificate: trustme.LeafCert) -> Iterator[str]:
    """The URL of a server that makes TLS handshakes with a certificate, and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                with suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


AUTHORITY = trustme.CA()
CERTIFICATES = {
    "untrusted": (trustme.CA().issue_cert("127.0.0.1"), "the certificate is not trusted", "set SSL_CERT_FILE to"),
    "expired": (AUTHORITY.issue_cert("127.0.0.1", not_after=PAST), "the certificate has expired", "renew it on"),
    "another name": (AUTHORITY.issue_cert("llm.example"), "certificate is for another", "give the host name that"),
}


async def _by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(trust_env=True) as session, session.get(url):
        pass


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_certificates_are_told_apart_by_each_library(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, problem, remedy = CERTIFICATES[kind]
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with tls_server(certificate) as url:
        with pytest.raises(HttpError, match=problem) as caught:
            fetch(url, LIMITS)
        with pytest.raises(SettingError) as setting:
            served_model(url, None)
        with pytest.raises(httpx.ConnectError) as failed:
            httpx.get(url)
    assert caught.value.remedy.startswith(remedy)
    assert caught.value.lasting
    assert str(setting.value).startswith(f"url={url!r}: ")
    assert problem in str(setting.value)
    assert remedy in str(setting.value)
    assert "start one" not in str(setting.value)
    with pytest.raises(UserError, match=f"no answer from {url}: .*{problem}.*{remedy}"):
        wait_before_repeating(failed.value, 0, url, (1.0, 1.0))


def test_aiohttp_s_error_has_the_same_words() -> None:
    with tls_server(CERTIFICATES["untrusted"][0]) as url, pytest.raises(aiohttp.ClientError) as caught:
        asyncio.run(_by_aiohttp(url))
    found = explained(caught.value)
    assert found is not None
    assert found.problem.startswith("the certificate is not trusted (")


def test_a_server_without_tls_is_no_server_with_a_bad_certificate() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", close=True) as port, pytest.raises(HttpError) as caught:
        fetch(f"https://127.0.0.1:{port}", LIMITS)
    assert str(caught.value) == "the server does not speak TLS; give an address with http://"


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(HttpError) as caught:
            fetch(f"http://{host}:{port}", LIMITS)
        assert str(caught.value) == "the connection is refused: nothing listens there"
        assert not caught.value.connected
    with pytest.raises(SettingError, match=r"no OpenAI-compatible server answers there \(the connection.*start one"):
        served_model(f"http://127.0.0.1:{port}", None)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "the host's name is not known"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "the host's name cannot be looked up now"),
        (TimeoutError("timed out"), "no answer in time"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "there is no route to the host"),
        (OSError("Multiple exceptions: [Errno 99] x, [Errno 111] Connect call failed"), "no local port or address is"),
        (ExceptionGroup("several", [ConnectionResetError(errno.ECONNRESET, "reset")]), "the server ended the"),
        (OSError(errno.EMFILE, "Too many open files"), "this process has too many open files"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_system_s_reasons(error: Exception, problem: str, wrapped: bool) -> None:
    if wrapped:
        outer = httpx.ConnectError("All connection attempts failed")
        outer.__cause__ = error
        error = outer
    found = explained(error)
    assert found is not None
    assert found.problem.startswith(problem)


def test_another_exception_is_not_explained() -> None:
    assert explained(ValueError("x")) is None
    assert str(Unreached("a")) == "a"
