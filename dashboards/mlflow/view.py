"""The view in which MLflow's UI opens a study: its trials without the rounds, the best score first, in ten columns.

MLflow keeps a shared view as a tag of the experiment, which `viewStateShareKey` in a link names. The view therefore
needs nothing in the browser's storage.

This module does not import MLflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from dashboards.mlflow.note import NOTE_TAG, escaped
from dashboards.mlflow.run_layout import FLAGS_METRIC, mlflow_name, total_seconds_metric
from storage.records import Provenance, StudyRecord, TrialKind

COLUMNS = 10
"""Columns beside those that MLflow always shows: the run's name, its time and its duration."""

_KEY = "tuner"
VIEW_TAG = f"mlflow.sharedViewState.{_KEY}"
"""The tag of the experiment that has the view."""

_KIND = "custom_model_development"
"""The kind of experiment for which MLflow shows metrics and charts first, instead of traces and prompts."""

_MODE = {"workflowType": "machine_learning"}
"""MLflow's training mode; its GenAI mode has no metrics."""

_ORDER = {"orderByKey": "metrics.`score`", "orderByAsc": "false", "startTime": "ALL", "lifecycleFilter": "Active"}
_WITHOUT_ROUNDS = f"tags.kind != '{TrialKind.CONFIRM.value}'"
_COMMON = ("output_throughput", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms", "request_throughput")
_COST = "cost_per_million_output_tokens"

_NAME_PX, _TIME_PX, _DURATION_PX = 150, 150, 90
_LEAST_PX, _MOST_PX, _LETTER_PX, _MARGIN_PX = 80, 210, 7, 24
_RUN_NAME = "attributes.`Run Name`"


def experiment_tags(study: StudyRecord, experiment: str, run_id: str) -> dict[str, str]:
    """Return the tags of a study's experiment: its kind, the view, and a description with a link to the parent run.

    Args:
        study: the study.
        experiment: id of its experiment.
        run_id: id of its parent run.
    """
    link = f"[{escaped(study.name)}](#/experiments/{experiment}/runs/{run_id}?{urlencode(_MODE)})"
    note = f"The run {link} has the study's result, its report and its plots. #0 is the engine's defaults."
    return {"mlflow.experimentKind": _KIND, VIEW_TAG: view_of(study), NOTE_TAG: note}


def runs_query(tags: Mapping[str, str]) -> str:
    """Return the query of the link to an experiment's runs: its view, and without one the order by score.

    Args:
        tags: of the experiment.
    """
    return urlencode({**({"viewStateShareKey": _KEY} if VIEW_TAG in tags else _ORDER), **_MODE})


def view_of(study: StudyRecord) -> str:
    """Return the view of a study as MLflow's UI reads it, in JSON."""
    columns = columns_of(study)
    widths = {column: _width(column) for column in columns}
    order = [_RUN_NAME, *columns, "runDateAndNestInfo", "duration"]
    state = {
        **_ORDER,
        "orderByAsc": False,
        "searchFilter": _WITHOUT_ROUNDS,
        "selectedColumns": columns,
        "columnOrder": order,
        "columnWidths": {_RUN_NAME: _NAME_PX, **widths, "runDateAndNestInfo": _TIME_PX, "duration": _DURATION_PX},
    }
    return json.dumps(state)


def columns_of(study: StudyRecord) -> list[str]:
    """Return the columns of a study by MLflow's names, `COLUMNS` of them, the most important one first.

    They are the score and the state, metrics, the cost where the study has a price, the number of flags, the failure,
    and for a simulated study the simulated duration. The study's objectives come first among the metrics.
    """
    last = [_metric(FLAGS_METRIC), "tags.`failure`"]
    if study.facts.get("price"):
        last.insert(0, _metric(_COST))
    if study.provenance is Provenance.SIMULATED:
        last.append(_metric(total_seconds_metric(study.provenance)))
    first = [_metric("score"), "tags.`state`"]
    metrics = list(dict.fromkeys(map(_metric, _metrics(study))))
    return [*first, *metrics[: COLUMNS - len(first) - len(last)], *last]


def _metrics(study: StudyRecord) -> list[str]:
    from dashboards.analysis.tradeoff import has_class_slos  # imports pandas, which the link does not need

    goodput = ["goodput"] if has_class_slos(study) else []
    return [*_names(study.premise.get("objectives", ())), *goodput, *_COMMON, *_names(study.premise.get("slos", ()))]


def _names(texts: Sequence[object]) -> list[str]:
    """Return the metrics of objectives (`NAME:WEIGHT`) and of SLOs (`NAME<LIMIT`)."""
    names = (re.split(r"[:<>=]", text)[0].strip() for text in texts if isinstance(text, str))
    return [name for name in names if name]


def _metric(name: str) -> str:
    return f"metrics.`{mlflow_name(name)}`"


def _width(column: str) -> int:
    """Return the width of a column in pixels."""
    name = column.partition("`")[2].rstrip("`")
    return min(_MOST_PX, max(_LEAST_PX, _MARGIN_PX + _LETTER_PX * len(name)))
