"""The commands that list what a database has: `studies`, `trials` and `show`."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Round, Storage, StudyName
from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from records.trials import Config, StudyRecord, TrialRecord
    from search_spaces import Price
    from tuner.scoring.goals import Objective, Slo


@dataclass(frozen=True)
class StoredStudy:
    """A study and all its trials, the rounds' measurements included; `url` is that of its database."""

    record: StudyRecord
    trials: tuple[TrialRecord, ...]
    url: str = ""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives."""
        from tuner.scoring.goals import parse_objective

        return tuple(parse_objective(text) for text in self.record.premise["objectives"])

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The study's SLOs."""
        from tuner.scoring.goals import parse_slo

        return tuple(parse_slo(text) for text in self.record.premise["slos"])

    @property
    def defaults(self) -> Config:
        """The engine's defaults by parameter; empty for a study of a version that did not store them."""
        return dict(self.record.facts.get("engine_defaults", {}))

    @property
    def price(self) -> Price | None:
        """The price of a GPU-hour from which the study's costs follow; None in a study that has none."""
        from search_spaces import Price

        return Price.from_dict(self.record.facts.get("price"))

    @property
    def dropped_numbers(self) -> list[int]:
        """Numbers below the highest one that no trial has: suggestions that were dropped before a launch."""
        numbers = {trial.number for trial in self.trials}
        return sorted({*range(max(numbers, default=-1) + 1)} - numbers)

    def trial(self, number: int, round_: int = 0) -> TrialRecord:
        """Return a trial, or the measurement of it in a round.

        Raises:
            UserError: when there is none, with the reason.
        """
        for trial in self.trials:
            if (trial.number, trial.round) == (number, round_):
                return trial
        named = f"trial {number}" + (f" round {round_}" if round_ else "")
        if not round_ and number in self.dropped_numbers:
            from tuner.study.optuna_storage import reason_not_run

            why = reason_not_run(self.url, self.record.name, number) or "it was dropped before a launch"
            rule = f"the sampler suggested it, and it never ran: {why}"
            raise UserError(f"study {self.record.name!r} has no {named}: {rule}; see `tuner trials`")
        raise UserError(f"study {self.record.name!r} has no {named}; see `tuner trials`")


def read_study(storage: str | None, study: str | None) -> StoredStudy:
    """Return a study; without a name, the latest.

    Raises:
        UserError: when there is no such database or study.
    """
    from storage import open_store

    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        record = find_study(store, study)
        return StoredStudy(record, tuple(store.trials(record.name)), url)


def require_classes(study: StudyRecord) -> None:
    """Check that the study's workload has request classes.

    Raises:
        UserError: for a closed loop, which has none.
    """
    from dashboards.tradeoff import request_classes

    if not request_classes(study):
        raise UserError(
            f"the workload of study {study.name!r} has no request classes; "
            "start a study with traffic, `tuner optimize --workload FILE`, or see `tuner trials`"
        )


@reads_server(lambda _: None)
def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Shows model, hardware, number of trials and conclusion of each.
    """
    from storage import open_store

    with closing(open_store(storage_url(storage, create=False))) as store:
        find_study(store, None)  # an empty database is refused as by every other command
        rows = [_row(study, store.trials(study.name)) for study in store.studies()]
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _print_table(rows)


def _row(study: StudyRecord, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    conclusion = study.conclusion or {}
    finished = [trial for trial in trials if trial.outcome is not None]
    return {
        "study": study.name,
        "provenance": study.provenance.value,
        "created_at": study.created_at.isoformat(timespec="seconds"),
        "model": study.premise["model"]["name"],
        "hardware": study.facts.get("hardware"),
        "engine": study.premise["engine"],
        "trials": sum(not trial.round for trial in finished),
        "remeasurements": sum(bool(trial.round) for trial in finished),
        "winner": conclusion.get("winner"),
        "keeps": conclusion.get("keeps"),
        "keep_defaults": conclusion.get("keep_defaults"),
        "reason": conclusion.get("reason"),
    }


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from tuner.cli.output.parts import new_table, show

    table = new_table()
    for name in ("study", "provenance", "created (UTC)", "model, hardware", "trials", "conclusion"):
        table.add_column(name, justify="right" if name == "trials" else "left", no_wrap=name == "trials")
    for row in rows:
        again = f" + {row['remeasurements']}" if row["remeasurements"] else ""
        table.add_row(
            row["study"],
            row["provenance"],
            row["created_at"][:16].replace("T", " "),
            f"{row['model']} on {row['hardware'] or 'unknown hardware'}",
            f"{row['trials']}{again}",
            row["reason"] or "none yet",
        )
    show(table, width=140)
    if any(row["remeasurements"] for row in rows):
        print("trials: those of the search + measurements of finalists in the rounds")


@reads_server(lambda values: [values["study"]])
def show(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the trial.")],
    round_: Round = 0,
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show one trial in full.

    Prints its command, metrics, SLOs, the figures that the server reports, the time of each phase, and its failure.
    """
    stored = read_study(storage, study)
    trial = stored.trial(number, round_)
    if as_json:
        from dashboards import frames as frames

        sys.stdout.write(frames.to_json(frames.trials_frame([trial])))
        return
    from tuner.cli.output.pages.trial import print_trial

    print_trial(trial, stored.objectives, stored.defaults, stored.price)


_SCORE, _NUMBER = "score", "number"
_ITL = "p99_itl_ms"
_PLAIN_WIDTH = 140
_HOLES = 8
"""Dropped numbers that the note below the table names."""


@reads_server(lambda values: [values["study"]])
def trials(
    study: StudyName = None,
    sort: Annotated[
        str | None,
        option(
            None,
            "COLUMN",
            "Sort by score or a metric, best first, or by number; without the rounds.",
            shown="number, with rounds",
        ),
    ] = None,
    top: Annotated[int | None, option(None, "INTEGER", "Show only the first trials.", shown="all", least=1)] = None,
    failed: Annotated[bool, flag(None, "Show only trials that failed, with the reason.", "--failed")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """List the trials of a study.

    Shows the score and the objectives of each, and the values that differ from the engine's defaults. Measurements in
    the rounds of the confirmation are listed below their trial.
    """
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    stored = read_study(storage, study)
    found: Sequence[TrialRecord] = stored.trials
    if failed:
        found = [trial for trial in found if trial.state == "failed"]
    if sort is not None:
        found = sorted_trials(found, sort)
    found = found[:top]
    if as_json or csv:
        from dashboards import frames as frames

        frame = frames.trials_frame(found)
        sys.stdout.write(frames.to_json(frame) if as_json else frames.to_csv(frame))
    else:
        _print(stored, found, sort)


def sorted_trials(found: Sequence[TrialRecord], column: str) -> list[TrialRecord]:
    """Return the trials of the search, best first by a column; those without a value are last.

    Raises:
        UserError: for a column that is neither `score`, `number` nor a metric of these trials.
    """
    searched = [trial for trial in found if not trial.round]
    measured = {name for t in searched if t.outcome for repeat in t.outcome.repeats for name in repeat.metrics}
    if column == _NUMBER:
        return sorted(searched, key=lambda trial: trial.number)
    if column != _SCORE and column not in measured:
        near = difflib.get_close_matches(column, [_SCORE, _NUMBER, *measured], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "give score, number or a metric, such as p99_ttft_ms"
        raise UserError(f"--sort {column!r}: no trial has such a column; {hint}")
    return sorted(searched, key=lambda trial: (_worst_last(trial, column), trial.number))


def _worst_last(trial: TrialRecord, column: str) -> float:
    """Return a value that is lower for a better trial."""
    from records.metrics import Direction, metric

    if column == _SCORE:
        value = trial.verdict.score if trial.verdict else None
        return math.inf if value is None else -value
    value = trial.outcome.metric(column) if trial.outcome else None
    if value is None:
        return math.inf
    return -value if metric(column).direction is Direction.MAXIMIZE else value


def _print(stored: StoredStudy, found: Sequence[TrialRecord], sort: str | None) -> None:
    from tuner.cli.output.parts import fill_trials, new_table, show, width_of
    from tuner.results.conclusion import price_lines

    names = [objective.metric for objective in stored.objectives]
    if sort not in (None, _SCORE, _NUMBER) and sort not in names:
        names.insert(0, sort)
    if _ITL not in names and any(trial.outcome and trial.outcome.metric(_ITL) is not None for trial in found):
        names.append(_ITL)
    title = f"{stored.record.name} ({stored.record.provenance.value})"
    table = new_table()
    fill_trials(table, found, names, stored.defaults, width_of(_PLAIN_WIDTH), whole=True)
    show(title, table, *price_lines(names, [stored.price]), *_notes(stored), width=_PLAIN_WIDTH)


def _notes(stored: StoredStudy) -> list[str]:
    """Return why numbers are missing, if some are."""
    holes = stored.dropped_numbers
    if not holes:
        return []
    named = ", ".join(map(str, holes[:_HOLES])) + (", …" if len(holes) > _HOLES else "")
    return [f"numbers without a trial are suggestions that were dropped before a launch: {named}"]
