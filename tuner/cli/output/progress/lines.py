"""Trials, retries and MLflow's progress, each on one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.records import Config, Failure, TrialRecord
from tuner.cli.output.parts.trial_table import missed_slos
from tuner.results import configuration, text
from tuner.scoring.objectives import Objective
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, SyncStatus

LONGEST_NAME = 24
"""Characters of the name of an enqueued configuration from which the name is left out."""


def trial_line(record: TrialRecord, objectives: Sequence[Objective]) -> str:
    """Return what came of a trial, without its configuration: `#12 ok, score 0.749: output_throughput 2,390 tok/s`."""
    outcome = record.outcome
    if outcome is None:
        return f"#{record.number} pending"
    failure = None if outcome.failure is None else (outcome.failure.kind.value, outcome.failure.message)
    score = record.verdict.score if record.verdict else None
    figures = {each.metric: outcome.metric(each.metric) for each in objectives}
    return result_line(f"#{record.number} {record.state}", failure, missed_slos(record), score, figures)


def result_line(
    trial: str,
    failure: tuple[str, str] | None,
    missed: Sequence[str],
    score: float | None,
    figures: Mapping[str, float | None],
) -> str:
    """Return the parts of a trial's result on one line.

    Args:
        trial: number and state, `#12 ok`.
        failure: kind and message; None if it did not fail.
        missed: SLOs that it misses.
        score: None without one.
        figures: objectives, in the metrics' units.
    """
    if failure is not None:
        return f"{trial}, {failure[0]}: {text.one_line(failure[1])}"
    parts = [trial, *(f"misses {name}" for name in missed)]
    parts += [] if score is None else [f"score {score:.3f}"]
    return f"{', '.join(parts)}: {', '.join(text.metric(name, value) for name, value in figures.items())}"


def end_with_configuration(line: str, record: TrialRecord, defaults: Config, width: int) -> str:
    """Return a line of at most `width` characters that ends in what the trial changes."""
    return with_configuration(line, None if record.round else record.label, record.config, defaults, width)


def with_configuration(line: str, label: str | None, config: Config, defaults: Config, width: int) -> str:
    """Return a line of at most `width` characters that ends in what a configuration, perhaps a named one, changes."""
    named = f"{label} = " if label and config else ""
    if named.startswith("{") or len(named) > LONGEST_NAME:
        named = ""
    least = configuration.short(config, defaults, 0)
    line = text.cut(line, width - len(named) - len(least) - 2)
    return f"{line}; {named}{configuration.short(config, defaults, width - len(line) - len(named) - 2)}"


def stage_line(plan: StagePlan) -> str:
    """Return what a stage after the search measures."""
    if plan.stage is Stage.CAPACITY:
        return f"capacity: the highest request rate at which all SLOs hold for {', '.join(plan.subjects)}"
    if plan.stage in (Stage.ABLATION, Stage.REDUCTION):
        return f"{plan.stage.value}: {', '.join(plan.subjects)}"
    rounds = text.count(len(plan.rounds), "round")
    return f"confirmation: {', '.join(plan.subjects)} in {rounds}, {text.count(plan.trials, 'measurement')}"


def retry_line(spec: TrialSpec, failure: Failure) -> str:
    """Return why a trial runs again."""
    name = text.title(spec.number, spec.round)
    return f"{name} runs again: attempt {spec.attempt} failed, {failure.kind.value}: {text.one_line(failure.message)}"


def sync_line(status: SyncStatus) -> str:
    """Return how far MLflow is."""
    line = f"logging to MLflow: {status.logged} of {text.count(status.finished, 'trial')}"
    if status.waiting and status.complete:
        line += ", now the study's summary"
    return f"{line} ({text.one_line(status.problem)})" if status.problem else line
