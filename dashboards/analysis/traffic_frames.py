"""What traffic did, as pandas frames: trade-offs between classes, requests by prompt length, latency by rate.

Nothing that died is left out: a trial that failed keeps its column, a request that failed its place by what was
planned. The frames of a trial are read from what its loads left in its folder of artifacts.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from storage.errors import StorageError
from storage.records import StudyRecord, TrialKind, TrialRecord

WORST, ALL = "worst", "all"
"""Rows of the matrix that are no classes: the worst class, and all requests together."""

_SHARE = "goodput_share"
_COLUMN_TEXT = 40
_SHORTEST_BIN = 64
_RATE_COLUMNS = (
    *("rate", "held", "missed", "offered", "completed", "success_rate", "goodput_share", "goodput"),
    *("p50_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "p95_tpot_ms"),
)
_SERVER_COLUMNS = ("at_s", "running", "waiting", "kv_usage", "preemptions")


@dataclass(frozen=True)
class Configuration:
    """A configuration of the matrix: its trial and, of a finalist, what its rounds measured, which counts.

    `shares` are of offered requests within their SLO, the mean over the measurements that succeeded; None where one of
    them lacks it. `failure` says what failed and how often; `state` and `score` are the trial's own.
    """

    number: int
    text: str
    baseline: bool
    state: str
    score: float | None
    failure: str | None
    shares: Mapping[str, float | None]

    @property
    def column(self) -> str:
        """The name of its column: `#12 max_num_seqs=64 (engine_crash)`."""
        short = self.text if len(self.text) <= _COLUMN_TEXT else self.text[: _COLUMN_TEXT - 1] + "…"
        return f"#{self.number} {short}" + (f" ({self.failure})" if self.failure else "")


def sent_classes(study: StudyRecord) -> list[str]:
    """Return the classes of requests that the study sends; none if its load is no traffic."""
    return [
        prefix + name
        for prefix, load in _loads(study)
        for name, each in (load.get("classes") or {}).items()
        if each.get("weight", 1) > 0
    ]


def promises_anything(study: StudyRecord) -> bool:
    """Return whether a class was promised something; without that there is no share within SLO."""
    return any(load.get("slo") for _, load in _loads(study))


def _loads(study: StudyRecord) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the study's loads, each with what its classes' names begin with: nothing where there is one load."""
    workload = study.premise.get("workload")
    if not isinstance(workload, Mapping):
        return []
    several = workload.get("loads")
    return [("", workload)] if several is None else [(f"{name}.", load) for name, load in several.items()]


def at_own_rates(study: StudyRecord) -> bool:
    """Return whether each configuration was measured at its own capacity, so that shares do not compare loads alike."""
    return any(str(each).partition(":")[0] == "capacity" for each in study.premise.get("objectives", ()))


def percent(share: float | None) -> str:
    """Return a share in [0, 1] as people read it; only all is 100%, and a dash is absent."""
    if share is None or math.isnan(share):
        return "–"
    shown = round(100 * share, 1)
    return f"{shown if share >= 1 else min(shown, 99.9):g}%"


def rows_of(study: StudyRecord) -> dict[str, str]:
    """Return the rows of the matrix, each with its metric; a class may be called `all`."""
    classes = sent_classes(study)
    rows = {name: f"{name}.{_SHARE}" for name in classes} | {WORST: f"{WORST}.{_SHARE}"}
    return rows | {ALL if ALL not in classes else "all classes": _SHARE}


def configurations(study: StudyRecord, records: Sequence[TrialRecord]) -> list[Configuration]:
    """Return the configurations that were tried to an end, whatever end, by the number of their trial."""
    measured: dict[int, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda record: (record.number, record.round)):
        if record.outcome is not None:
            measured.setdefault(record.number, []).append(record)
    rows = rows_of(study)
    return [_configuration(found, rows) for found in measured.values()]


def _configuration(records: Sequence[TrialRecord], rows: Mapping[str, str]) -> Configuration:
    trial = records[0]
    return Configuration(
        number=trial.number,
        text=(trial.label if not trial.round else None) or _config_text(trial.config),
        baseline=trial.kind is TrialKind.BASELINE,
        state=trial.state,
        score=trial.verdict.score if trial.verdict else None,
        failure=_failure(records),
        shares={row: _mean_share(records, metric) for row, metric in rows.items()},
    )


def _config_text(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if value is not None) or "defaults"


def _failure(records: Sequence[TrialRecord]) -> str | None:
    """Return the failure's kind, of a finalist `1 of 4 failed: engine_crash`; None if nothing failed."""
    died = [record.outcome for record in records if record.outcome is not None and not record.outcome.succeeded]
    if not died:
        return None
    kinds = ", ".join(dict.fromkeys(each.failure.kind.value if each.failure else "no repeat" for each in died))
    return kinds if len(records) == 1 else f"{len(died)} of {len(records)} failed: {kinds}"


def _mean_share(records: Sequence[TrialRecord], metric: str) -> float | None:
    rounds = [record for record in records if record.round]  # the search's own measurement helped to choose a finalist
    judged = [record.outcome for record in rounds or records]
    sound = [outcome for outcome in judged if outcome is not None and outcome.succeeded]
    values = [outcome.metric(metric) for outcome in sound]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def best_of_rows(found: Sequence[Configuration]) -> dict[str, list[int]]:
    """Return the trials with the highest share of each row, ties together; that it is beyond the noise is not said."""
    best: dict[str, list[int]] = {}
    for row in found[0].shares if found else ():
        known = {each.number: share for each in found if (share := each.shares[row]) is not None}
        highest = max(known.values(), default=0.0)
        best[row] = [number for number, share in known.items() if math.isclose(share, highest, abs_tol=1e-9)]
    return best


def select(found: Sequence[Configuration], most: int) -> list[Configuration]:
    """Return at most `most` configurations: the defaults, the best of each row, then by feasibility and score."""
    winners = {number for numbers in best_of_rows(found).values() for number in numbers}

    def rank(each: Configuration) -> tuple[int, float, int]:
        order = {"ok": 2, "infeasible": 3}.get(each.state, 4)
        place = 0 if each.baseline else 1 if each.number in winners else order
        return place, -math.inf if each.score is None else -each.score, each.number

    return sorted(sorted(found, key=rank)[:most], key=lambda each: each.number)


def left_out(found: Sequence[Configuration], shown: Sequence[Configuration]) -> str:
    """Return `48 more, 6 of them failed (engine_crash 6)`; empty if all are shown."""
    rest = [each for each in found if each not in shown]
    kinds = Counter(each.failure for each in rest if each.failure)
    if not kinds:
        return f"{len(rest)} more" if rest else ""
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{len(rest)} more, {sum(kinds.values())} of them failed ({counts})"


def matrix(found: Sequence[Configuration], best: Mapping[str, Sequence[int]]) -> pd.DataFrame:
    """Return `class`, a column a configuration with its shares, and `best`: the numbers of the highest, `#3 #7`."""
    frame = pd.DataFrame({"class": list(best)}, dtype=object)
    for each in found:
        frame[each.column] = pd.Series([each.shares[row] for row in best], dtype="float64")
    frame["best"] = [" ".join(f"#{number}" for number in numbers) for numbers in best.values()]
    return frame


def tradeoff_frame(study: StudyRecord, records: Sequence[TrialRecord], most: int | None = None) -> pd.DataFrame:
    """Return the matrix of the study: classes, `worst` and `all` by configurations; see `matrix` and `select`.

    The best of a row is the best of all configurations, shown or not.
    """
    found = configurations(study, records)
    return matrix(found if most is None else select(found, most), best_of_rows(found))


def numbered_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a trial's loads, `requests-N.parquet` by the name `requests-*.parquet`, in N's order."""
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
    found = {int(match[1]): file for file in folder.glob(name) if (match := pattern.fullmatch(file.name))}
    return [found[index] for index in sorted(found)]


def requests_by_length_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return every offered request of the records, counted by class and by the tokens planned for its prompt.

    Columns: `class`; `from` and `to`, the bin, 1 to 64 and then doubling, absent where nothing was planned; `offered`,
    `completed`, and one a status other than completed that occurs.

    Raises:
        StorageError: for a file that cannot be read.
    """
    counts: dict[tuple[str, int], Counter[str]] = {}
    for file in files:
        with _readable(file):
            requests = pd.read_parquet(file, columns=["name", "status", "planned_input"])
        for name, status, tokens in requests.itertuples(index=False, name=None):
            counts.setdefault((name, _upper_edge(tokens)), Counter())[status] += 1
    statuses = ["completed", *sorted({status for found in counts.values() for status in found} - {"completed"})]
    rows = sorted(counts.items(), key=lambda row: (row[0][0], row[0][1] or math.inf))
    cells = [
        [name, lower_edge(upper), upper or None, sum(found.values()), *(found[status] for status in statuses)]
        for (name, upper), found in rows
    ]
    frame = pd.DataFrame(cells, columns=["class", "from", "to", "offered", *statuses], dtype=object)
    return frame.astype({"from": "Int64", "to": "Int64", "offered": "int64"} | dict.fromkeys(statuses, "int64"))


def _upper_edge(tokens: float | None) -> int:
    """Return the last length of the bin; 0 where it is not known."""
    if tokens is None or math.isnan(tokens):
        return 0
    return max(_SHORTEST_BIN, 1 << (int(tokens) - 1).bit_length()) if tokens > 0 else _SHORTEST_BIN


def lower_edge(upper: int) -> int | None:
    """Return the first length of the bin that ends at `upper`; None for 0."""
    if not upper:
        return None
    return 1 if upper == _SHORTEST_BIN else upper // 2 + 1


def rate_frame(file: Path) -> pd.DataFrame:
    """Return the rates that a search for the capacity tried, by rate, and which of them is the knee.

    `knee` is true of the highest rate that held below every rate that missed, over all searches of the trial: of none
    if the lowest rate missed.

    Raises:
        StorageError: if the file cannot be read.
    """
    with _readable(file):
        frame = pd.read_csv(file, usecols=list(_RATE_COLUMNS), dtype={"held": str, "missed": str})
        numbers = [name for name in _RATE_COLUMNS if name not in ("held", "missed", "offered", "completed")]
        frame[numbers] = frame[numbers].astype("float64")
    frame["missed"] = frame["missed"].fillna("").astype(object)
    held = frame["held"] = frame["held"].eq("True").astype(bool)
    below = held & (frame["rate"] < min(frame.loc[~held, "rate"], default=math.inf))
    frame["knee"] = below & (frame["rate"] == max(frame.loc[below, "rate"], default=math.nan))
    return frame.sort_values("rate", kind="stable", ignore_index=True)


def server_frame(files: Sequence[Path]) -> pd.DataFrame:
    """Return the server's state over the loads, one after the other: `load` from 0, `at_s` from the first one's start.

    Raises:
        StorageError: for a file that cannot be read.
    """
    parts = [pd.DataFrame(columns=[*_SERVER_COLUMNS, "load"], dtype="float64")]
    begin = 0.0
    for load, file in enumerate(files):
        with _readable(file):
            part = pd.read_csv(file, usecols=list(_SERVER_COLUMNS)).astype("float64")
        part["at_s"] += begin
        begin = max(part["at_s"], default=begin)
        parts.append(part.assign(load=float(load)))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StorageError(f"{file} cannot be read: {reason}") from error
