"""Where recorded traffic comes from: a file of this machine, one that a server has, or counters of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

from tuner.errors import SettingError, UserError, as_text
from tuner.http import HttpError, ReadLimits, fetch
from tuner.workloads.traces.prometheus import SELECTED

PROMETHEUS = "prometheus"
"""The format whose URL may be that of Prometheus itself."""

LARGEST = 256 * 2**20
"""The most bytes of a file that is fetched."""
_DEADLINE_S = 600.0
_REDIRECTS = 5
_QUERY = "/api/v1/query_range"
_MOST_STEPS = 11_000
"""Prometheus answers with at most so many values of a series."""


@dataclass(frozen=True)
class CounterRange:
    """Which counters of Prometheus are asked for: the last seconds, the seconds of a step, and a label selector."""

    last_s: float = 86400.0
    step_s: float = 60.0
    select: str = ""


@contextmanager
def traffic_file(source: str, form: str | None, asked: CounterRange) -> Iterator[Path]:
    """Yield the file of a source; one that is fetched is removed afterwards.

    Args:
        source: a path, or a URL of `http` or `https`.
        form: name of the format; of `prometheus`, a URL without a query is that of Prometheus.
        asked: of Prometheus.

    Raises:
        UserError: if the URL has no such file, or a larger one.
    """
    try:
        parts, port = urlsplit(source), urlsplit(source).port
    except ValueError:  # its text may have a password
        raise UserError("the URL has no valid host and port; correct it") from None
    if parts.scheme not in ("http", "https"):
        yield Path(source)
        return
    url = source
    if form == PROMETHEUS and not parts.path.endswith(_QUERY):
        url = f"{source.rstrip('/')}{_QUERY}?{_query(asked, time.time())}"
    shown = f"{parts.scheme}://{parts.hostname or ''}{'' if port is None else f':{port}'}{parts.path}"
    with TemporaryDirectory(prefix="tuner-traffic-") as folder:
        file = Path(folder) / (PurePosixPath(parts.path).name or "counters.json")
        file.write_bytes(_fetched(url, shown))
        try:
            yield file
        except SettingError as error:
            rule, remedy = (text.replace(str(file), shown) for text in (error.rule, error.remedy))
            raise SettingError(error.field, error.value, rule, remedy) from None
        except UserError as error:
            raise UserError(str(error).replace(str(file), shown)) from None


def _query(asked: CounterRange, end: float) -> str:
    """Return the query of a range of counters."""
    if asked.last_s / asked.step_s > _MOST_STEPS:
        rule = f"Prometheus answers with at most {_MOST_STEPS:,} steps"
        raise SettingError("step", asked.step_s, rule, f"give {{step}} {asked.last_s / _MOST_STEPS:.0f}s or more")
    labels = ",".join(each for each in (f'__name__=~"{SELECTED}"', asked.select) if each)
    times = {"start": f"{end - asked.last_s:.3f}", "end": f"{end:.3f}", "step": f"{asked.step_s:g}"}
    return urlencode({"query": f"{{{labels}}}", **times})


def _fetched(url: str, shown: str) -> bytes:
    try:
        reply = fetch(url, ReadLimits(_DEADLINE_S, LARGEST), redirects=_REDIRECTS)
    except HttpError as error:
        raise UserError(as_text(f"{shown}: {error.problem}; {error.remedy or 'give another address'}")) from None
    if reply.status != 200 and not reply.body.lstrip().startswith(b'{"status":"error"'):
        raise UserError(f"{shown}: the answer is HTTP {reply.status}; give the address of a file")
    return reply.body
