"""Sessions of a recording, for a replay in which the next turn waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from tuner.workloads.sessions import sessions_of
from tuner.workloads.traces.formats import read_recording


@dataclass(frozen=True)
class RecordedTurn:
    """A turn: the places of its requests in the recording, and the pause before it; None: not known."""

    places: tuple[int, ...]
    pause_s: float | None


@dataclass(frozen=True)
class RecordedSessions:
    """The sessions of a recording, in the order of their first requests; a request in no session is one alone.

    Attributes:
        sessions: the turns of each.
        requests: mean requests of a session.
        turns: mean turns of a session.
        pause_s: mean of the known pauses; None: none is known.
        lacks_pauses: whether a pause is not known.
    """

    sessions: tuple[tuple[RecordedTurn, ...], ...]
    requests: float
    turns: float
    pause_s: float | None
    lacks_pauses: bool


@dataclass(frozen=True)
class _Placed:
    place: int
    session: int | None
    turn: int


@cache
def recorded_sessions(file: Path) -> RecordedSessions:
    """Return the sessions of a recording.

    Raises:
        UserError: if the file cannot be read, or the unit of its times is not known.
    """
    recording = read_recording(file)
    requests = recording.requests
    pauses_s = recording.pauses_s()
    by_session = sorted(
        (_Placed(place, each.session, each.turn) for place, each in enumerate(requests)),
        key=lambda each: (-1 if each.session is None else each.session, each.turn, each.place),
    )

    def turn_of(calls: Sequence[_Placed]) -> RecordedTurn:
        return RecordedTurn(tuple(each.place for each in calls), pauses_s[calls[0].place])

    found = [tuple(map(turn_of, turns)) for turns in sessions_of(by_session)]
    found.sort(key=lambda turns: turns[0].places[0])
    pauses = [turn.pause_s for turns in found for turn in turns[1:]]
    known = [each for each in pauses if each is not None]
    return RecordedSessions(
        tuple(found),
        len(requests) / len(found),
        fmean(map(len, found)),
        fmean(known) if known else None,
        len(known) < len(pauses),
    )
