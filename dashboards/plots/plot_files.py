"""The plots of a trial and of a study as files in a temporary folder, for MLflow to log."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dashboards.analysis import tradeoff, trial_files
from dashboards.analysis.trials_frame import to_csv
from dashboards.plots import figures, study_figures
from storage.errors import StorageError
from storage.records import StudyRecord, TrialOutcome, TrialRecord

IMPORTANCE, IMPORTANCE_TRIALS, FRONT = "importance", "importance_trials", "front"
"""Facts of a study for its plots: by parameter the share of the score's variance and its interval, the number of
finished trials of the search from which it was computed, and the front."""

MAX_PLOT_COLUMNS = 16
"""Configurations in the plot of the trade-off matrix; the CSV beside it has all."""

_PLOT_ERRORS = (StorageError, OSError, ValueError)
"""Errors that skip one plot: an unreadable file, a full disk, values that matplotlib cannot place."""

_Draw = Callable[[Path], object]


@contextmanager
def trial_plots(trial: TrialRecord, outcome: TrialOutcome) -> Iterator[Path]:
    """Yield a folder with the plots of a trial's artifacts, `pictures/*.png`; the folder is removed afterwards.

    A plot that cannot be drawn is left out, and `pictures/undrawn.txt` has the error.
    """
    folder = Path(outcome.artifacts)
    title = f"{trial.study} {trial.name} ({outcome.provenance.value})"
    requests = trial_files.numbered_files(folder, "requests-*.parquet")
    states = trial_files.numbered_files(folder, "server-*.csv")
    rates = folder / "capacity.csv"
    draw: dict[str, _Draw] = {}
    if requests:
        draw["pictures/requests.png"] = lambda target: figures.draw_requests(
            trial_files.requests_by_length_frame(requests),
            target,
            f"{title}: offered and failed requests by prompt length, {_benchmarks(requests)}",
        )
    if states:
        draw["pictures/server.png"] = lambda target: figures.draw_server(
            trial_files.server_frame(states), target, f"{title}: state of the server during {_benchmarks(states)}"
        )
    if rates.is_file():
        draw["pictures/rate.png"] = lambda target: figures.draw_rates(
            trial_files.rate_frame(rates), target, f"{title}: time to first token by request rate"
        )
    with _drawn(draw) as drawn:
        yield drawn


@contextmanager
def study_plots(study: StudyRecord, trials: Sequence[TrialRecord]) -> Iterator[Path]:
    """Yield a folder with the plots of a study; one without numbers is left out.

    They are `progress.png`, `importance.png`, `flags.png` and `front.png` in `pictures`, and with SLOs of classes
    `tradeoff.png` there and `tradeoff.csv`.
    """
    draw: dict[str, _Draw] = dict(_search_plots(study, trials))
    front = (study.conclusion or {}).get("front") or study.facts.get(FRONT)
    if front:
        draw["pictures/front.png"] = partial(figures.draw_front, front, title=_front_title(study))
    configurations = tradeoff.finished_configurations(study, trials)
    if configurations and tradeoff.has_class_slos(study) and tradeoff.request_classes(study):
        best = tradeoff.best_by_row(configurations)
        shown = tradeoff.select_columns(configurations, MAX_PLOT_COLUMNS)
        csv = to_csv(tradeoff.share_matrix(configurations, best))
        title = _tradeoff_title(study, tradeoff.omitted_columns(configurations, shown))
        draw["tradeoff.csv"] = lambda target: target.write_text(csv, encoding="utf-8")
        draw["pictures/tradeoff.png"] = partial(
            figures.draw_tradeoff,
            tradeoff.share_matrix(shown, best),
            title=title,
            labels=[each.description for each in shown],
        )
    with _drawn(draw) as drawn:
        yield drawn


def _search_plots(study: StudyRecord, trials: Sequence[TrialRecord]) -> Iterator[tuple[str, _Draw]]:
    title = f"{study.name} ({study.provenance.value})"
    if any(trial.verdict is not None and trial.verdict.score for trial in trials):
        draw: _Draw = partial(study_figures.draw_progress, trials, title=f"{title}: score by trial")
        yield "pictures/progress.png", draw
    shares = study.facts.get(IMPORTANCE)
    if shares:
        text = f"{title}: importance of the parameters, with the 5th and 95th percentile of 12 samples"
        yield "pictures/importance.png", partial(study_figures.draw_importance, shares, title=text)
    if study.flag_effects:
        text = f"{title}: effects of the winner's flags"
        yield "pictures/flags.png", partial(study_figures.draw_flags, study.flag_effects, title=text)


def _front_title(study: StudyRecord) -> str:
    return (
        f"{study.name} ({study.provenance.value}): trials that no other one beats in every metric\n"
        "95 % intervals; hollow: measured by the search alone; grey: beaten by another trial"
    )


def _tradeoff_title(study: StudyRecord, omitted: str) -> str:
    lines = [
        f"{study.name} ({study.provenance.value}): share of offered requests within their SLO",
        "* highest share of the row; the difference to others may be noise",
    ]
    if tradeoff.measured_at_capacity(study):
        lines.append("each configuration received its own capacity as request rate")
    if omitted:
        lines.append(f"not shown: {omitted}, see tradeoff.csv")
    return "\n".join(lines)


def _benchmarks(files: Sequence[Path]) -> str:
    return "one benchmark" if len(files) == 1 else f"{len(files)} benchmarks"


@contextmanager
def _drawn(draw: Mapping[str, _Draw]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"tuner-pictures-{os.getpid()}-") as name:
        folder, errors = Path(name), []
        if draw:
            (folder / "pictures").mkdir()
        for file, make in draw.items():
            try:
                make(folder / file)
            except _PLOT_ERRORS as error:
                errors.append(f"{file}: {type(error).__name__}: {error}\n")
                (folder / file).unlink(missing_ok=True)
        if errors:
            (folder / "pictures" / "undrawn.txt").write_text("".join(errors), encoding="utf-8")
        yield folder
