"""One HTTP GET to a server on this host, with a deadline."""

from __future__ import annotations

from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Reply:
    """The answer of a listener; `status` is None if it accepted the connection and sent no valid answer in time."""

    status: int | None
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are not are replaced."""
        return self.body.decode("utf-8", "replace")


def get_local(host: str, port: int, path: str, timeout_s: float) -> Reply | None:
    """Return the answer to `GET path`; None if nothing accepts the connection within `timeout_s` seconds.

    Proxies of the environment are ignored. Certificates are neither loaded nor needed: the URL is plain HTTP.
    """
    try:
        with httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as client:
            response = client.get(f"http://{host}:{port}{path}")
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return None
    except httpx.HTTPError:
        return Reply(None)
    return Reply(response.status_code, response.content)
