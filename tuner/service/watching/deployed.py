"""Deployed servers that the service may read for its users: a list of what is allowed, see docs/security.md.

A URL that a user names makes the service send a request (SSRF). The operator therefore lists hosts and ports; by
default there is none. Only `/metrics` of a listed host and port is read, and no redirect is followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from tuner.errors import SettingError

MOST_SERVERS = 20
"""Servers of one study."""
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,250}[a-z0-9_])?", re.ASCII)


@dataclass(frozen=True)
class AllowedHost:
    """A host name, or a network of addresses, and a port."""

    host: str | IPv4Network | IPv6Network
    port: int

    def has(self, host: str, port: int) -> bool:
        """Return whether it allows a host and a port."""
        if port != self.port:
            return False
        if isinstance(self.host, str):
            return host == self.host
        try:
            return ip_address(host) in self.host
        except ValueError:
            return False


@dataclass(frozen=True)
class DeployedServers:
    """What users may let the service read."""

    allowed: tuple[AllowedHost, ...] = ()

    def checked(self, urls: Sequence[str]) -> tuple[str, ...]:
        """Return the addresses of servers without `/v1`.

        Raises:
            SettingError: about `urls`, for one that is not allowed, or too many.
        """
        if not self.allowed:
            rule = "this server reads no metrics of deployed servers"
            raise SettingError("urls", None, f"urls: {rule}", "ask its operator to list their hosts")
        if not 1 <= len(urls) <= MOST_SERVERS:
            raise SettingError("urls", None, f"urls: {len(urls)} servers, and 1 to {MOST_SERVERS} are possible")
        return tuple(dict.fromkeys(self._checked(url) for url in urls))

    def _checked(self, url: str) -> str:
        plain = url.rstrip("/").removesuffix("/v1").rstrip("/")
        try:
            parts = urlsplit(plain)
            host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            host, port = None, None
        is_plain = host is not None and parts.scheme in _PORTS and plain == f"{parts.scheme}://{parts.netloc}"
        if host is None or port is None or not is_plain or not plain.isprintable():
            rule = "not the address of a server, such as http://10.0.0.7:8000"
            raise SettingError("urls", url[:100], rule, "leave out path, query and user")
        if "@" in parts.netloc or not any(each.has(host, port) for each in self.allowed):
            raise SettingError("urls", url[:100], "this server does not allow the host and port", "ask its operator")
        return plain


def allowed_hosts(given: Iterable[str]) -> DeployedServers:
    """Return the allowed servers of texts such as `gpu-7:8000`, `10.0.0.0/24:8000` and `[fd00::]/64:8000`.

    Raises:
        SettingError: about `watch_host`, for another text.
    """
    return DeployedServers(tuple(map(_allowed, given)))


def _allowed(text: str) -> AllowedHost:
    place, _, port = text.lower().rpartition(":")
    name = place.replace("[", "").replace("]", "")
    if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        try:
            return AllowedHost(ip_network(name), int(port))
        except ValueError:
            if _NAME.fullmatch(name) and not set(name) <= set("0123456789."):
                return AllowedHost(name, int(port))
    remedy = "give for example gpu-7:8000 or 10.0.0.0/24:8000"
    raise SettingError("watch_host", text[:100], "neither a host nor a network, with a port", remedy)
