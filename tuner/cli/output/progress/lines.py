"""Trials, retries and MLflow's progress, each on one line."""

from __future__ import annotations

from collections.abc import Sequence

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
    if outcome.failure is not None:
        return f"#{record.number} failed, {outcome.failure.kind.value}: {text.one_line(outcome.failure.message)}"
    score = record.verdict.score if record.verdict else None
    parts = [f"#{record.number} {record.state}"]
    parts += [f"misses {name}" for name in missed_slos(record)]
    parts += [] if score is None else [f"score {score:.3f}"]
    figures = ", ".join(text.metric(o.metric, outcome.metric(o.metric)) for o in objectives)
    return f"{', '.join(parts)}: {figures}"


def end_with_configuration(line: str, record: TrialRecord, defaults: Config, width: int) -> str:
    """Return a line of at most `width` characters that ends in what the trial changes."""
    named = f"{record.label} = " if record.label and not record.round and record.config else ""
    if named.startswith("{") or len(named) > LONGEST_NAME:
        named = ""
    least = configuration.short(record.config, defaults, 0)
    line = text.cut(line, width - len(named) - len(least) - 2)
    return f"{line}; {named}{configuration.short(record.config, defaults, width - len(line) - len(named) - 2)}"


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
