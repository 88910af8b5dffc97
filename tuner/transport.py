"""Say why no answer came over a network, in words for the user, from the exception of any library."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_TITLE = re.compile(r"<title>\s*([^<]+)", re.IGNORECASE)
_NOT_TRUSTED = "set SSL_CERT_FILE to the file of its authority"
_CERTIFICATES = {
    9: ("the certificate is not valid yet", "check this machine's clock, or renew it on the server"),
    10: ("the certificate has expired", "renew it on the server"),
    23: ("the certificate was revoked", "renew it on the server"),
    62: ("the certificate is for another host name", "give the name that it is for"),
    64: ("the certificate is for another IP address", "give the host name that it is for"),
    **dict.fromkeys(
        (24, 26, 66, 67, 68, *range(79, 95)),  # its use, its strength, and what Python 3.13 and later require
        ("the certificate, or its authority's, is not accepted", "make another for the server"),
    ),
}
"""Problems and remedies by OpenSSL's number; with any other, the certificate is not trusted."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_SYSTEM = {
    errno.ECONNREFUSED: ("the connection is refused: nothing listens there", ""),
    errno.ECONNRESET: ("the server ended the connection", ""),
    errno.ECONNABORTED: ("the server ended the connection", ""),
    errno.EPIPE: ("the server ended the connection", ""),
    errno.ETIMEDOUT: ("no answer in time", "check the address and the network"),
    errno.ENETUNREACH: ("there is no route to the host", "check the address and the network"),
    errno.EHOSTUNREACH: ("there is no route to the host", "check the address and the network"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (`ulimit -n`)"),
    errno.ENFILE: ("this machine has too many open files", "raise the limit of the system"),
    errno.EADDRNOTAVAIL: ("no local port or address is free for it", "check the address, or send fewer at once"),
}


@dataclass(frozen=True)
class Unreached:
    """Why no answer came, and the next step; the step is empty where only the caller knows one.

    `lasting` is True where trying again cannot help: a certificate, a name or a protocol has to change first.
    """

    problem: str
    remedy: str = ""
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


def unusable_authorities() -> Unreached | None:
    """Return why SSL_CERT_FILE, which httpx reads for every client, cannot be used; httpx's error names no file."""
    file = os.environ.get("SSL_CERT_FILE")
    try:
        if file:
            ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = "has no certificates" if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
        return Unreached(
            f"SSL_CERT_FILE {file!r} {reason}", "name a PEM file of authorities, or unset it", lasting=True
        )
    return None


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a server makes TLS handshakes; nothing is sent, and its certificate does not matter."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except (OSError, ValueError):
        return False


def words_of(body: str) -> str:
    """Return the body of a refusal on one line; of an HTML page only the title."""
    title = _TITLE.search(body)
    return " ".join((title[1] if title else body).split())


def explained(error: BaseException) -> Unreached | None:
    """Return why a request had no answer; None if no cause of the exception is known."""
    return next((found for cause in _causes(error) if (found := _explained(cause)) is not None), None)


def _explained(cause: BaseException) -> Unreached | None:
    if isinstance(cause, ssl.SSLCertVerificationError):
        problem, remedy = _CERTIFICATES.get(cause.verify_code, ("the certificate is not trusted", _NOT_TRUSTED))
        return Unreached(f"{problem} ({cause.verify_message.rstrip('.')})", remedy, lasting=True)
    if isinstance(cause, ssl.SSLError):
        if cause.reason in _NO_TLS:
            return Unreached("the server does not speak TLS", "give an address with http://", lasting=True)
        if "CERTIFICATE_REQUIRED" in str(cause.reason):
            return Unreached(
                "the server asks for a certificate of the client", "give an address that needs none", lasting=True
            )
        words = str(cause.reason or "the connection ended").lower().replace("_", " ")
        return Unreached(f"the TLS handshake failed ({words})", "see the server's settings of TLS")
    if isinstance(cause, socket.gaierror):
        if cause.errno == socket.EAI_AGAIN:
            return Unreached("the host's name cannot be looked up now", "check the name and the network")
        return Unreached("the host's name is not known", "correct the address", lasting=True)
    if isinstance(cause, TimeoutError):
        return Unreached(*_SYSTEM[errno.ETIMEDOUT])
    if isinstance(cause, OSError):
        numbers = [cause.errno, *map(int, _ERRNO.findall(str(cause)))]  # asyncio puts several into one text
        return next((Unreached(*_SYSTEM[number]) for number in numbers if number in _SYSTEM), None)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, the first cause first."""
    chain: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each in chain:
            continue
        chain.append(each)
        waiting += [cause for cause in (each.__context__, each.__cause__) if cause is not None]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return reversed(chain)
