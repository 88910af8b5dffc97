"""The address of the service (`tuner serve`) and the token that authorises the requests of a client."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from tuner.errors import SettingError
from tuner.transport import unusable_authorities

SERVER_VARIABLE = "TUNER_SERVER"
TOKEN_VARIABLE = "TUNER_TOKEN"
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
"""Printable ASCII without spaces, because the token is sent in an HTTP header."""


@dataclass(frozen=True)
class Address:
    """A server's URL without a trailing slash, and the token for it, which `repr` omits."""

    url: str
    token: str = field(repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of httpx's clients: base URL, token, use of proxies, and certificate authorities.

        Raises:
            SettingError: for a file of authorities that cannot be used.
        """
        unusable = unusable_authorities()
        if unusable is not None:
            raise SettingError("server", self.url, unusable.problem, unusable.remedy)
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.token}"},
            "trust_env": not self.is_loopback,  # a proxy would ask its own loopback address
            # With trust_env=False httpx ignores SSL_CERT_FILE and SSL_CERT_DIR, too; this context reads them.
            "verify": httpx.create_ssl_context() if self.url.startswith("https:") else True,
        }


def find_address(
    server: str | None, token: str | None, *, insecure: bool = False, environment: Mapping[str, str] | None = None
) -> Address:
    """Return the address that the arguments name, else the one that the environment names.

    With `insecure`, the token may be sent without TLS to another machine. `environment` is by default this process's.

    Raises:
        SettingError: without a server or a token, for an invalid URL or token, or for plain HTTP to another machine.
    """
    variables = os.environ if environment is None else environment
    url = _checked_url(server or variables.get(SERVER_VARIABLE) or None)
    secret = (token or variables.get(TOKEN_VARIABLE) or "").strip()
    if not secret:
        rule = f"the server {url} needs a token"
        raise SettingError(
            "token", None, rule, f"set {TOKEN_VARIABLE}; an admin makes one with `tuner service token add`"
        )
    if not _TOKEN.fullmatch(secret):
        raise SettingError("token", None, "the token has characters that no token has", f"correct {TOKEN_VARIABLE}")
    found = Address(url, secret)
    if url.startswith("http:") and not found.is_loopback and not insecure:
        rule = "without TLS everybody on the way could read the token"
        raise SettingError("server", url, rule, "give an https address, or {insecure} in a network that you trust")
    return found


def _checked_url(url: str | None) -> str:
    """Return a URL without a trailing slash.

    Raises:
        SettingError: for None, and for a URL that is not HTTP or has a user, a password, a query or a fragment.
    """
    if url is None:
        raise SettingError("server", None, "no server is given", f"give {{server}} URL, or set {SERVER_VARIABLE}")
    remedy = "give one such as http://127.0.0.1:8600"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # both raise ValueError if they are invalid
    except ValueError as error:
        raise SettingError("server", url, f"not an address: {error}", remedy) from None
    if parts.username is not None or parts.password is not None:
        raise SettingError("server", None, "an address has no user or password", f"{remedy}; the token is not in it")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not url.isprintable():
        raise SettingError("server", url, "not the address of a server", remedy)
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether a host, by its name or address, is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
