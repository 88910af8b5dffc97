"""The pages of a report, for one study or several side by side: result, search, load, and where numbers come from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from dashboards.plots.results import side_by_side
from dashboards.report.page import Command, Figure, Page, Section, Table, Tile, render
from records.tables import Grid, grid
from records.trials import TrialRecord
from search_spaces import shared_currency
from storage import open_store
from storage.store import Store
from tuner.errors import SettingError, UserError
from tuner.export.from_study import deployment_of
from tuner.files import write_output
from tuner.owner import free_path, refuse_other_file, refused_if_unwritable
from tuner.processes.secrets import shell_word
from tuner.results import text
from tuner.results.conclusion import COST, comparison_grid, parts
from tuner.results.text import full_configuration
from tuner.use_cases.places import find_study, storage_url
from tuner.use_cases.report.charts import PREDICTED, ROOFLINE, STEPS, cards_parts, figures
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
    counts = {state: sum(record.state == state for record in searched) for state in ("failed", "cut")}
    cut = f", {counts['cut']} cut short" if counts["cut"] else ""
    yield Tile("trials", f"{len(searched):,}", f"{counts['failed'] or 'none'} failed{cut}")


def result_parts(study: ReportedStudy) -> Iterator[Figure | Table | Command | str]:
    """Yield the tables, sentences and commands of a study's result."""
    for part in parts(study.findings):
        lines = [text.sentence(line) for line in (*part.above, *part.below)]
        if part.grid is not None:
            yield Table(text.sentence(part.title), part.grid, " ".join(lines))
        else:
            yield ". ".join([*([text.sentence(part.title)] if part.title else []), *lines]) + "."
    yield from _commands(study)


def _commands(study: ReportedStudy) -> Iterator[Command | str]:
    """Yield the server's command, and what is known about its answers."""
    number = study.findings.exported
    trial = None if number is None else study.findings.trial(number)
    if trial is None or trial.outcome is None or not trial.outcome.argv:
        return
    try:
        script = deployment_of(study.record, trial.number, study.trials)
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
        shlex.join(["tuner", "study", "export", study.record.name]),
    )
    if script.answers is not None:
        yield f"Answers: {script.answers}."


def trials_grid(study: ReportedStudy) -> Grid:
    """Return the trials of the search, the best first, then those that miss an SLO, were cut short, or failed."""
    metrics = [objective.metric for objective in study.findings.objectives]
    table = grid(
        "trial",
        "state",
        "score",
        *metrics,
        "differs from the defaults",
        left=("trial", "state", "differs from the defaults"),
    )
    order = {"ok": 0, "infeasible": 1, "cut": 2, "failed": 3, "pending": 4}
    for record in sorted(
        (record for record in study.trials if not record.round),
        key=lambda record: (order[record.state], -(record.score or 0.0), record.number),
    ):
        values = [None if record.outcome is None else record.outcome.metric(name) for name in metrics]
        table.add(
            f"#{record.number}",
            _state(record),
            text.ABSENT if record.score is None else f"{record.score:.3f}",
            *map(text.number, values),
            text.cut(record.label or full_configuration(record.config, study.defaults), 110),
            faint=record.state != "ok",
        )
    return table


def _state(record: TrialRecord) -> str:
    if record.outcome is not None and record.outcome.cut is not None:
        bound = record.outcome.cut.score_at_most
        return "cut short" if bound is None else f"cut short, score at most {bound:.3f}"
    return record.state if record.failure is None else record.failure.kind.value.replace("_", " ")


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
        ("layers of the model", facts.get("model_layers")),
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
        ("predictions corrected by", text.learned(facts["learned"]) if "learned" in facts else None),
        ("study began", f"{record.created_at:%Y-%m-%d %H:%M} UTC"),
    ]
    for label, value in words:
        if value is not None:
            table.add(label, str(value))
    return table


LEFT = ("study", "numbers are", "model", "card", "engine", "configuration")


def page_of_several(studies: Sequence[ReportedStudy]) -> Page:
    """Return a page that compares studies; each row says whether it was measured."""
    names = ", ".join(study.record.name for study in studies)
    first = Section("Side by side", [Table("Configurations", values_grid(studies), _note(studies)), *_figure(studies)])
    each = [
        Section(study.record.name, [verdict_of(study.findings.conclusion), *result_parts(study)], source_of(study))
        for study in studies
    ]
    return Page(
        title=f"{len(studies)} studies",
        subtitle=names,
        verdict=_verdict(studies),
        simulated=all(study.simulated for study in studies),
        sections=[first, *each],
        study=names,
    )


def _verdict(studies: Sequence[ReportedStudy]) -> str:
    """Return how many studies found something better than their reference."""
    better = [study for study in studies if study.findings.winner not in (None, study.findings.baseline)]
    if not better:
        return "No study found a configuration that is better than its reference beyond the noise."
    names = ", ".join(study.record.name for study in better)
    return f"{len(better)} of {len(studies)} studies recommend another configuration than their reference: {names}."


def shared_metrics(studies: Sequence[ReportedStudy]) -> list[str]:
    """Return the objectives of all studies, each once."""
    return list(dict.fromkeys(each.metric for study in studies for each in study.findings.objectives))


def values_grid(studies: Sequence[ReportedStudy]) -> Grid:
    """Return a row for each study's reference and for its winner: where it ran, and its values."""
    metrics = shared_metrics(studies)
    priced = any(outcome.metric(COST) is not None for study in studies for outcome in study.outcomes.values())
    costs = [COST] if priced and COST not in metrics else []
    table = grid(*LEFT, *metrics, *costs, left=LEFT)
    for study in studies:
        for name, outcome in study.outcomes.items():
            price = study.findings.price
            values = (text.with_unit(metric, outcome.metric(metric), price) for metric in (*metrics, *costs))
            table.add(
                study.record.name,
                study.record.provenance.value,
                str(study.record.premise["model"]["name"]),
                study.device,
                study.engine,
                name,
                *values,
            )
    return table


def _note(studies: Sequence[ReportedStudy]) -> str:
    """Return what keeps the rows from being compared: different loads, and measured beside simulated numbers."""
    loads = {study.record.name: workload_line(study.record.premise["workload"]) for study in studies}
    notes = []
    if len(set(loads.values())) > 1:
        notes.append("The loads differ: " + "; ".join(f"{name}: {load}" for name, load in loads.items()) + ".")
    if len({study.simulated for study in studies}) > 1:
        notes.append("Some rows are measured, others predicted.")
    prices = dict.fromkeys(str(price) for study in studies if (price := study.findings.price) is not None)
    if prices:
        notes.append(f"Prices: {'; '.join(prices)}.")
    return " ".join(notes)


def _figure(studies: Sequence[ReportedStudy]) -> Iterator[Figure]:
    """Yield the first two objectives that all studies have, against each other."""
    shared = [
        metric
        for metric in shared_metrics(studies)
        if all(outcome.metric(metric) is not None for study in studies for outcome in study.outcomes.values())
    ]
    if len(shared) > 1:
        up, across = shared[:2]
        points = {
            study.record.name: {
                name: (outcome.metric(across) or 0.0, outcome.metric(up) or 0.0)
                for name, outcome in study.outcomes.items()
            }
            for study in studies
        }
        drawn = side_by_side(points, across, up, shared_currency(study.findings.price for study in studies))
        yield Figure(f"{up} by {across}", drawn, "A line leads from the reference of a study to its winner.")


REPORT = Path("report.html")
"""The file of a report, unless the user chooses another."""


def report(studies: Sequence[str], output: Path | None, storage: str | None = None) -> Path:
    """Write the report of a study, or one that compares several.

    Args:
        studies: names; empty: the latest of the database. Each counts once.
        output: the HTML file; None: `REPORT`, or a file beside it if that is another study's.
        storage: file or SQLAlchemy URL of the database; None: the default one.

    Returns:
        The path of the file.

    Raises:
        UserError: when there is no such study, it has no trial, the path has another file, or the file cannot be
            written.
    """
    url = storage_url(storage, create=False)
    names: list[str | None] = [*dict.fromkeys(studies)]
    with closing(open_store(url)) as store:
        found = [named_study(store, url, name) for name in names or [None]]
    path = own_path(output, [each.record.name for each in found])
    return write_page(page_of(found[0]) if len(found) == 1 else page_of_several(found), path)


def own_path(output: Path | None, studies: Sequence[str]) -> Path:
    """Return the path of a report of studies, which replaces no other file.

    Raises:
        SettingError: if the user chose a path that has another file.
    """
    if output is None:
        return free_path(REPORT, ", ".join(studies))
    refuse_other_file(output, ", ".join(studies))
    return output


def named_study(store: Store, url: str, name: str | None) -> ReportedStudy:
    """Return a study that an argument of the command names, see `reported_study`."""
    try:
        return reported_study(store, url, name)
    except SettingError as error:  # a study is an argument here, not an option
        if error.field != "study":
            raise
        remedy = f"; {error.remedy}" * bool(error.remedy)
        raise UserError(f"study {error.value!r}: {error.rule}{remedy}") from None


def reported_study(store: Store, url: str, name: str | None) -> ReportedStudy:
    """Return a study as a report needs it; None: the latest.

    Raises:
        UserError: when there is no such study, or it has no finished trial.
    """
    record = find_study(store, name)
    trials = tuple(store.trials(record.name))
    if all(trial.outcome is None for trial in trials):
        raise SettingError("study", record.name, "it has no finished trial", "run `tuner optimize` first")
    return ReportedStudy(record, trials, url)


def write_page(page: Page, output: Path, mode: int | None = None) -> Path:
    """Write a page to a file and return its path.

    Args:
        page: the page.
        output: the file.
        mode: its permission bits; None: as for any output.

    Raises:
        UserError: if the file cannot be written.
    """
    with refused_if_unwritable(output):
        write_output(output, render(page), mode=mode)
    return output
