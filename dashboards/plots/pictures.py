"""The pictures of a trial and of a study in MLflow: Plotly figures by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards import frames, tradeoff
from dashboards.plots import results, search, traffic
from records.trials import RATES_FILE, StudyRecord, TrialOutcome, TrialRecord
from storage.errors import StorageError

if TYPE_CHECKING:
    import plotly.graph_objects as go

IMPORTANCE, IMPORTANCE_TRIALS, FRONT = "importance", "importance_trials", "front"
"""Facts of a study for its plots: by parameter the share of the score's variance and its interval, the number of
finished trials of the search from which it was computed, and the front."""

MATRIX_COLUMNS = 24
"""Most configurations in a picture of the trade-off; its CSV has all."""

_Draw = Callable[[], "go.Figure | None"]


@dataclass(frozen=True)
class Pictures:
    """The figures by name, and a line for each one that could not be drawn."""

    figures: Mapping[str, go.Figure]
    undrawn: tuple[str, ...] = ()


def trial_pictures(trial: TrialRecord, outcome: TrialOutcome) -> Pictures:
    """Return the pictures of a trial's artifacts: `frames`, `server` and `rate`, those whose files it has."""
    folder = Path(outcome.artifacts)
    files = frames.numbered_files(folder, "requests-*.jsonl.gz")
    states = frames.numbered_files(folder, "server-*.csv")
    rates = folder / RATES_FILE
    draw: dict[str, _Draw] = {}
    if files:
        draw["requests"] = lambda: traffic.lengths(frames.length_frame(files))
    if states:
        draw["server"] = lambda: traffic.server({trial.name: frames.server_frame(states)})
    if rates.is_file():
        draw["rate"] = lambda: traffic.rates(frames.rate_frame(rates))
    return _drawn(draw.items(), f"{trial.study} {trial.name} ({outcome.provenance.value})")


def study_pictures(study: StudyRecord, trials: Sequence[TrialRecord]) -> Pictures:
    """Return the pictures of a study: `progress`, `importance`, `flags`, `front` and, with SLOs of classes, `tradeoff`.

    One without numbers is left out.
    """
    return _drawn(_of_study(study, trials), f"{study.name} ({study.provenance.value})")


def _of_study(study: StudyRecord, trials: Sequence[TrialRecord]) -> Iterator[tuple[str, _Draw]]:
    yield "progress", partial(search.progress, trials)
    yield "importance", partial(search.importance, study.facts.get(IMPORTANCE, {}))
    yield "flags", partial(results.flags, study.flag_effects)
    front = (study.conclusion or {}).get("front") or study.facts.get(FRONT)
    if front:
        yield "front", partial(results.front, front)
    if tradeoff.has_tradeoff(study):
        yield "tradeoff", lambda: results.tradeoff(tradeoff.tradeoff_frame(study, trials, MATRIX_COLUMNS))


def _drawn(draw: Iterable[tuple[str, _Draw]], title: str) -> Pictures:
    """Return the figures under a common title; an unreadable file, or values that Plotly refuses, skip one of them."""
    figures, undrawn = {}, []
    for name, make in draw:
        try:
            figure = make()
        except (StorageError, OSError, ValueError) as error:
            undrawn.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if figure is not None:
            figure.update_layout(title={"text": f"{title}: {name}", "y": 0.98, "yanchor": "top"}, paper_bgcolor="white")
            figure.update_layout(margin={"t": 110})
            figures[name] = figure
    return Pictures(figures, tuple(undrawn))
