"""The reference of a study: the trial that scores 1, and that the finalists are compared with in the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search_spaces import ENGINE
from storage.measured import REFERENCES
from storage.records import BASELINE, DEFAULTS, JsonScalar, TrialKind, TrialRecord
from tuner.confidence import INTERVAL
from tuner.study.conclusion.conclusion import Conclusion


def defaults_of(records: Sequence[TrialRecord], reference: TrialRecord, winner: TrialRecord | None) -> int:
    """Return the number of the defaults from which a winner differs.

    In a study of several engines they are those of the winner's engine. Otherwise they are the reference; where a
    finalist is in its place, the defaults, if known.
    """
    searched = [record for record in records if not record.round]
    engine = None if winner is None else winner.config.get(ENGINE)
    if engine is not None:
        own = next((record for record in searched if record.config == {ENGINE: engine}), None)
        if own is not None:
            return own.number
    known = (record.number for record in searched if record.kind is TrialKind.BASELINE)
    return reference.number if reference.kind in REFERENCES else next(known, reference.number)


def chosen_by_engine(records: Sequence[TrialRecord]) -> dict[str, JsonScalar]:
    """Return the values of parameters that the engine chose by itself, as its log says, in the trial of the defaults.

    A flag with the same value cannot pay, although the search space does not know that default.
    """
    defaults = (r.outcome for r in records if r.kind is TrialKind.BASELINE and not r.round and r.outcome is not None)
    server = next((outcome.server for outcome in defaults if outcome.succeeded), None)
    backend = None if server is None else server.attention_backend
    return {} if backend is None else {"attention_backend": backend}


def name_of(record: TrialRecord) -> str:
    """Return how texts name a reference."""
    if record.kind is TrialKind.CURRENT:
        return "the baseline"
    return "the defaults" if record.kind is TrialKind.BASELINE else f"trial {record.number}"


def kept_name(record: TrialRecord) -> str:
    """Return what a conclusion keeps if it keeps this reference."""
    return BASELINE if record.kind is TrialKind.CURRENT else DEFAULTS


def failed_references(records: Sequence[TrialRecord]) -> list[str]:
    """Return a clause for each possible reference that failed: `the defaults failed (engine_crash)`."""
    clauses = []
    for kind in REFERENCES:
        for record in records:
            failure = record.outcome.failure if record.outcome is not None else None
            if record.kind is kind and not record.round and failure is not None:
                clauses.append(f"{name_of(record)} failed ({failure.kind})")
    return clauses


def with_earlier_winner(
    conclusion: Conclusion, leader: int | None, rounds: int, group: Sequence[TrialRecord]
) -> Conclusion:
    """Return the conclusion. Where the reference stays although a finalist won the first rounds, its reason says so.

    Args:
        conclusion: from all rounds.
        leader: number of the winner of the first rounds; None if there was none.
        rounds: how many rounds it won.
        group: the trials of the last rounds, the reference first.
    """
    score = next((each.score for each in conclusion.finalists if each.number == leader), None)
    if conclusion.keeps is None or score is None or score.low is None or score.high is None:
        return conclusion
    ends = f"{INTERVAL} {score.low:.3f} to {score.high:.3f}"
    reason = (
        f"keep {name_of(group[0])}: trial {leader} led after {rounds} rounds, but in all {score.rounds} rounds with "
        f"both it is not better beyond the noise: score {score.ratio:.3f} ({ends})"
    )
    return replace(conclusion, reason=reason)
