"""Recorded studies of `docs/reports/data` as records: what `tuner study trials --csv` wrote of them."""

import math
import shlex
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from records.measured import reference_of
from records.metrics import METRICS
from records.trials import (
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    ServerFacts,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from tuner.study.alternatives import front_of_study
from tuner.study.confirmation import nominate
from tuner.study.decide import conclude
from tuner.study.specification.resolve_workload import make_goals
from tuner.use_cases.report.reported import ReportedStudy

DATA = Path(__file__).parents[1] / "docs" / "reports" / "data"
SEVEN_B = {
    "model": {"name": "a model of Qwen2.5-7B's shape", "tokenizer": "t"},
    "workload": {
        "arrivals": {"process": "poisson", "rate": 20.0},
        "requests": 240,
        "max_in_flight": 256,
        "classes": {"all": {"input": {"uniform": [308, 1740]}, "output": {"uniform": [77, 435]}}},
        "seed": 0,
    },
    "objectives": ["p99_tpot_ms:40", "p99_ttft_ms:20", "output_throughput:40"],
    "slos": ["success_rate>=1"],
    "engine": {"name": "vllm", "version": "0.25.1", "devices": ["NVIDIA H200"]},
}
MIX = {
    **SEVEN_B,
    "workload": {
        "arrivals": {"process": "poisson", "rate": 30.0},
        "requests": 360,
        "max_in_flight": 256,
        "timeout_s": 60,
        "system_prompt": 64,
        "classes": {
            "chat": {
                "weight": 5,
                "input": {"lognormal": {"mean": 300, "cv": 0.8, "max": 2000}},
                "output": {"lognormal": {"mean": 200, "cv": 0.6, "max": 600}},
            },
            "documents": {
                "weight": 3,
                "input": {"uniform": [40, 120]},
                "output": {"uniform": [64, 256]},
                "prefix": {"tokens": 2000, "documents": 30, "zipf": 1},
            },
            "summary": {"weight": 1, "input": {"uniform": [2000, 4000]}, "output": {"uniform": [100, 300]}},
            "label": {"weight": 3, "input": {"uniform": [100, 400]}, "output": {"uniform": [4, 16]}},
        },
        "slo": {
            "chat": {"ttft_ms": 250, "tpot_ms": 15},
            "documents": {"ttft_ms": 300, "tpot_ms": 15},
            "summary": {"ttft_ms": 600, "tpot_ms": 20},
            "label": {"e2el_ms": 400},
        },
        "seed": 0,
    },
    "objectives": ["goodput:40", "p99_tpot_ms:30", "p99_ttft_ms:30"],
}

RECORDED_SHAPE, SHAPE = "/tmp/w/m7b", "Qwen/Qwen2.5-7B"
"""The folder that the servers of `h200-mix-reduced.csv` had the shape from, and the known model of this shape."""


def recorded_study(file: str, premise: dict[str, Any]) -> ReportedStudy:
    """Return a recorded study, concluded from its rows.

    The rows have the medians of a trial's benchmarks, not each of them, so a trial has a single repeat here.
    """
    frame = pd.read_csv(DATA / file)
    name = file.removesuffix(".csv")
    trials = tuple(_trial(name, row) for row in frame.to_dict("records"))
    goals = make_goals(premise["objectives"], premise["slos"])
    label = next(filter(partial(_complete, trials), dict.fromkeys(t.label for t in reversed(trials) if t.round)), None)
    members = {trial.number for trial in trials if trial.round and trial.label == label}
    reference = reference_of(trials)
    finalists = [t for t in trials if not t.round and t.number in members] or [
        *([reference] if reference else []),
        *nominate(trials, 3),
    ]
    finalists.sort(key=lambda trial: trial.kind is not TrialKind.BASELINE)
    conclusion = conclude(goals, trials, finalists, label).to_dict()
    devices = premise["engine"]["devices"]
    facts = {"devices": devices, "hardware": devices[0], "drivers": ["580.159.04"]}
    record = StudyRecord(name, trials[0].created_at, Provenance.MEASURED, premise, facts, conclusion)
    front = front_of_study(record, trials).to_dict()
    concluded = StudyRecord(name, record.created_at, record.provenance, premise, facts, {**conclusion, "front": front})
    return ReportedStudy(concluded, trials)


def _complete(trials: Sequence[TrialRecord], label: str | None) -> bool:
    """Return whether every configuration of a group, the defaults among them, was measured in each of its rounds."""
    cells = [(trial.number, trial.round) for trial in trials if trial.round and trial.label == label]
    numbers, rounds = {number for number, _ in cells}, {round_ for _, round_ in cells}
    return 0 in numbers and len(cells) == len(numbers) * len(rounds)


def _value(value: Any) -> Any:
    """Return a value of a configuration; pandas makes floats of whole numbers beside absent ones."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _trial(study: str, row: dict[Any, Any]) -> TrialRecord:
    present = {str(key): value for key, value in row.items() if not (isinstance(value, float) and math.isnan(value))}
    config = {k.removeprefix("config."): _value(v) for k, v in present.items() if k.startswith("config.")}
    moment = datetime.fromisoformat(present["started_at"]) if "started_at" in present else datetime.now().astimezone()
    failure = None
    if "failure_kind" in present:
        what, phase = FailureKind(present["failure_kind"]), Phase(present["failure_phase"])
        failure = Failure(what, phase, str(present.get("failure_message", "")))
    metrics = {key: float(value) for key, value in present.items() if key.rpartition(".")[2] in METRICS}
    repeats = () if failure is not None else (Repeat(0, 0, 300, 300, 0, 60.0, metrics),)
    outcome = TrialOutcome(
        moment,
        moment,
        Provenance.MEASURED,
        "w0",
        "NVIDIA H200",
        {},
        "",
        argv=tuple(SHAPE if word == RECORDED_SHAPE else word for word in shlex.split(str(present.get("argv", "")))),
        repeats=repeats,
        failure=failure,
        server=ServerFacts(prefix_hit_rate=present.get("server.prefix_hit_rate")),
    )
    objectives = {k.removeprefix("objective."): float(v) for k, v in present.items() if k.startswith("objective.")}
    constraints = {k.removeprefix("constraint."): float(v) for k, v in present.items() if k.startswith("constraint.")}
    score = float(present["score"]) if "score" in present else None
    verdict = None if failure is not None else Verdict(objectives, constraints, score)
    label = str(present["label"]) if "label" in present else None
    kind = TrialKind(present["kind"])
    return TrialRecord(
        study, int(row["number"]), int(row["round"]), kind, label, config, config, 1, moment, outcome, verdict
    )
