"""Failed requests: decide whether one is sent again, and turn the others into errors of one line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import httpx

from tuner.client.flows import Outcome
from tuner.errors import InfrastructureError, SettingError, TunerError, UserError
from tuner.transport import Unreached, explained

WAITS_S: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each further attempt of a request."""

PATIENT_WAITS_S = (*WAITS_S, 4.0, *[8.0] * 35)
"""The same for a client that follows a study, about five minutes in all: the server may restart."""

MOST_WAIT_S = 10.0
"""Longest wait that a server may ask for with `Retry-After`."""

_AGAIN = frozenset({429, 502, 503, 504})
"""HTTP status codes of a server that is busy or starting."""


class RefusedError(UserError):
    """The server refuses a request: no valid token, not allowed, not there, or not in this state.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def wait_before_repeating(
    outcome: Outcome, attempt: int, server: str, waits: tuple[float, ...], *, repeatable: bool = True
) -> float | None:
    """Return the seconds after which a request is sent again; None if it succeeded.

    Args:
        outcome: its answer, or how it failed.
        attempt: attempts before this one.
        server: the server's URL, for messages.
        waits: seconds before each further attempt.
        repeatable: whether it may be sent again although the server may have done it.

    Raises:
        UserError: if the server refuses it, or its address or certificate is wrong.
        InfrastructureError: if the server is not reached, or fails.
    """
    last = attempt >= len(waits)
    if isinstance(outcome, httpx.Response):
        if outcome.is_success:
            return None
        undone = repeatable or outcome.status_code == 429  # which refuses before anything is done
        if last or outcome.status_code not in _AGAIN or not undone:
            raise error_of(outcome, server)
        return max(_jittered(waits[attempt]), _asked_wait(outcome))
    unsent = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)
    found = explained(outcome) or Unreached(" ".join(str(outcome).split()) or type(outcome).__name__)
    if last or found.lasting or not (unsent or repeatable):
        raise _unreached(found, server, unsent=unsent)
    return _jittered(waits[attempt])


def _jittered(wait: float) -> float:
    return wait * random.uniform(0.75, 1.25)


def _asked_wait(reply: httpx.Response) -> float:
    asked = reply.headers.get("retry-after", "")
    return min(float(asked), MOST_WAIT_S) if asked.isdigit() else 0.0


def _unreached(found: Unreached, server: str, *, unsent: bool) -> TunerError:
    if found.lasting:
        return UserError(f"no answer from {server}: {found}")
    if unsent:
        remedy = "start `tuner serve`, or check the address"
        return InfrastructureError(f"no server answers at {server} ({found.problem}); {remedy}")
    remedy = "see with `tuner service list` what the server has, then try again"
    return InfrastructureError(f"the connection to {server} was lost ({found.problem}); {remedy}")


def error_of(reply: httpx.Response, server: str) -> Exception:
    """Return the error of an answer, from its problem details (RFC 9457)."""
    status, body = reply.status_code, _problem(reply)
    detail = " ".join(str(body.get("detail") or f"status {status}").split())
    if reply.is_redirect:
        place = reply.headers.get("location", "another address")
        return RefusedError(f"{server} has moved to {place}; give that address", status)
    if status == 429:
        return InfrastructureError(f"the server {server} is asked too often: {detail}")
    if status >= 500:
        return InfrastructureError(f"the server {server} failed: {detail}; try again later, or ask its admin")
    field, rule = body.get("field"), body.get("rule")
    if status == 422 and isinstance(field, str):
        return SettingError(field, body.get("value"), str(rule or detail), str(body.get("remedy") or ""))
    if not body:
        return RefusedError(f"what answers at {server} is not a tuner's server ({detail}); check the address", status)
    return RefusedError(detail, status)


def _problem(reply: httpx.Response) -> Mapping[str, Any]:
    try:
        body = json.loads(reply.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and "detail" in body else {}
