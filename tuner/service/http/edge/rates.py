"""Rates of requests: so many a second for each token, and for each address without a valid one.

A token bucket each: it holds `burst` requests, and is filled with `rate` requests a second. A process has its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True)
class Rate:
    """Requests a second over a long time, and how many may come at once."""

    rate: float
    burst: int


REQUESTS = Rate(100, 1000)
"""Requests of a token."""

STRANGERS = Rate(50, 500)
"""Requests of an address without a valid token; a load of the page is about 40."""

LOG_INS = Rate(1, 20)
"""Attempts to log in of an address."""

MOST_BUCKETS = 10_000
"""Buckets that are kept; of more, those that were used the longest time ago are forgotten."""

HEALTH = frozenset({"/healthz", "/readyz"})
"""Paths of load balancers, which are not counted."""

_SESSIONS = ("/v1/session", "/v1/sign-in")
LOGGING_IN = frozenset(("POST", path) for path in _SESSIONS)
"""Requests of somebody who logs in."""

Key = tuple[str, Rate]
K = TypeVar("K")
V = TypeVar("V")


@dataclass
class _Bucket:
    left: float
    at: float


@dataclass
class Rates:
    """The buckets of a process; they belong to one thread.

    Attributes:
        limited: False lets everything pass.
        clock: seconds that only grow.
    """

    limited: bool = True
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[Key, _Bucket] = field(default_factory=dict)
    _proven: dict[str, None] = field(default_factory=dict)

    def key(self, method: str, path: str, digest: str | None, address: str) -> Key | None:
        """Return what a request is counted for; None: it is not counted.

        It counts for its token, whose digest is given, once that was accepted before, so that invented tokens count for
        the address.
        """
        if path in HEALTH or not self.limited:
            return None
        if (method, path) in LOGGING_IN:
            return address, LOG_INS
        if digest is None or digest not in self._proven:
            return address, STRANGERS
        return digest, REQUESTS

    def wait(self, key: Key) -> int | None:
        """Count a request, and return None; or the whole seconds, 1 or more, until there is room for it."""
        rate, now = key[1], self.clock()
        bucket = self._buckets.pop(key, None) or _Bucket(rate.burst, now)
        bucket.left = min(rate.burst, bucket.left + (now - bucket.at) * rate.rate)
        bucket.at = now
        self._buckets[key] = bucket  # the last used one is the last of the dictionary
        _trim(self._buckets)
        if bucket.left < 1:
            return max(1, math.ceil((1 - bucket.left) / rate.rate))
        bucket.left -= 1
        return None

    def answered(self, digest: str, path: str, status: int) -> None:
        """Note whether a token is valid: every good answer below `/v1/` needs one, but for logging in and out."""
        if status == 401:
            self._proven.pop(digest, None)
        elif status < 400 and path.startswith("/v1/") and path not in _SESSIONS:
            self._proven.pop(digest, None)
            self._proven[digest] = None
            _trim(self._proven)


def _trim(entries: dict[K, V]) -> None:
    """Forget the entries that were used the longest time ago."""
    while len(entries) > MOST_BUCKETS:
        del entries[next(iter(entries))]
