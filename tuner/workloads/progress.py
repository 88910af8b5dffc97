"""What is known of a run's requests while it lasts: which have begun, failed or missed their SLO, and lower bounds.

A request in flight is censored: it has waited so long without an event, and its latency is at least that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.workloads.results import RequestRecord, RequestSlo, stable_middle

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LATEST_CUT = 0.9
"""Share of requests that have ended from which a trial is not cut: whole, it is worth more than what is left costs."""


@dataclass(frozen=True)
class Seen:
    """A run at a moment; each array has an element for each offered request, in the order of the plan.

    Attributes:
        at_s: seconds since the run began.
        starts_s: when the request should start, nan where that is not known yet.
        begun: whether that has passed.
        ended: whether its answer has ended, in any way.
        failed: whether it has ended without its whole answer.
        missed: whether it misses the SLO of its class, whatever follows.
        least_ms: lower bounds by latency (`ttft`, `tpot`, `e2el`); 0 where nothing is known, and for failed requests.
    """

    at_s: float
    starts_s: Floats
    begun: Bools
    ended: Bools
    failed: Bools
    missed: Bools
    least_ms: Mapping[str, Floats]


class RunProgress:
    """The requests of a run. `window` is the stable middle of an open loop; None: none, or not known yet."""

    def __init__(self, records: Sequence[RequestRecord], slos: Mapping[str, RequestSlo], users: int | None) -> None:
        """Read the records.

        Args:
            records: one for each offered request; one in flight has no end and the status `not_sent`.
            slos: the SLO of each class that has one.
            users: users of a closed loop; None for an open loop.
        """
        self.users = users
        self.window = None if users is not None else stable_middle(records, None)
        self.names = np.array([record.name for record in records])
        self.outputs = np.array([record.planned_output or 0 for record in records], dtype=float)
        self.due_s = np.array([record.due_s for record in records], dtype=float)
        self._starts_s = np.array([record.intended_s for record in records], dtype=float)
        self._firsts_s = np.array([record.first_token_s for record in records], dtype=float)
        self._ends_s = np.array([record.end_s for record in records], dtype=float)
        self._completed = np.array([record.completed for record in records], dtype=bool)
        self._bad = np.array([not slos.get(record.name, RequestSlo()).met(record) for record in records], dtype=bool)
        self._tpot_ms = np.array([record.latencies_ms().get("tpot", 0.0) for record in records])
        self._slos = slos

    def seen(self, at_s: float) -> Seen:
        """Return what was known `at_s` seconds after the run began."""
        begun, ended, answers = (each <= at_s for each in (self._starts_s, self._ends_s, self._firsts_s))
        done, flying = ended & self._completed, begun & ~ended
        waited = np.where(flying, 1000.0 * (at_s - self._starts_s), 0.0)
        ttft = np.where(answers, 1000.0 * (self._firsts_s - self._starts_s), waited)
        since = np.where(flying & answers, 1000.0 * (at_s - self._firsts_s), 0.0)
        tpot = np.where(done, self._tpot_ms, since / np.maximum(self.outputs - 1, 1) * (self.outputs > 1))
        e2el = np.where(done, 1000.0 * (self._ends_s - self._starts_s), waited)
        failed = ended & ~self._completed
        latencies = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
        least = {name: np.where(begun & ~failed, each, 0.0) for name, each in latencies.items()}
        missed = failed | (done & self._bad)
        for name, slo in self._slos.items():
            own = flying & (self.names == name)
            for latency, bound in slo.bounds_ms.items():
                if latency in least:
                    missed |= own & (least[latency] >= bound)
        return Seen(at_s, np.where(begun, self._starts_s, np.nan), begun, ended, failed, missed, least)

    @property
    def latest_cut_s(self) -> float:
        """Seconds until more than `LATEST_CUT` of the requests of a finished run have ended."""
        ends = np.sort(self._ends_s)
        return float(ends[min(len(ends) - 1, math.floor(LATEST_CUT * len(ends)))])
