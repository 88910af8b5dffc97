"""Limits of a submission's traffic: a short file can describe more requests than a server has memory for."""

from __future__ import annotations

import math
from pathlib import Path

from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.workloads.schedule import due_times
from tuner.workloads.traffic import TraceArrivals, Traffic, load_traffic

MOST_REQUESTS = 1_000_000
MOST_CLASSES = 100
MOST_DOCUMENTS = 1_000_000
"""Of all classes of a traffic file."""

_RATES = ("rate", "start_rate", "end_rate")


def check_traffic(settings: StudySettings, most: int = MOST_REQUESTS) -> None:
    """Refuse traffic files with too many requests, classes or documents, before a schedule of them is made.

    Args:
        settings: whose workloads are paths of files.
        most: requests of a file.

    Raises:
        UserError: with the number and the limit, or if a file is not valid.
    """
    for path in settings.workload:
        traffic = load_traffic(Path(path))
        documents = sum(each.prefix.documents for each in traffic.classes.values() if each.prefix is not None)
        for what, number, limit in (
            ("requests", _requests(traffic, settings), most),
            ("classes", len(traffic.classes), MOST_CLASSES),
            ("documents", documents, MOST_DOCUMENTS),
        ):
            if number > limit:
                rule = f"the traffic has {number:,.0f} {what}, and {limit:,} are the most of this server"
                raise SettingError("workload", None, rule, "lower them")


def _requests(traffic: Traffic, settings: StudySettings) -> float:
    """Return the requests of a run, by the highest rate where the file has a duration only."""
    given = settings.num_prompts or traffic.requests
    if given is None and isinstance(traffic.arrivals, TraceArrivals):
        given = math.ceil(len(due_times(traffic)) * traffic.requests_per_arrival)
    arrivals = traffic.arrivals.model_dump()
    rates = [float(arrivals[name]) * traffic.requests_per_arrival for name in _RATES if arrivals.get(name)]
    by_time = max([settings.rate or 0.0, *rates]) * (math.inf if traffic.duration_s is None else traffic.duration_s)
    return max(given or by_time, traffic.warmup_requests)
