"""Sessions: how requests are grouped by session and turn, in schedules, plans, simulations and records alike.

A session is drawn as a whole before the run; only the due time of a later turn is not, which is the end of the last
answer plus the pause. The terms are AIPerf's (session, turn) and those of vLLM's multi-turn benchmark (turn). AIPerf
calls the pause a turn delay, and load testers call it think time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Turned(Protocol):
    """A request with the number of its session (None: it stands alone) and of its turn."""

    @property
    def session(self) -> int | None: ...

    @property
    def turn(self) -> int: ...


Request = TypeVar("Request", bound=Turned)


def sessions_of(requests: Iterable[Request]) -> list[list[list[Request]]]:
    """Return the turns of each session, each with the requests that it sends at once; one alone is a session, too.

    Args:
        requests: in the order of their numbers, in which the requests of a session follow one another.
    """
    found: list[list[list[Request]]] = []
    last: Request | None = None
    for request in requests:
        if last is None or request.session is None or request.session != last.session:
            found.append([[request]])
        elif request.turn != last.turn:
            found[-1].append([request])
        else:
            found[-1][-1].append(request)
        last = request
    return found
