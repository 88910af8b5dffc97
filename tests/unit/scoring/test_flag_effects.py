"""What a user reads of the flags' worth."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from storage.records import Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tuner.scoring.flag_effects import flag_effect_lines


def flag(name: str, ratio: float, low: float, high: float, needed: float = 0.0, default: Any = None) -> dict[str, Any]:
    metrics = {"output_throughput": 1.5, "p99_tpot_ms": 0.98}
    return {
        "name": name,
        "value": 8,
        "default": default,
        "ratio": ratio,
        "low": low,
        "high": high,
        "metrics": metrics,
        "needed": needed,
        "trials": 2,
    }


def trials(provenance: Provenance) -> list[TrialRecord]:
    """Three trials of the search, one of which failed to be measured, and a round."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    repeat = Repeat(0, 1, 1, 1, 0, 1.0, {"output_throughput": 1.0})
    measured = TrialOutcome(now, now, provenance, "w", "d", {}, "", repeats=(repeat,))
    empty = TrialOutcome(now, now, provenance, "w", "d", {}, "")
    places = [(0, 0, measured), (1, 0, measured), (2, 0, empty), (1, 1, measured)]
    return [
        TrialRecord("s", number, round_, TrialKind.SEARCH, None, {}, {}, 1, now, outcome)
        for number, round_, outcome in places
    ]


@pytest.mark.parametrize(
    ("provenance", "word"), [(Provenance.MEASURED, "measured"), (Provenance.SIMULATED, "simulated")]
)
def test_what_is_known_is_told_from_what_is_not_and_from_what_is_simulated(provenance: Provenance, word: str) -> None:
    earned = [
        flag("speculative", 1.4, 1.2, 1.6),
        flag("batch", 1.1, 0.9, 1.3, default=64),
        flag("slots", 1.0, 0.8, 1.2, needed=0.9),
        flag("level", 0.8, 0.7, 0.9),
        flag("idle", 0.99, 0.9, 1.1),
    ]
    assert flag_effect_lines(earned, trials(provenance)) == [
        f"what its flags earn, each put back alone, estimated from 2 {word} trials (95 % intervals):",
        "  speculative=8 ×1.40 of the score [1.20, 1.60] (output_throughput ×1.50, p99_tpot_ms ×0.98), default: unset",
        "  slots=8 ×1.00 of the score [0.80, 1.20] (output_throughput ×1.50, p99_tpot_ms ×0.98), default: unset; "
        "without it 90 % likely to fail or to miss an SLO",
        "  level=8 ×0.80 of the score [0.70, 0.90] (output_throughput ×1.50, p99_tpot_ms ×0.98), default: unset",
        "  not known to earn anything: batch=8, idle=8",
    ]


def test_where_nothing_is_known_it_is_one_line() -> None:
    assert flag_effect_lines([flag("batch", 1.1, 0.9, 1.3)], trials(Provenance.MEASURED)) == [
        "none of its flags is known to earn anything, each put back alone, estimated from 2 measured trials "
        "(95 % intervals): batch=8"
    ]


def test_the_defaults_earn_nothing_and_nothing_is_said() -> None:
    assert flag_effect_lines([], trials(Provenance.MEASURED)) == []
