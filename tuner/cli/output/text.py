"""How numbers, trials and configurations read on one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from storage import metrics
from storage.records import Config, TrialRecord
from tuner.scoring.objectives import Objective


def number(value: float | None) -> str:
    """Return a figure as people read it: `3,332`, `14.8`, `0.97`; a dash where there is none."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def metric(name: str, value: float | None) -> str:
    """Return a metric with its unit, `output_throughput 3,332 tok/s`."""
    try:
        unit = metrics.metric(name).unit
    except KeyError:
        unit = ""
    return f"{name} {number(value)}{'' if unit == 'share' else ' ' + unit}"


def duration(seconds: float) -> str:
    """Return `42 s`, `7 min 05 s` or `2 h 03 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def config(values: Config) -> str:
    """Return a configuration as `name=value …`; the empty one is called what it is."""
    shown = {name: value for name, value in values.items() if value is not None}
    return " ".join(f"{name}={value}" for name, value in shown.items()) or "vLLM's defaults"


def title(record_number: int, round_: int) -> str:
    """Return `#12`, or `#12 round 2`."""
    return f"#{record_number}" + (f" round {round_}" if round_ else "")


def timings(seconds: Mapping[str, float]) -> str:
    """Return where the time of a trial went, the largest share first; less than half a second is left out."""
    parts = sorted(((value, name) for name, value in seconds.items() if value >= 0.5), reverse=True)
    return ", ".join(f"{name} {value:.0f} s" for value, name in parts)


def trial_line(record: TrialRecord, objectives: Sequence[Objective]) -> str:
    """Return what came of a trial, on one line."""
    outcome = record.outcome
    name = title(record.number, record.round)
    if outcome is None:
        return f"{name} pending"
    spent = sum(outcome.timings.values())
    tail = f"[{duration(spent)}: {timings(outcome.timings)}]"
    what = (f"({record.label}) " if record.label and not record.round else "") + config(record.config)
    if outcome.failure is not None:
        return f"{name} failed: {outcome.failure.kind.value}: {outcome.failure.message} {tail} {what}"
    figures = ", ".join(metric(o.metric, outcome.metric(o.metric)) for o in objectives)
    score = record.verdict.score if record.verdict else None
    judged = f"score {score:.3f}, " if score is not None else ""
    missed = ""
    if record.verdict is not None and not record.verdict.feasible:
        missed = ", misses " + ", ".join(name for name, value in record.verdict.constraints.items() if value > 0)
    return f"{name} {record.state}: {judged}{figures}{missed} {tail} {what}"


def result_line(number: int, records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> str:
    """Return the figures that a trial is to be known by: medians over all repeats of its re-measurements.

    A trial without any has those of the search, which picked it for them: they flatter it, and the line says whose
    they are. Empty if the trial was never run.
    """
    own = [record for record in records if record.number == number]
    rounds = [each.outcome for each in own if each.round and each.outcome is not None and each.outcome.succeeded]
    searched = next((record for record in own if not record.round), None)
    if searched is None or searched.outcome is None:
        return ""
    if not rounds:
        return f"{searched.outcome.provenance.value} in the search: {trial_line(searched, objectives)}"
    pooled = replace(rounds[0], repeats=tuple(repeat for outcome in rounds for repeat in outcome.repeats))
    figures = ", ".join(metric(o.metric, pooled.metric(o.metric)) for o in objectives)
    times = "1 round" if len(rounds) == 1 else f"{len(rounds)} rounds"
    label = f"({searched.label}) " if searched.label else ""
    return f"#{number} {pooled.provenance.value} in {times}, medians: {figures}; {label}{config(searched.config)}"
