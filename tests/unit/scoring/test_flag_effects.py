"""The lines of text about flag effects."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from records.trials import Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tuner.scoring.flag_effects import effect_together, effects_basis, flag_effect_lines


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
def test_flags_with_a_measurable_effect_have_a_line_each(provenance: Provenance, word: str) -> None:
    effects = [
        flag("speculative", 1.4, 1.2, 1.6),
        flag("batch", 1.1, 0.9, 1.3, default=64),
        flag("slots", 1.0, 0.8, 1.2, needed=0.9),
        flag("level", 0.8, 0.7, 0.9),
        flag("idle", 0.99, 0.9, 1.1),
    ]
    assert flag_effect_lines(effects, trials(provenance)) == [
        f"flag effects (each reset to its default, estimated from 2 {word} trials, 95 % confidence intervals):",
        "  speculative=8: score ×1.40 [1.20, 1.60] (output_throughput ×1.50, p99_tpot_ms ×0.98), default unset",
        "  slots=8: score ×1.00 [0.80, 1.20] (output_throughput ×1.50, p99_tpot_ms ×0.98), default unset; "
        "90 % risk of a failure or a missed SLO without it",
        "  level=8: score ×0.80 [0.70, 0.90] (output_throughput ×1.50, p99_tpot_ms ×0.98), default unset",
        "  no measurable effect: batch=8, idle=8",
    ]


def test_without_a_measurable_effect_there_is_one_line() -> None:
    assert flag_effect_lines([flag("batch", 1.1, 0.9, 1.3)], trials(Provenance.MEASURED)) == [
        "the effect of each single flag is within the noise (each reset to its default, "
        "estimated from 2 measured trials, 95 % confidence intervals): batch=8"
    ]


def test_fractions_are_shown_without_their_binary_rounding() -> None:
    memory = {**flag("memory", 1.1, 0.9, 1.3), "value": 0.8799999999999999}
    [line] = flag_effect_lines([memory], trials(Provenance.MEASURED))
    assert line.endswith(": memory=0.88")


def test_where_only_all_flags_together_have_a_measurable_effect_it_is_told() -> None:
    effects = [flag("batch", 1.1, 0.9, 1.3), flag("slots", 1.1, 0.95, 1.3)]
    records = [replace(each, kind=TrialKind.BASELINE) for each in trials(Provenance.MEASURED) if each.number == 0]
    score = {"ratio": 1.25, "low": 1.17, "high": 1.34, "rounds": 4}
    conclusion = {"winner": 1, "reference": 0, "contenders": [{"number": 1, "score": score}]}
    together = effect_together(conclusion, records)
    assert flag_effect_lines(effects, records, together) == [
        "batch=8, slots=8 together: score ×1.25 [1.17, 1.34], in 4 rounds; the share of each flag is not known yet "
        "(each reset to its default, estimated from 2 measured trials, 95 % confidence intervals)"
    ]
    assert effect_together(conclusion, trials(Provenance.MEASURED)) is None  # compared with another configuration
    score["low"] = 0.99
    assert effect_together(conclusion, records) is None


@pytest.mark.parametrize(
    ("rounds", "basis"),
    [
        ((0, 0), "estimated from 2 measured trials"),
        ((3, 3), "measured in 3 rounds"),
        ((3, 0), "a measured in 3 rounds, the others estimated from 2 measured trials"),
    ],
)
def test_measured_effects_are_told_from_estimated_ones(rounds: tuple[int, int], basis: str) -> None:
    effects = [flag(name, 1.1, 1.0, 1.2) | {"rounds": count} for name, count in zip("ab", rounds, strict=True)]
    assert effects_basis(effects, simulated=False) == basis


def test_the_defaults_have_no_flag_effects() -> None:
    assert flag_effect_lines([], trials(Provenance.MEASURED)) == []
