"""A recording of traffic: its requests, without their texts, and the unit of its times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tuner.errors import UserError
from tuner.workloads.reading import LARGEST_LENGTH

Unit = Literal["s", "ms", "us", "ns"]
PER_SECOND: dict[Unit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

_FASTEST = 1000.0
_SLOWEST = 1 / 86_400
"""Rates in requests/s beyond which a unit that was not stated is suspect: published traces have 0.1 to 100."""

_EPOCHS = (1.2e9, 2.2e9)
"""Seconds since 1970 of the years 2008 to 2039: times of such a size are those of a clock, whatever their unit."""

_BLOCK_SIZES = tuple(2**power for power in range(13))
"""Sizes of blocks that are tried, in tokens."""

NO_LENGTH = "a prompt's or an answer's tokens"
REPEATED = "a number of its own: it is in the file twice"
"""What requests lack that are left out; see `Recording.left_out`."""


@dataclass(frozen=True)
class RecordedRequest:
    """One request of a recording.

    Attributes:
        at: its arrival on the recording's own clock and in its unit; the place in the file where there are no times.
        input_tokens: length of the prompt.
        output_tokens: length of the answer.
        blocks: numbers of the prompt's blocks from its beginning. Prompts share the blocks that both begin with.
        session: number of the session that it belongs to; None: of none.
        turn: number of its turn in the session, from 0.
        pause: from the last answer of the turn before to its arrival, in the unit of `at`; None: not known, or none.
    """

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: int | None = None
    turn: int = 0
    pause: float | None = None


@dataclass(frozen=True)
class Recording:
    """A recording.

    Attributes:
        file: that it was read from.
        title: of its format.
        requests: in the order of their arrival.
        unit: of the times, by the format; None: the format does not tell.
        dates: whether the times are dates, in seconds since 1970.
        timed: whether there are times.
        block_tokens: tokens of a block; None: the requests have no blocks.
        lacks_block_size: whether the blocks of the file were left out, because nobody says how large they are.
        left_out: number of requests that are left out, by what they lack.
        remarks: what was found or estimated, one sentence each.
    """

    file: Path
    title: str
    requests: tuple[RecordedRequest, ...]
    unit: Unit | None = "s"
    dates: bool = False
    timed: bool = True
    block_tokens: int | None = None
    lacks_block_size: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def times_s(self, unit: Unit | None) -> list[float]:
        """Return the times in seconds; see `in_seconds`."""
        if not self.timed:
            raise UserError(f"{self.file}: a file of {self.title} has no times; give arrivals with a rate")
        if self.dates and unit is not None:
            raise UserError(f"{self.file}: its times are dates, which have no unit {unit}; leave `unit` out")
        return in_seconds(self.file, [each.at for each in self.requests], unit, self.unit, dates=self.dates)

    def pauses_s(self, stated: Unit | None = None) -> list[float | None]:
        """Return the pause before each request in seconds; None: not known, or none.

        Raises:
            UserError: if there are pauses, and nobody tells the unit.
        """
        unit = stated or clock_unit(self.requests[0].at) or self.unit
        if unit is None and any(each.pause is not None for each in self.requests):
            raise UserError(f"{self.file}: the unit of its times is not known; give `unit` to the import")
        per = PER_SECOND[unit or "s"]
        return [None if each.pause is None else each.pause / per for each in self.requests]


def clock_unit(at: float) -> Unit | None:
    """Return the unit in which a time is that of a clock; None for a time since the recording's beginning."""
    return next((unit for unit, each in PER_SECOND.items() if _EPOCHS[0] <= at / each <= _EPOCHS[1]), None)


def in_seconds(
    file: Path, times: Sequence[float], stated: Unit | None, known: Unit | None, *, dates: bool = False
) -> list[float]:
    """Return sorted times in seconds.

    Args:
        file: for messages.
        times: of which there is at least one.
        stated: the unit that the user states.
        known: the unit by the file's format; None: the format does not tell.
        dates: whether the times were dates, whose unit is no guess.

    Raises:
        UserError: if nobody tells the unit, two ways to tell it contradict each other, or the rate is not plausible in
            a unit that the user did not state.
    """
    clock = clock_unit(times[0])
    if stated is None and clock is not None and known not in (None, clock):
        rule = f"its times are those of a clock in {clock}, and its format or its column has {known}"
        raise UserError(f"{file}: {rule}; {_STATE}")
    unit = stated or clock or known
    span, gaps = times[-1] - times[0], len(times) - 1
    rates = {each: gaps * per / span for each, per in PER_SECOND.items()} if span > 0 else {}
    if unit is None:
        as_units = ", ".join(f"{rate:.3g} requests/s in {each}" for each, rate in rates.items())
        raise UserError(f"{file}: the unit of its times is not known ({as_units or 'all are equal'}); {_STATE}")
    if stated is None and not dates and rates and not _SLOWEST <= rates[unit] <= _FASTEST:
        rule = f"read in {unit}, its {len(times)} requests arrive at {rates[unit]:.3g} requests/s"
        raise UserError(f"{file}: {rule}; the unit is suspect: {_STATE}")
    return [at / PER_SECOND[unit] for at in times]


_STATE = f"give the import the unit, or write `unit` beside `file` in `arrivals`: one of {', '.join(PER_SECOND)}"


class Recorder:
    """Collects the requests of a file.

    Attributes:
        left_out: as in `Recording`.
    """

    def __init__(self, file: Path, title: str) -> None:
        self._file, self._title = file, title
        self._requests: list[RecordedRequest] = []
        self._seen: set[Any] = set()
        self._numbers: dict[Any, int] = {}
        self._sessions: dict[Any, int] = {}
        self._ends: list[float | None] = []
        self.left_out: Counter[str] = Counter()

    def is_new(self, key: Any) -> bool:
        """Return whether a request is not in the file yet, by its key (None: it has none), or leave it out."""
        if key is None or key not in self._seen:
            self._seen.add(key)
            return True
        self.left_out[REPEATED] += 1
        return False

    def add(
        self,
        at: float,
        input_tokens: int,
        output_tokens: int,
        blocks: Sequence[Any] = (),
        session: Any = None,
        ended: float | None = None,
        turn: int = 0,
        pause: float | None = None,
    ) -> None:
        """Add a request, or leave it out if it has no tokens; blocks and session are any keys.

        Args:
            at, input_tokens, output_tokens, blocks, session: as in `RecordedRequest`.
            ended: when its answer ended, on the clock of `at`, from which turn and pause follow; None: not known.
            turn, pause: as in `RecordedRequest`, where the file has them.
        """
        if not input_tokens or not output_tokens:
            self.left_out[NO_LENGTH] += 1
            return
        numbers = tuple([self._numbers.setdefault(each, len(self._numbers)) for each in blocks])
        number = None if session is None else self._sessions.setdefault(session, len(self._sessions))
        self._requests.append(RecordedRequest(at, input_tokens, output_tokens, numbers, number, turn, pause))
        self._ends.append(ended)

    def recording(self, form: str, *, has_turns: bool = False, **more: Any) -> Recording:
        """Return what was added, sorted by time.

        Args:
            form: says what to give instead of a file without requests.
            has_turns: whether the file has the turns; else they follow from times and ends.
            more: attributes of the recording.

        Raises:
            UserError: if nothing was added.
        """
        if not self._requests:
            reasons = "; ".join(f"{count} without {reason}" for reason, count in self.left_out.items())
            found = f": left out are {reasons}" if reasons else ""
            raise UserError(f"trace {str(self._file)!r} has no request with tokens{found}; give {form}")
        order = sorted(range(len(self._requests)), key=lambda place: self._requests[place].at)
        ordered = [self._requests[place] for place in order]
        if not has_turns:
            ordered = with_turns(ordered, [self._ends[place] for place in order])
        return Recording(self._file, self._title, tuple(ordered), left_out=dict(self.left_out), **more)


def with_turns(requests: Sequence[RecordedRequest], ends: Sequence[float | None]) -> list[RecordedRequest]:
    """Return requests in the order of their arrival with the turn of each in its session, and the pause before it.

    A request that arrives before the answers to its session's turn have ended belongs to that turn: a fan-out.
    Otherwise it begins the next one, and the time from the last end is its pause. Where an end is not known, the next
    request is another turn, and its pause is not known.

    Args:
        requests: of a recording.
        ends: when the answer to each ended; None: not known.
    """
    turns: dict[int, tuple[int, float | None]] = {}  # of each session: the turn, and the last end in it
    found = []
    for each, end in zip(requests, ends, strict=True):
        if each.session is None:
            found.append(each)
            continue
        turn, last = turns.get(each.session, (-1, None))
        if turn >= 0 and last is not None and each.at < last:
            found.append(replace(each, turn=turn))
            turns[each.session] = turn, None if end is None else max(last, end)
            continue
        pause = None if turn < 0 or last is None else each.at - last
        found.append(replace(each, turn=turn + 1, pause=pause))
        turns[each.session] = turn + 1, end
    return found


def find_block_tokens(requests: Sequence[RecordedRequest]) -> int | None:
    """Return the only size of blocks, a power of 2, with which every prompt has as many blocks as its length needs."""
    with_blocks = [each for each in requests if each.blocks]
    fitting = [
        size for size in _BLOCK_SIZES if all(len(each.blocks) == -(-each.input_tokens // size) for each in with_blocks)
    ]
    return fitting[0] if with_blocks and len(fitting) == 1 else None


def has_short_blocks(requests: Sequence[RecordedRequest], block_tokens: int) -> bool:
    """Return whether a prompt has more blocks than its length needs, so that they are shorter."""
    return any(len(each.blocks) > -(-each.input_tokens // block_tokens) for each in requests)


def number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        found = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def length(value: Any) -> int:
    """Return a number of tokens; 0 for an empty cell, which a request without an answer has.

    Raises:
        ValueError: for anything else.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0
    found = number(value)  # some of BurstGPT's files have 12.0
    if found is None or not 0 <= found <= LARGEST_LENGTH or found != int(found):
        raise ValueError(value)
    return int(found)
