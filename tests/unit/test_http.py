"""HTTP: requests, and the transport of texts."""

import asyncio
import errno
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import httpx
import pytest
import trustme

from tests.fakes.http_server import Answer, http_server
from tests.fakes.raw_server import ENDLESS, TRICKLE, Part, answering
from tests.some import some
from tuner.client.address import Address
from tuner.client.failures import wait_before_repeating
from tuner.errors import SettingError, UserError
from tuner.http import HttpError, ReadLimits, Reply, fetch, get_local, post
from tuner.transport import Unreached, explained
from tuner.use_cases.load import served_model


@pytest.fixture
def port() -> Iterator[int]:
    with http_server(lambda asked: Answer(b"caf\xc3\xa9 \xff", 200 if asked.path == "/good" else 503)) as address:
        yield int(address.rpartition(":")[2])


def test_an_answer_has_its_status_and_body(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nothing listens there: a request by it would fail
    reply = some(get_local("127.0.0.1", port, "/good", 10))
    assert (reply.status, reply.text) == (200, "café \ufffd")
    bad = some(get_local("127.0.0.1", port, "/bad", 10))
    assert bad.status == 503


def test_a_silent_listener_has_no_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begun = time.monotonic()
        assert get_local("127.0.0.1", listener.getsockname()[1], "/", 0.2) == Reply(None)
        assert time.monotonic() - begun < 10


JSON = ("application/json",)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SOON = 30.0
"""Far more than a read that ends at its deadline takes, and far less than one that does not."""


BAD_ANSWERS: dict[str, tuple[list[Part], str]] = {
    "a trickled body": ([HEAD + b"\r\n", TRICKLE], "no whole answer within 0.5 s"),
    "a trickled head": ([HEAD, TRICKLE], "no whole answer within 0.5 s"),
    "an endless body": ([HEAD + b"\r\n", ENDLESS], "more than 1000000 bytes"),
    "an announced 80 MB": ([HEAD + b"Content-Length: 80000000\r\n\r\n"], "more than 1000000 bytes"),
    "a compressed body": ([HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"], "the answer is compressed"),
    "a page": (
        [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\nx"],
        "its type is text/html, not application/json",
    ),
    "no HTTP": ([b"\x00\xff\r\n\r\n"], ""),
    "a length that is none": ([HEAD + b"Content-Length: -5\r\n\r\nx"], ""),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_answer_beyond_the_limits_has_no_status(name: str) -> None:
    parts, problem = BAD_ANSWERS[name]
    with answering(*parts) as port:
        begun = time.monotonic()
        deadline_s = 0.5 if "0.5" in problem else SOON
        reply = get_local("127.0.0.1", port, "/", deadline_s, size=1_000_000, types=JSON)
        assert time.monotonic() - begun < SOON
    assert reply == Reply(None)
    assert reply is not None
    assert problem in (reply.problem or "")


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"200 OK", b"x", 200),
        (b"404 No\r\nContent-Type: text/html", b"y", 404),
        (b"200 OK\r\nContent-Type: Application/JSON; charset=utf-8", b"1", 200),
    ],
    ids=["no type", "that of an error", "with parameters"],
)
def test_types_that_are_accepted(head: bytes, body: bytes, status: int) -> None:
    with answering(b"HTTP/1.1 " + head + b"\r\nContent-Length: 1\r\n\r\n" + body) as port:
        assert get_local("127.0.0.1", port, "/", SOON, types=JSON) == Reply(status, body)


@pytest.mark.parametrize("url", ["nowhere", "http://[no", "http://a b/", "ftp://x", "http://x:99999/", ""])
def test_what_is_no_url_is_a_documented_error(url: str) -> None:
    with pytest.raises(HttpError):
        fetch(url, ReadLimits(5))


def test_an_answer_is_read_where_an_event_loop_runs_already() -> None:
    # As in a notebook that calls tuner.optimize.
    async def read(port: int) -> Reply | None:
        return get_local("127.0.0.1", port, "/", SOON)

    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as port:
        assert asyncio.run(read(port)) == Reply(200, b"ok")


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


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read (No such file or directory)"), ("junk", "has no certificates")]
)
def test_a_file_of_authorities_must_have_some(
    content: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    server = Address("https://127.0.0.1:1", "token")
    for ask in (lambda: fetch(server.url, LIMITS), lambda: post(server.url, b"", {}, 1.0), server.client_options):
        with pytest.raises((HttpError, SettingError), match=re.escape(f"SSL_CERT_FILE {str(file)!r} {problem}")):
            ask()


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


@pytest.mark.parametrize(
    ("code", "words"), [(26, "unsuitable certificate purpose"), (85, "Missing Authority Key Identifier")]
)
def test_a_certificate_that_no_trust_mends_has_to_be_replaced(code: int, words: str) -> None:
    error = ssl.SSLCertVerificationError(1, words)
    error.verify_code, error.verify_message = code, words
    expected = f"the certificate, or its authority's, is not accepted ({words}); make another for the server"
    assert str(explained(error)) == expected


def test_aiohttp_s_error_has_the_same_words() -> None:
    with tls_server(CERTIFICATES["untrusted"][0]) as url, pytest.raises(aiohttp.ClientError) as caught:
        asyncio.run(_by_aiohttp(url))
    found = some(explained(caught.value))
    assert found.problem.startswith("the certificate is not trusted (")


def test_a_server_of_tls_is_named_to_who_asks_without() -> None:
    with tls_server(CERTIFICATES["expired"][0]) as url:
        plain = url.replace("https", "http")
        with pytest.raises(HttpError) as caught:
            fetch(f"{plain}/v1/models?a=b", LIMITS)
        with pytest.raises(SettingError) as setting:
            served_model(plain, None)
    assert str(caught.value) == f"the server speaks TLS; give an address with https://, such as {url}"
    assert str(setting.value) == f"url={plain!r}: {caught.value}"
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as port:
        assert fetch(f"http://127.0.0.1:{port}", LIMITS).status == 400


def test_a_server_without_tls_is_no_server_with_a_bad_certificate() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", close=True) as port, pytest.raises(HttpError) as caught:
        fetch(f"https://127.0.0.1:{port}", LIMITS)
    assert str(caught.value) == "the server does not speak TLS; give an address with http://"


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert get_local("127.0.0.1", port, "/", 10) is None
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
    found = some(explained(error))
    assert found.problem.startswith(problem)


def test_another_exception_is_not_explained() -> None:
    assert explained(ValueError("x")) is None
    assert str(Unreached("a")) == "a"
