"""The page of one study: its result, its search, its load, and where every number comes from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dashboards.report.page import Command, Figure, Page, Section, Table, Tile
from storage.records import TrialRecord
from tuner.errors import UserError
from tuner.export.from_study import serve_script_of
from tuner.processes.secrets import shell_word
from tuner.results import configuration, text
from tuner.results.classes import BY_CLASS, classes_grid, classes_note
from tuner.results.conclusion import (
    WOULD_HELP,
    comparison_grid,
    comparison_title,
    finalists_grid,
    flags_grid,
    flags_note,
    kept_line,
    noise_warning,
    smaller_line,
    worse_metrics,
)
from tuner.results.cost_lines import cost_lines
from tuner.results.engines import ENGINES_TITLE, engines_grid
from tuner.results.grid import Grid, grid
from tuner.results.nearest import nearest_grid, rate_line
from tuner.use_cases.report.cards import PREDICTED, ROOFLINE, STEPS, cards_parts
from tuner.use_cases.report.charts import figures
from tuner.use_cases.report.reported import ReportedStudy

UNFINISHED = "The study has not ended: this page shows the search so far."

_SEARCH = {
    "progress": ("Progress", "Each point is a trial of the search, by one measurement; crosses failed."),
    "pareto": (
        "Front of the objectives",
        "Trials that no other one beats in every metric, with 95 % intervals. Hollow marks were measured by the search "
        "alone, and a search flatters its best.",
    ),
    "importance": (
        "Importance of the parameters",
        "Share of the variance of the score's logarithm (functional ANOVA), mean over bootstrap samples of the trials "
        "with their 5th to 95th percentile. It says what mattered among the values tried, not what a flag brings.",
    ),
    "slices": ("Values of the parameters", "Blue trials meet the SLOs, orange ones miss one."),
    "parallel": ("Every trial", "A line is a trial; drag along an axis to select values."),
    "failures": ("What failed", "Values whose trials failed most often, by kind of failure."),
}
_LOAD = {
    "percentiles": ("Latency percentiles", "Medians over the benchmarks of each configuration."),
    "distributions": ("Latency distributions", "All completed requests; TTFT counts from when a request was due."),
    "classes": ("Requests within their SLO", "By request class and configuration; differences may be noise."),
    "rates": ("Latency by request rate", "The dashed line is the highest rate at which all SLOs held."),
    "lengths": ("Requests by length", "Offered requests of the winner, or of the best finalist."),
    "server": ("State of the server", "During the first benchmark of each configuration."),
    "noise": ("Noise", "Every benchmark of the same configuration; launches differ more than repeats on one server."),
}
CAPTIONS: Mapping[str, tuple[str, str]] = {
    **_SEARCH,
    **_LOAD,
    "roofline": ("Roofline of the card", ROOFLINE),
    "steps": ("Where the time of a step goes", STEPS),
}
"""Title and note of every figure of the report, in its order."""


def page_of(study: ReportedStudy) -> Page:
    """Return the report of a study."""
    first = result_page(study)
    where, source = origin_of(study), source_of(study)
    sections = [
        *first.sections,
        Section("Search", [*figures(study, _SEARCH, where)], source),
        Section("Load", [*_absent_files(study), *figures(study, _LOAD, where)], source),
        Section("Cards", [*cards_parts(study, where)], PREDICTED),
        Section("Trials", [Table("All trials of the search", trials_grid(study), _trials_note(study))], source),
        Section("Where the numbers come from", [Table("Provenance", provenance_grid(study))]),
    ]
    return replace(first, sections=[section for section in sections if section.parts])


def result_page(study: ReportedStudy) -> Page:
    """Return the beginning of the report: the result alone, which needs no model of the search."""
    record = study.record
    return Page(
        title=record.name,
        subtitle=f"{record.premise['model']['name']} on {study.device}, {study.engine}",
        verdict=verdict_of(study.findings.conclusion),
        simulated=study.simulated,
        tiles=[*_tiles(study)],
        sections=[Section("Result", [*result_parts(study)], source_of(study))],
    )


def verdict_of(conclusion: Mapping[str, Any]) -> str:
    """Return the conclusion in a sentence that begins with a capital letter."""
    if not conclusion:
        return UNFINISHED
    reason = str(conclusion["reason"])
    return text.sentence(reason) + "."


def source_of(study: ReportedStudy) -> str:
    """Return where the numbers of a study come from, in a sentence."""
    return f"{origin_of(study)}; {workload_line(study.record.premise['workload'])}."


def origin_of(study: ReportedStudy) -> str:
    """Return the provenance, card, engine and dates of a study, as stands below each figure."""
    kind = "Simulated" if study.simulated else "Measured"
    days = [r.outcome.ended_at.date() for r in study.trials if r.outcome is not None]
    when = "" if not days else f", {min(days)}" + (f" to {max(days)}" if min(days) != max(days) else "")
    return f"{kind} on {study.device}, {study.engine}{when}"


def workload_line(workload: Mapping[str, Any]) -> str:
    """Return a workload in a few words."""
    if "loads" in workload:
        return f"a suite of {text.count(len(workload['loads']), 'workload')}: {', '.join(workload['loads'])}"
    if "classes" in workload:
        rate = (workload.get("arrivals") or {}).get("rate")
        requests = "" if rate is None else f" at {rate:g} requests/s"
        return f"traffic of {', '.join(workload['classes'])}{requests}"
    lengths = f"prompts of {workload['input_len']} and answers of {workload['output_len']} tokens"
    return f"{workload['max_concurrency']} concurrent requests, {lengths}"


def _absent_files(study: ReportedStudy) -> Iterator[str]:
    """Yield what the report lacks where the artifacts of measurements are not on this machine."""
    folders = [folder for number in study.compared.values() for folder in study.folders(number)]
    absent = sum(not folder.is_dir() for folder in folders)
    if absent:
        yield (
            f"The artifacts of {absent} of {text.count(len(folders), 'measurement')} are not on this machine; "
            "figures of single requests and of the server over time lack them."
        )


def _tiles(study: ReportedStudy) -> Iterator[Tile]:
    """Yield the score and the objectives of what the user gets; where the reference is kept, the finalist is below."""
    findings = study.findings
    table = comparison_grid(findings)
    if table is not None:
        role, kept = [*study.compared][-1], findings.exported == findings.baseline
        for metric, reference, value, ratio, interval, _ in table.rows[: 1 + len(findings.objectives)]:
            span = f" [{interval.replace(' to ', ', ')}]" if interval else ""
            if kept:
                yield Tile(metric, reference, f"{findings.baseline_heading}, kept; {role}: {ratio}{span}")
            else:
                yield Tile(metric, value, f"{role}: {ratio} of {findings.baseline_name}{span}")
    searched = [record for record in study.trials if not record.round]
    failed = sum(record.state == "failed" for record in searched)
    yield Tile("trials", f"{len(searched):,}", f"{failed} failed" if failed else "none failed")


def result_parts(study: ReportedStudy) -> Iterator[Figure | Table | Command | str]:
    """Yield the tables, commands and sentences of a study's result."""
    findings = study.findings
    nearest = findings.conclusion.get("nearest")
    if nearest:
        line = rate_line(nearest)
        yield Table(
            f"The SLOs with #{nearest['number']}, the nearest to meeting them", nearest_grid(nearest), line or ""
        )
    for line in (kept_line(findings), noise_warning(findings), smaller_line(findings)):
        if line is not None:
            yield text.sentence(line) + "."
    if (compared := comparison_grid(findings)) is not None:
        title = comparison_title(findings)
        worse = worse_metrics(findings)
        note = f"Much worse than with {findings.baseline_name}, but no objective: {', '.join(worse)}" if worse else ""
        yield Table(text.sentence(title), compared, note)
    if (classes := classes_grid(findings)) is not None:
        yield Table(text.sentence(comparison_title(findings, BY_CLASS)), classes, text.sentence(classes_note(findings)))
    yield from (text.sentence(line) + "." for line in cost_lines(findings))
    if (engines := engines_grid(findings)) is not None:
        yield Table(text.sentence(ENGINES_TITLE), engines)
    if (finalists := finalists_grid(findings)) is not None:
        yield Table(f"Finalists, as ratios to {findings.baseline_name}", finalists)
    if (flags := flags_grid(findings)) is not None:
        yield Table(f"Flags of #{findings.winner}", flags, text.sentence(flags_note(findings)))
    yield from _commands(study)
    if lines := findings.conclusion.get("would_help"):
        yield f"{text.sentence(WOULD_HELP)}. {'. '.join(map(text.sentence, lines))}."


def _commands(study: ReportedStudy) -> Iterator[Command | str]:
    """Yield the server's command, and what is known about its answers."""
    conclusion = study.findings.conclusion
    number = conclusion.get("winner")
    number = (conclusion.get("nearest") or {}).get("number") if number is None else number
    trial = None if number is None else study.findings.trial(int(number))
    if trial is None or trial.outcome is None or not trial.outcome.argv:
        return
    try:
        script = serve_script_of(study.record, trial.number, study.trials)
    except UserError:  # a winner without figures of its own
        return
    environment = [f"{name}={shell_word(value, script.references)}" for name, value in script.environment.items()]
    arguments = script.program.words(script.model, script.model, script.argv)
    words = [script.program.name, *script.program.on_default_port(arguments)]
    yield Command(
        f"Start the server of #{trial.number}",
        " ".join([*environment, *(shell_word(word, script.references) for word in words)]),
    )
    yield Command(
        "Write its script (on a client of a service, with --server URL)",
        shlex.join(["tuner", "export", "--study", study.record.name]),
    )
    if script.answers is not None:
        yield f"Answers: {script.answers}."


def trials_grid(study: ReportedStudy) -> Grid:
    """Return the trials of the search, the best first, then those that miss an SLO, then those that failed."""
    metrics = [objective.metric for objective in study.findings.objectives]
    table = grid(
        "trial",
        "state",
        "score",
        *metrics,
        "differs from the defaults",
        left=("trial", "state", "differs from the defaults"),
    )
    order = {"ok": 0, "infeasible": 1, "failed": 2, "pending": 3}
    for record in sorted(
        (record for record in study.trials if not record.round),
        key=lambda record: (order[record.state], -(_score(record) or 0.0), record.number),
    ):
        score = _score(record)
        values = [None if record.outcome is None else record.outcome.metric(name) for name in metrics]
        table.add(
            f"#{record.number}",
            _state(record),
            text.ABSENT if score is None else f"{score:.3f}",
            *map(text.number, values),
            text.cut(record.label or configuration.full(record.config, study.defaults), 110),
            faint=record.state != "ok",
        )
    return table


def _score(record: TrialRecord) -> float | None:
    return None if record.verdict is None else record.verdict.score


def _state(record: TrialRecord) -> str:
    failure = record.outcome.failure if record.outcome is not None else None
    return record.state if failure is None else failure.kind.value.replace("_", " ")


def _trials_note(study: ReportedStudy) -> str:
    rounds = sum(bool(record.round) for record in study.trials)
    note = "The scores of the search choose the finalists"
    return f"{note}; {text.count(rounds, 'further measurement')} in rounds decide." if rounds else f"{note}."


def provenance_grid(study: ReportedStudy) -> Grid:
    """Return the facts of a study that its numbers depend on."""
    record, premise, facts = study.record, study.record.premise, study.record.facts
    table = grid("fact", "value", left=("fact", "value"))
    words: Sequence[tuple[str, object]] = [
        ("numbers are", record.provenance.value),
        ("model", premise["model"]["name"]),
        ("engine", study.engine),
        ("card", study.device),
        ("driver", ", ".join(facts.get("drivers", ())) or None),
        ("host", facts.get("host")),
        ("load", workload_line(premise["workload"])),
        ("seed of the load", premise["workload"].get("seed")),
        ("objectives", ", ".join(premise["objectives"])),
        ("SLOs", ", ".join(premise["slos"]) or "none"),
        ("server arguments", shlex.join(premise.get("server", {}).get("arguments", ())) or None),
        ("sampler", facts.get("sampler")),
        ("study began", f"{record.created_at:%Y-%m-%d %H:%M} UTC"),
    ]
    for label, value in words:
        if value is not None:
            table.add(label, str(value))
    return table
