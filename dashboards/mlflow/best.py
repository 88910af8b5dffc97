"""The best configuration of a study, for MLflow: the winner, or before a conclusion the best of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.measured import measured
from storage.records import StudyRecord, TrialOutcome, TrialRecord

NO_WINNER = "none"


@dataclass(frozen=True)
class Best:
    """The best configuration.

    Attributes:
        name: short name of its trial, or `none` if the conclusion has no winner.
        metrics: what was measured of it, see `storage.measured.measured`, and its score.
        moment: when the last trial ended.
        step: higher for each later state of a study, because MLflow shows the value of the highest step.
    """

    name: str
    metrics: Mapping[str, float | None]
    moment: datetime
    step: int


def best_of(study: StudyRecord, trials: Sequence[TrialRecord]) -> Best | None:
    """Return the best configuration of a study; None if there is neither a conclusion nor a feasible trial.

    Args:
        study: with its conclusion, if it has one.
        trials: its finished trials, rounds included.
    """
    ends = [trial.outcome.ended_at for trial in trials if trial.outcome is not None]
    if not ends:
        return None
    moment, highest = max(ends), max(trial.number for trial in trials)
    if not study.conclusion:
        found = _best_of_search(trials)
        return None if found is None else Best(found.name, _metrics(found.outcome, _score(found)), moment, found.number)
    number = study.conclusion.get("winner")
    winner = next((trial for trial in trials if trial.number == number and not trial.round), None)
    if winner is None:
        return Best(NO_WINNER, {}, moment, highest + 1)
    score = _concluded_score(study.conclusion, winner)
    return Best(winner.name, _metrics(measured(study.conclusion, trials, winner.number), score), moment, highest + 1)


def _best_of_search(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the feasible trial with the highest score; rounds do not count."""
    scored = [(_score(trial), trial) for trial in trials if trial.round == 0 and trial.state == "ok"]
    ranked = [(score, trial) for score, trial in scored if score is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _score(trial: TrialRecord) -> float | None:
    return None if trial.verdict is None else trial.verdict.score


def _concluded_score(conclusion: Mapping[str, Any], winner: TrialRecord) -> float | None:
    """Return the winner's score relative to the defaults, from the rounds if there were any."""
    if conclusion.get("keeps") is not None:
        return 1.0
    finalists = {each["number"]: each["score"] for each in conclusion.get("contenders", ())}
    ratio = finalists.get(winner.number)
    return _score(winner) if ratio is None else float(ratio["ratio"])


def _metrics(outcome: TrialOutcome | None, score: float | None) -> dict[str, float | None]:
    if outcome is None:
        return {"score": score}
    names = dict.fromkeys(name for repeat in outcome.repeats for name in repeat.metrics)
    return {**{name: outcome.metric(name) for name in names}, "score": score}
