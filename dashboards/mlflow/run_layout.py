"""The contents of runs in MLflow: parameters, metrics, tags and artifacts, and the note of a study.

The note is made of the study's conclusion (`Conclusion.to_dict` in `tuner.study.conclusion`).

The run of a trial has these metrics:

- `NAME`: a metric of `records.metrics` over all repeats, in its unit, and `score`;
- `flags_changed`: the number of parameters whose value differs from the engine's default;
- `repeat/NAME`: with several repeats, the metrics of objectives and SLOs of each, with its index as the step;
- `server/NAME`: the fields of `ServerFacts`;
- `timing/PHASE_s`: the duration of each phase in seconds, and `timing/total_s`. A simulated trial has
  `simulated/PHASE_s` and `simulated/total_s` instead, which are predictions; the run's own duration is what the
  simulation took;
- `constraint/NAME`: the violation of each constraint, satisfied at or below 0.

The parent run, which is the study's, has `trial/NAME`, the objectives and the score of each trial with the trial's
number as the step, and `best/NAME`, the metrics of the best configuration (`best_of`).

This module does not import MLflow.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from records.measured import best_trial, metrics_of
from records.trials import (
    RATES_FILE,
    FailureKind,
    Provenance,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    configuration_changes,
)

NO_WINNER = "none"


@dataclass(frozen=True)
class Best:
    """The best configuration.

    Attributes:
        name: short name of its trial, or `none` if the conclusion has no winner.
        metrics: what was measured of it, see `records.measured.measured`, and its score.
        moment: when the last trial ended.
        step: higher for each later state of a study, because MLflow shows the value of the highest step.
    """

    name: str
    metrics: Mapping[str, float | None]
    moment: datetime
    step: int


def best_of(study: StudyRecord, trials: Sequence[TrialRecord]) -> Best | None:
    """Return the best configuration of a study, of its finished trials with their rounds.

    None: there is neither a conclusion nor a feasible trial.
    """
    ends = [trial.outcome.ended_at for trial in trials if trial.outcome is not None]
    if not ends:
        return None
    moment, highest = max(ends), max(trial.number for trial in trials)
    if not study.conclusion:
        found = _best_of_search(trials)
        if found is None:
            return None
        return Best(found.name, {**metrics_of(found.outcome), "score": found.score}, moment, found.number)
    best = best_trial(study.conclusion, trials)
    if best is None:
        return Best(NO_WINNER, {}, moment, highest + 1)
    return Best(best.name, {**best.metrics, "score": best.score}, moment, highest + 1)


def _best_of_search(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the feasible trial with the highest score; rounds do not count."""
    scored = [(trial.score, trial) for trial in trials if trial.round == 0 and trial.state == "ok"]
    ranked = [(score, trial) for score, trial in scored if score is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


NOTE_TAG = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def note_of(study: StudyRecord) -> str | None:
    """Return the description of a study that has a conclusion; None for one without."""
    conclusion = study.conclusion or {}
    if not conclusion.get("reason"):
        return None
    parts = [f"**{escaped(conclusion['reason'])}**"]
    if study.provenance is Provenance.SIMULATED:
        parts.insert(0, "Simulated, not measured: every number is a prediction of the simulator.")
    parts += _finalists(conclusion.get("contenders", ()), conclusion.get("reference"))
    parts += _flag_effects(conclusion.get("winner"), study.flag_effects)
    if lines := conclusion.get("would_help"):
        parts += [
            "What would help, but the study's settings exclude it (predicted):",
            "\n".join(f"- {escaped(each)}" for each in lines),
        ]
    return "\n\n".join(parts)


def _finalists(contenders: Sequence[Mapping[str, Any]], reference: int | None) -> list[str]:
    if not contenders:
        return []
    metrics = list(dict.fromkeys(name for contender in contenders for name in contender["metrics"]))
    rows = [
        [
            f"#{contender['number']}",
            _interval(contender["score"]),
            *(_interval(contender["metrics"].get(name)) for name in metrics),
            escaped(contender["disqualified"] or ""),
        ]
        for contender in contenders
    ]
    against = "the reference" if reference is None else f"#{reference}"
    return [
        f"Finalists relative to {against}, as ratios [95 % confidence interval]; 1 means equal:",
        _table(["", "score", *metrics, "disqualified"], rows),
    ]


def _flag_effects(winner: int | None, effects: Sequence[Mapping[str, Any]]) -> list[str]:
    if not effects:
        return []
    metrics = list(effects[0]["metrics"])
    rows = [
        [
            _code(f"{each['name']}={each['value']}"),
            _code("unset" if each["default"] is None else each["default"]),
            _interval(each, 2),
            *(f"{each['metrics'][name]:.2f}" for name in metrics),
            f"{100 * each['needed']:.0f} %",
        ]
        for each in effects
    ]
    title = (
        f"Flag effects of #{winner}: each value with the flag relative to the value with the flag reset to its "
        f"default, estimated from {effects[0]['trials']} trials [95 % confidence interval]. Failure risk: the "
        "probability that the server fails or misses an SLO with the flag reset to its default."
    )
    return [title, _table(["flag", "default", "score", *metrics, "failure risk"], rows)]


def _interval(ratio: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Return a ratio and its interval, with no-break spaces so that a cell stays on one line."""
    if ratio is None:
        return "–"
    if ratio["low"] is None or ratio["high"] is None:
        return f"{ratio['ratio']:.{digits}f}"
    text = f"{ratio['ratio']:.{digits}f} [{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"
    return text.replace(" ", _NO_BREAK_SPACE)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return text on one line, with Markdown's special characters escaped."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in " ".join(text.split()))


def _code(value: object) -> str:
    """Return a value as inline code for a table cell."""
    return f"`{' '.join(str(value).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


ARTIFACTS = (
    *("server.log", "command.txt", "bench-*.json", "bench-*.log"),
    *("requests-*.jsonl.gz", "requests-*.json", "requests-*.log", "server-*.csv", RATES_FILE),
)
"""Files of a trial's folder that are logged; `dashboards.plots.pictures` draws from some of them."""

_WITHOUT_TAG = ("front", "would_help")
"""Parts of a conclusion that are too long for tags; `conclusion.json` has them."""

_WITHOUT_FACT_TAG = ("default_config", "importance", "front")
"""Facts that are no tags of the parent run: the trial of the defaults has them as parameters, or pictures show them."""

_WITHOUT_PARAM = ("space", "files")
"""Parts of a premise that are no parameters of the parent run."""

INHERITED_TAGS = ("engine", "version")
"""Tags of the study that its trials get as well."""

STUDY_KIND = "study"
"""The parent run's value of the tag `kind`, which has the kind of each trial."""

RUN_NAME_LIMIT = 250
"""Characters of a run's name."""

_EXPERIMENT_LIMIT = 500
_PARAM_LIMIT = 6000
_TAG_LIMIT = 5000
_INVALID = re.compile(r"[^\w\-./ ]")


FLAGS_METRIC = "flags_changed"

DEFAULT = "default"
"""A parameter's value that is left to the engine and not known."""

_PARTIAL = (TrialKind.BASELINE, TrialKind.CURRENT, TrialKind.ENQUEUED, TrialKind.RECIPE, TrialKind.REDUCED)
"""Kinds of trials whose configuration leaves out what stays at the engine's default."""


@dataclass(frozen=True)
class MetricPoint:
    """One value of a metric; `timestamp` is in milliseconds since the Unix epoch."""

    name: str
    value: float
    timestamp: int
    step: int = 0


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def experiment_name(study: str) -> str:
    """Return the name of the study's experiment; a name that is too long for MLflow is cut and gets a hash."""
    if len(study) <= _EXPERIMENT_LIMIT:
        return study
    return f"{study[: _EXPERIMENT_LIMIT - 20]} {hashlib.sha256(study.encode()).hexdigest()[:16]}"


def study_uid(study: StudyRecord) -> str:
    """Return an identifier that differs between studies of the same name in different databases."""
    return hashlib.sha256(f"{study.created_at.isoformat()} {study.name}".encode()).hexdigest()[:16]


def status(outcome: TrialOutcome) -> str:
    """Return the status of a trial's run in MLflow: FINISHED, FAILED, or KILLED for a cancelled trial."""
    if outcome.failure is None:
        return "FINISHED"
    return "KILLED" if outcome.failure.kind is FailureKind.CANCELLED else "FAILED"


def trial_tags(trial: TrialRecord, outcome: TrialOutcome) -> dict[str, str]:
    """Return the tags of a trial's run; an absent value has no tag."""
    failure, cut = outcome.failure, outcome.cut
    feasible = trial.verdict is not None and trial.verdict.feasible
    tags = {
        "device": outcome.device,
        "worker": outcome.worker,
        "provenance": outcome.provenance.value,
        "simulated": str(outcome.provenance is Provenance.SIMULATED).lower(),
        "kind": trial.kind.value,
        "label": trial.label,
        "state": trial.state,
        "feasible": str(feasible).lower(),
        "attempts": str(trial.attempts),
        "failure": failure.kind.value if failure else None,
        "failure_phase": failure.phase.value if failure else None,
        "failure_message": failure.message if failure else None,
        "culprit": failure.culprit.value if failure else None,
        "cut": cut.reason if cut else None,
        "score_at_most": f"{cut.score_at_most:.4g}" if cut and cut.score_at_most is not None else None,
        "attention_backend": outcome.server.attention_backend if outcome.server else None,
        "command": shlex.join(outcome.argv),
    }
    return {name: value[:_TAG_LIMIT] for name, value in tags.items() if value}


def run_name(trial: TrialRecord) -> str:
    """Return the name of a trial's run: `#12`, and for what the others are compared with `#0 defaults`."""
    named = trial.kind in (TrialKind.BASELINE, TrialKind.CURRENT) and trial.label
    return f"{trial.name} {trial.label}"[:RUN_NAME_LIMIT] if named else trial.name


def trial_params(trial: TrialRecord, outcome: TrialOutcome, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a trial's run: its configuration and `env/NAME`.

    A parameter that is left to the engine has the engine's default where it is known, else `default`.
    """
    known = facts.get("engine_defaults", {})
    left_out = facts.get("default_config", {}) if trial.kind in _PARTIAL or not trial.config else {}
    chosen = {**left_out, **trial.config}
    values = {name: known.get(name, DEFAULT) if value is None else value for name, value in chosen.items()}
    params = {name: _text(value) for name, value in values.items()}
    params |= {f"env/{name}": value for name, value in outcome.environment.items()}
    return {mlflow_name(name): value[:_PARAM_LIMIT] for name, value in params.items()}


def total_seconds_metric(provenance: Provenance) -> str:
    """Return the metric with the duration of a trial in seconds."""
    return f"{_timing(provenance)}/total_s"


def _timing(provenance: Provenance) -> str:
    return "simulated" if provenance is Provenance.SIMULATED else "timing"


def trial_points(trial: TrialRecord, outcome: TrialOutcome, facts: Mapping[str, Any]) -> list[MetricPoint]:
    """Return the metrics of a trial's run, all with the time of the trial's end; `facts` are those of its study."""
    changed = configuration_changes(trial.config, facts.get("engine_defaults", {}))
    values = {**_trial_values(trial, outcome), FLAGS_METRIC: len(changed)}
    points = list(_points(values, outcome.ended_at))
    if len(outcome.repeats) > 1:
        names = _goal_metrics(trial)
        for repeat in outcome.repeats:
            values = {name: value for name, value in repeat.metrics.items() if name in names}
            duration = "duration_s" if outcome.provenance is Provenance.MEASURED else "simulated_s"
            every = {**values, duration: repeat.duration_s, "failed": repeat.failed}
            named = {f"repeat/{name}": value for name, value in every.items()}
            points += _points(named, outcome.ended_at, repeat.index)
    return points


def _goal_metrics(trial: TrialRecord) -> set[str]:
    """Return the metrics of a trial's objectives and SLOs; none of a trial without a verdict."""
    if trial.verdict is None:
        return set()
    return {*trial.verdict.values, *(re.split(r"[<>]", name)[0] for name in trial.verdict.constraints)}


def history_points(trial: TrialRecord, outcome: TrialOutcome) -> list[MetricPoint]:
    """Return a trial's points for the parent run: its objectives and its score, with the trial's number as the step."""
    if trial.round or trial.verdict is None:
        return []
    values = {**trial.verdict.values, "score": trial.score}
    return list(_points({f"trial/{name}": value for name, value in values.items()}, outcome.ended_at, trial.number))


def best_points(best: Best) -> list[MetricPoint]:
    """Return the metrics of the best configuration for the parent run."""
    return list(_points({f"best/{name}": value for name, value in best.metrics.items()}, best.moment, best.step))


def study_params(study: StudyRecord) -> dict[str, str]:
    """Return the parameters of the parent run: the study's premise, with nested names joined by dots.

    The search space and digests of files have hundreds of names; `premise.json` among the artifacts has them.
    """
    shown = {name: value for name, value in study.premise.items() if name not in _WITHOUT_PARAM}
    return {mlflow_name(name): value[:_PARAM_LIMIT] for name, value in _flat("", shown)}


def study_tags(study: StudyRecord) -> dict[str, str]:
    """Return the tags of the parent run: provenance, engine, version, facts, conclusion and description."""
    simulated = str(study.provenance is Provenance.SIMULATED).lower()
    tags = {"provenance": study.provenance.value, "simulated": simulated, "study": study.name, "kind": STUDY_KIND}
    engine = study.premise.get("engine")
    if isinstance(engine, Mapping):
        tags |= {"engine": _text(engine.get("name", "")), "version": _text(engine.get("version", ""))}
    facts = {name: value for name, value in study.facts.items() if name not in _WITHOUT_FACT_TAG}
    tags |= dict(_flat("facts", facts))
    conclusion = {name: value for name, value in (study.conclusion or {}).items() if name not in _WITHOUT_TAG}
    tags |= dict(_flat("conclusion", conclusion))
    tags[NOTE_TAG] = note_of(study) or ""
    return {mlflow_name(name)[:250]: value[:_TAG_LIMIT] for name, value in tags.items() if value}


def study_files(study: StudyRecord) -> list[Path]:
    """Return the files that a study left: the exported script and the report, whose paths are facts, if they exist."""
    paths = [study.facts.get(name) for name in ("script", "report")]
    return [Path(path) for path in paths if isinstance(path, str) and Path(path).is_file()]


def artifact_files(folder: Path) -> list[Path]:
    """Return the files of a trial's folder that are logged; empty if the folder is not on this machine."""
    return [file for pattern in ARTIFACTS for file in sorted(folder.glob(pattern)) if file.is_file()]


def _trial_values(trial: TrialRecord, outcome: TrialOutcome) -> dict[str, float | None]:
    values = {**metrics_of(outcome), "score": trial.score}
    server = asdict(outcome.server) if outcome.server else {}
    values |= {f"server/{name}": value for name, value in server.items() if name != "attention_backend"}
    timing = _timing(outcome.provenance)
    values |= {f"{timing}/{phase}_s": seconds for phase, seconds in outcome.timings.items()}
    values[total_seconds_metric(outcome.provenance)] = _total_s(outcome)
    constraints = trial.verdict.constraints if trial.verdict else {}
    return values | {f"constraint/{name}": value for name, value in constraints.items()}


def _total_s(outcome: TrialOutcome) -> float:
    """Return the duration of a trial in seconds: by the clock, and of a simulated one the sum of its phases."""
    if outcome.provenance is Provenance.SIMULATED:
        return sum(outcome.timings.values())
    return (outcome.ended_at - outcome.started_at).total_seconds()


def _points(values: Mapping[str, float | None], moment: datetime, step: int = 0) -> Iterator[MetricPoint]:
    """Yield the points of the values that exist: a chart must not show a zero for an absent one."""
    for name, value in values.items():
        if value is not None and math.isfinite(value):
            yield MetricPoint(mlflow_name(name), float(value), milliseconds(moment), step)


def mlflow_name(name: str) -> str:
    """Return a valid MLflow name: other characters than letters, digits, `_`, `-`, `.`, `/` and spaces become `_`."""
    return _INVALID.sub("_", name)[:250]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _flat(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            yield from _flat(name, item)
        else:
            yield name, _text(item)
