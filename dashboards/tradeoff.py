"""The trade-off matrix of a study: for each request class and configuration, the share of requests within its SLO.

Trials that failed or were cut short keep their column, without shares and with the reason in its name.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from records.trials import StudyRecord, TrialKind, TrialRecord

WORST, ALL = "worst", "all"
"""The two rows of the matrix that are not classes: the worst class, and all requests together."""

_SHARE_METRIC = "goodput_share"
_MAX_COLUMN_TEXT = 40


@dataclass(frozen=True)
class Configuration:
    """A column of the matrix: a measured configuration with its share of requests within the SLO, by row.

    Attributes:
        text: the trial's label, or `name=value` of each parameter that is set.
        baseline: True for the defaults.
        state: the trial's own state, see `TrialRecord.state`.
        failure: the kinds of failure, for a finalist `1 of 4 failed: engine_crash`, or `cut short`; None without one.
        shares: row to share of offered requests within their SLO, in [0, 1]. It is the mean over the successful rounds
            of a finalist, else over the trial itself; None where a measurement lacks it.
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
        """The name of the column: `#12 max_num_seqs=64 (engine_crash)`."""
        short = self.text if len(self.text) <= _MAX_COLUMN_TEXT else self.text[: _MAX_COLUMN_TEXT - 1] + "…"
        return f"#{self.number} {short}" + (f" ({self.failure})" if self.failure else "")


def has_tradeoff(study: StudyRecord) -> bool:
    """Return whether request classes of the study have SLOs."""
    return has_class_slos(study) and bool(request_classes(study))


def request_classes(study: StudyRecord) -> list[str]:
    """Return the request classes that the study sends; an empty list if its workload is not traffic.

    In a suite of several workloads, a class is called `WORKLOAD.CLASS`.
    """
    return [
        prefix + name
        for prefix, workload in _workloads(study)
        for name, each in (workload.get("classes") or {}).items()
        if each.get("weight", 1) > 0
    ]


def has_class_slos(study: StudyRecord) -> bool:
    """Return True if a request class has an SLO; without one, there is no share of requests within it."""
    return any(workload.get("slo") for _, workload in _workloads(study))


def _workloads(study: StudyRecord) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the study's workloads, each with the prefix of its class names; the prefix of a single one is empty."""
    workload = study.premise.get("workload")
    if not isinstance(workload, Mapping):
        return []
    suite = workload.get("loads")
    return [("", workload)] if suite is None else [(f"{name}.", each) for name, each in suite.items()]


def measured_at_capacity(study: StudyRecord) -> bool:
    """Return True if each configuration received its own capacity as request rate, so that rates differ by column."""
    return any(str(each).partition(":")[0] == "capacity" for each in study.premise.get("objectives", ()))


def percent(share: float | None) -> str:
    """Format a share in [0, 1] as a percentage; only a share of 1 is shown as 100%, and an absent one as a dash."""
    if share is None or math.isnan(share):
        return "–"
    shown = round(100 * share, 1)
    return f"{shown if share >= 1 else min(shown, 99.9):g}%"


def metric_by_row(study: StudyRecord) -> dict[str, str]:
    """Return the metric of each row of the matrix; the row of all requests is renamed if a class is called `all`."""
    classes = request_classes(study)
    rows = {name: f"{name}.{_SHARE_METRIC}" for name in classes} | {WORST: f"{WORST}.{_SHARE_METRIC}"}
    return rows | {ALL if ALL not in classes else "all classes": _SHARE_METRIC}


def finished_configurations(study: StudyRecord, records: Sequence[TrialRecord]) -> list[Configuration]:
    """Return the configurations of all finished trials, failed ones included, by trial number."""
    measurements: dict[int, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda record: (record.number, record.round)):
        if record.outcome is not None:
            measurements.setdefault(record.number, []).append(record)
    rows = metric_by_row(study)
    return [_configuration(each, rows) for each in measurements.values()]


def _configuration(records: Sequence[TrialRecord], rows: Mapping[str, str]) -> Configuration:
    """Return a column from the measurements of one trial by round, and the metric of each row."""
    trial = records[0]
    return Configuration(
        number=trial.number,
        text=(trial.label if not trial.round else None) or _config_text(trial.config),
        baseline=trial.kind is TrialKind.BASELINE,
        state=trial.state,
        score=trial.score,
        failure=_failure(records),
        shares={row: _mean_share(records, metric) for row, metric in rows.items()},
    )


def _config_text(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if value is not None) or "defaults"


def _failure(records: Sequence[TrialRecord]) -> str | None:
    failed = [record.outcome for record in records if record.outcome is not None and not record.outcome.succeeded]
    if not failed:
        return None
    if failed[0].cut is not None:
        return "cut short"
    kinds = ", ".join(dict.fromkeys(each.failure.kind.value if each.failure else "no repeat" for each in failed))
    return kinds if len(records) == 1 else f"{len(failed)} of {len(records)} failed: {kinds}"


def _mean_share(records: Sequence[TrialRecord], metric: str) -> float | None:
    # A finalist was selected for its search measurement, which is therefore biased upwards; only rounds count.
    rounds = [record for record in records if record.round]
    outcomes = [record.outcome for record in rounds or records]
    successes = [outcome for outcome in outcomes if outcome is not None and outcome.succeeded]
    values = [outcome.metric(metric) for outcome in successes]
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def best_by_row(configurations: Sequence[Configuration]) -> dict[str, list[int]]:
    """Return the trial numbers with the highest share of each row, ties included; noise is not taken into account."""
    best: dict[str, list[int]] = {}
    for row in configurations[0].shares if configurations else ():
        shares = {each.number: share for each in configurations if (share := each.shares[row]) is not None}
        highest = max(shares.values(), default=0.0)
        best[row] = [number for number, share in shares.items() if math.isclose(share, highest, abs_tol=1e-9)]
    return best


def marked_by_row(configurations: Sequence[Configuration], best: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return the trials to mark in each row: those of `best`, or none, see `is_distinction`."""
    counts = {row: sum(each.shares[row] is not None for each in configurations) for row in best}
    return {row: numbers if is_distinction(len(numbers), counts[row]) else [] for row, numbers in best.items()}


def is_distinction(best: int, measured: int) -> bool:
    """Return whether the best of a row are marked: they are fewer than half of the measured ones, or a single one."""
    return best == 1 or 2 * best < measured


def all_met(configurations: Sequence[Configuration]) -> str | None:
    """Return a sentence if all requests of all measured configurations were within their SLO; else None."""
    shares = [share for each in configurations for share in each.shares.values() if share is not None]
    if not shares or min(shares) < 1:
        return None
    measured = sum(any(share is not None for share in each.shares.values()) for each in configurations)
    without = len(configurations) - measured
    rest = f" ({without} without a result)" if without else ""
    return f"all requests of all {measured} measured configurations were within their SLO{rest}"


def select_columns(configurations: Sequence[Configuration], limit: int) -> list[Configuration]:
    """Return at most `limit` configurations, by number.

    The defaults come first, then the best of each row, feasible and infeasible ones, and those without a result, each
    by score.
    """
    winners = {number for numbers in best_by_row(configurations).values() for number in numbers}

    def rank(each: Configuration) -> tuple[int, float, int]:
        order = {"ok": 2, "infeasible": 3}.get(each.state, 4)
        place = 0 if each.baseline else 1 if each.number in winners else order
        return place, -math.inf if each.score is None else -each.score, each.number

    return sorted(sorted(configurations, key=rank)[:limit], key=lambda each: each.number)


def omitted_columns(configurations: Sequence[Configuration], shown: Sequence[Configuration]) -> str:
    """Count the columns that are not shown, `9 more, 2 of them without a result (cut short 2)`; empty if all are."""
    rest = [each for each in configurations if each not in shown]
    kinds = Counter(each.failure for each in rest if each.failure)
    if not kinds:
        return f"{len(rest)} more" if rest else ""
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{len(rest)} more, {sum(kinds.values())} of them without a result ({counts})"


def share_matrix(configurations: Sequence[Configuration], best: Mapping[str, Sequence[int]]) -> pd.DataFrame:
    """Return the trade-off matrix as a frame, one row for each key of `best`.

    Columns: `class`, the row's name; one for each configuration, called `Configuration.column`, with shares in [0, 1]
    and NaN where absent; `best`, the trial numbers with the highest share, as `#3 #7`.
    """
    frame = pd.DataFrame({"class": list(best)}, dtype=object)
    for each in configurations:
        frame[each.column] = pd.Series([each.shares[row] for row in best], dtype="float64")
    frame["best"] = [" ".join(f"#{number}" for number in numbers) for numbers in best.values()]
    return frame


def tradeoff_frame(study: StudyRecord, records: Sequence[TrialRecord], limit: int | None = None) -> pd.DataFrame:
    """Return the trade-off matrix of a study of traffic: classes, `worst` and `all` by configurations.

    `limit` is the most configurations to return, chosen by `select_columns`; None returns all.

    Returns:
        the frame of `share_matrix`. `best` covers all configurations, also those beyond `limit`.
    """
    configurations = finished_configurations(study, records)
    shown = configurations if limit is None else select_columns(configurations, limit)
    return share_matrix(shown, best_by_row(configurations))
