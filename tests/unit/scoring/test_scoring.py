"""Objectives, SLOs, scores, costs, comparisons and fronts, against values worked out by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tests.some import some
from tests.unit.cli.studies import GOALS, out_of_memory, trial
from tuner.errors import SettingError
from tuner.scoring import front as fronts
from tuner.scoring.compare import (
    LEAST_DEVIATION,
    Noise,
    Ratio,
    logarithms,
    paired_ratio,
    pooled_noise,
    residual_noise,
    unpaired_ratio,
)
from tuner.scoring.cost import throughput_behind, token_costs
from tuner.scoring.flag_effects import effect_together, effects_basis, flag_effect_lines
from tuner.scoring.front import Point, Weighed
from tuner.scoring.goals import FAILED, Goals, Objective, Slo, log_scores, parse_objective, parse_slo, score
from tuner.scoring.rounds import StudyRounds

PUBLISHED = tuple(parse_objective(m) for m in ("output_throughput", "p99_tpot_ms", "p99_ttft_ms", "success_rate"))
BASE = {"output_throughput": 3332.0, "p99_tpot_ms": 14.8, "p99_ttft_ms": 1180.0, "success_rate": 1.0}


def outcome(failure: Failure | None = None, **metrics: float | None) -> TrialOutcome:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    repeats = () if failure else (Repeat(0, 1, 200, 200, 0, 30.7, metrics),)
    return TrialOutcome(now, now, Provenance.MEASURED, "w0", "cpu", {}, "", repeats=repeats, failure=failure)


def test_reference_scores_one() -> None:
    assert score(BASE, BASE, PUBLISHED) == pytest.approx(1.0)


def test_score_by_hand() -> None:
    # Throughput doubled (weight 40 of 85), TPOT halved (20 of 85), TTFT doubled (15 of 85), success equal (10 of 85):
    # exponent of 2 is (40 + 20 - 15) / 85 = 45/85.
    values = {"output_throughput": 6664.0, "p99_tpot_ms": 7.4, "p99_ttft_ms": 2360.0, "success_rate": 1.0}
    assert score(values, BASE, PUBLISHED) == pytest.approx(2 ** (45 / 85))


def test_score_is_renormalised_over_what_was_measured() -> None:
    # Only throughput (40) and success (10) on both sides: 2 ** (40/50).
    values = {"output_throughput": 6664.0, "p99_tpot_ms": None, "success_rate": 1.0}
    assert score(values, BASE, PUBLISHED) == pytest.approx(2**0.8)


def test_nothing_in_common_has_no_score() -> None:
    assert score({"p99_tpot_ms": None}, BASE, PUBLISHED) is None


def test_published_weights_are_the_default() -> None:
    assert [objective.weight for objective in PUBLISHED] == [40, 20, 15, 10]
    assert parse_objective("mean_itl_ms").weight == 20
    assert parse_objective("p99_tpot_ms:7").weight == 7


@pytest.mark.parametrize("text", ["tok/s", "output_throughput:0", "output_throughput:-1", "output_throughput:nan", ""])
def test_bad_objectives(text: str) -> None:
    with pytest.raises(SettingError, match=r"^objective="):
        parse_objective(text)


@pytest.mark.parametrize("text", ["p99_tpot<50", "p99_tpot_ms=50", "p99_tpot_ms<fast", "p99_tpot_ms<inf", "<5", ""])
def test_bad_slos(text: str) -> None:
    with pytest.raises(SettingError, match=r"^slo="):
        parse_slo(text)


def test_unknown_metric_names_near_ones() -> None:
    with pytest.raises(SettingError, match="p99_tpot_ms"):
        parse_slo("p99_tpots_ms<50")


@pytest.mark.parametrize(
    ("slo", "value", "expected"),
    [
        ("p99_tpot_ms<50", 25.0, -0.5),
        ("p99_tpot_ms<50", 75.0, 0.5),
        ("p99_tpot_ms<50", 50.0, 1e-9),
        ("p99_tpot_ms<=50", 50.0, 0.0),
        ("success_rate>=1", 1.0, 0.0),
        ("success_rate>=1", 0.97, 0.03),
        ("p99_tpot_ms<50", None, 1.0),
    ],
)
def test_violation_by_hand(slo: str, value: float | None, expected: float) -> None:
    assert parse_slo(slo).violation(value) == pytest.approx(expected)


def test_slo_reads_back() -> None:
    assert str(parse_slo(" p99_ttft_ms <= 2000 ")) == "p99_ttft_ms<=2000"
    assert parse_slo("p99_ttft_ms<=2000") == Slo("p99_ttft_ms", "<=", 2000.0)
    assert parse_slo("p99_ttft_ms≤1.5s") == Slo("p99_ttft_ms", "<=", 1500.0)
    assert parse_slo("chat.p95_tpot_ms < 40 ms") == Slo("chat.p95_tpot_ms", "<", 40.0)
    assert parse_slo("success_rate>=99.9%") == Slo("success_rate", ">=", 0.999)
    with pytest.raises(SettingError, match="goodput is in req/s, not in %; leave the unit out"):
        parse_slo("goodput>5%")


def test_absent_metric_passes_no_slo() -> None:
    goals = Goals(PUBLISHED[:1], (parse_slo("p99_ttft_ms<2000"),), PUBLISHED)
    verdict = some(goals.verdict(outcome(output_throughput=10.0), BASE))
    assert not verdict.feasible


def test_failure_of_the_configuration_is_a_constraint_without_values() -> None:
    goals = Goals(PUBLISHED[:3], (), PUBLISHED)
    verdict = some(goals.verdict(outcome(Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "OOM")), BASE))
    assert verdict.constraints == {FAILED: 10.0}
    assert set(verdict.values.values()) == {None}
    assert verdict.score is None
    assert not verdict.feasible


def test_a_failure_of_the_infrastructure_has_no_verdict() -> None:
    goals = Goals(PUBLISHED[:3], (), PUBLISHED)
    assert goals.verdict(outcome(Failure(FailureKind.PORT_TAKEN, Phase.LAUNCH, "taken")), BASE) is None


def test_median_of_repeats_and_absence() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    repeats = tuple(
        Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": v, "p99_tpot_ms": t})
        for i, (v, t) in enumerate([(100.0, 5.0), (300.0, None), (110.0, 6.0)])
    )
    result = TrialOutcome(now, now, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats)
    assert result.metric("output_throughput") == 110.0
    assert result.metric("p99_tpot_ms") is None
    assert not math.isnan(result.metric("output_throughput") or math.nan)


def test_the_success_rate_counts_every_request_of_all_repeats() -> None:
    # 10 + 9 + 10 of 30: the median of the repeats would say that nothing failed.
    now = datetime(2026, 1, 1, tzinfo=UTC)
    repeats = tuple(
        Repeat(i, i, 10, completed, 10 - completed, 1.0, {"success_rate": completed / 10})
        for i, completed in enumerate((10, 9, 10))
    )
    result = TrialOutcome(now, now, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats)
    assert result.metric("success_rate") == pytest.approx(29 / 30)
    goals = Goals((), (parse_slo("success_rate>=1"),), ())
    verdict = some(goals.verdict(result, None))
    assert not verdict.feasible


def test_zero_goodput_counts_as_a_hundredth_of_the_other_value() -> None:
    goodput = parse_objective("goodput:1")
    assert score({"goodput": 0.0}, {"goodput": 5.0}, [goodput]) == pytest.approx(0.01)
    assert score({"goodput": 5.0}, {"goodput": 0.0}, [goodput]) == pytest.approx(100.0)
    assert score({"goodput": 0.0}, {"goodput": 0.0}, [goodput]) is None
    # Half the latency cannot make up for it: exp((ln 0.01 + ln 2) / 2) = sqrt(0.02).
    both = [goodput, parse_objective("p99_ttft_ms:1")]
    values, base = {"goodput": 0.0, "p99_ttft_ms": 5.0}, {"goodput": 5.0, "p99_ttft_ms": 10.0}
    assert score(values, base, both) == pytest.approx(0.02**0.5)


def test_log_scores_differ_by_the_logarithm_of_the_score() -> None:
    better = {"output_throughput": 6664.0, "p99_tpot_ms": 7.4, "p99_ttft_ms": 2360.0, "success_rate": 1.0}
    first, second = log_scores([better, BASE], PUBLISHED)
    assert first - second == pytest.approx(math.log(2) * 45 / 85)


def test_a_metric_that_one_run_lacks_counts_in_none() -> None:
    # Of the second run TPOT is absent, so throughput (40) and success (10) remain: 2 ** (40/50) in all three runs.
    runs: list[dict[str, float | None]] = [
        {"output_throughput": 200.0, "p99_tpot_ms": 1.0, "success_rate": 1.0},
        {"output_throughput": 100.0, "p99_tpot_ms": None, "success_rate": 1.0},
        {"output_throughput": 200.0, "p99_tpot_ms": 9.0, "success_rate": 1.0},
    ]
    logs = log_scores(runs, PUBLISHED[:2] + PUBLISHED[3:])
    assert [each - logs[1] for each in logs] == pytest.approx([0.8 * math.log(2), 0.0, 0.8 * math.log(2)])


def test_a_latency_of_zero_cannot_be_compared() -> None:
    ttft = parse_objective("p99_ttft_ms:1")
    assert score({"p99_ttft_ms": 0.0}, {"p99_ttft_ms": 5.0}, [ttft]) is None
    assert log_scores([{"p99_ttft_ms": 0.0}, {"p99_ttft_ms": 5.0}], [ttft]) == [0.0, 0.0]


EXTREMES = (5e-324, 1e-300, 1.0, 1e300, 1.7e308, math.inf, -math.inf, math.nan, 0.0, -1.0, None)


@pytest.mark.parametrize("metric", ["output_throughput", "p99_ttft_ms"])
@pytest.mark.parametrize("base", EXTREMES)
@pytest.mark.parametrize("value", EXTREMES)
def test_a_score_is_finite_whatever_the_values(metric: str, value: float | None, base: float | None) -> None:
    objectives = [parse_objective(f"{metric}:1e9"), parse_objective("success_rate:1e-320")]
    runs: list[dict[str, float | None]] = [{metric: value, "success_rate": 1.0}, {metric: base, "success_rate": 1.0}]
    relative = some(score(runs[0], runs[1], objectives))
    assert math.isfinite(relative)
    assert relative > 0
    assert all(math.isfinite(each) for each in log_scores(runs, objectives))


def test_a_violation_is_finite_whatever_the_threshold() -> None:
    assert math.isfinite(parse_slo("p99_ttft_ms<1e-320").violation(1e300))
    assert math.isfinite(parse_slo("goodput>=1e300").violation(-1e300))


def test_a_weight_has_a_largest_value() -> None:
    with pytest.raises(SettingError, match=r"at most 1e\+09"):
        parse_objective("goodput:1e308")


def noise_within(*groups: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise of groups of configurations, a row for each, that share neither configurations nor rounds."""
    rows = [(10 * group, place, row) for group, rows in enumerate(groups) for place, row in enumerate(rows)]
    return residual_noise(
        {(first + place, first + round_): value for first, place, row in rows for round_, value in enumerate(row)}
    )


def test_interval_by_hand_for_two_configurations() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2. For two rows the residuals are +-(d - mean)/2, so their squares add up to
    # 2 * 2 * 0.05**2 = 0.01 over (2-1)(3-1) = 2 degrees: s2 = 0.005. t(0.975, 2) = 4.302653.
    # Half-width = 4.302653 * sqrt(2 * 0.005 / 3) = 0.248414: the classical paired t interval.
    noise = some(noise_within([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]]))
    assert noise.degrees == 2
    assert noise.deviation**2 == pytest.approx(0.005)
    result = paired_ratio([0.1, 0.2, 0.3], noise, 1)
    assert result.ratio == pytest.approx(math.exp(0.2))
    assert math.log(result.low or 0) == pytest.approx(0.2 - 0.248414, abs=1e-5)
    assert math.log(result.high or 0) == pytest.approx(0.2 + 0.248414, abs=1e-5)
    assert not result.beyond_noise


def test_more_finalists_widen_the_interval_for_the_choice_and_share_the_variance() -> None:
    # Three rows, two comparisons: alpha is halved, t(1 - 0.05/4, (3-1)(2-1) = 2) = 6.205347.
    # Columns differ by a shift only for rows 0 and 2; row 1 is off by +-0.1.
    # Row means .5 .7 .5, column means .1 and 31/30, grand 17/30: residuals row 1: +-1/15, rows 0 and 2: -+1/30.
    residual = 2 * (1 / 15) ** 2 + 4 * (1 / 30) ** 2
    half = 6.205347 * math.sqrt(2 * (residual / 2) / 2)
    result = paired_ratio([0.3, 0.1], noise_within([[0.0, 1.0], [0.3, 1.1], [0.0, 1.0]]), 2)
    assert math.log(result.high or 0) == pytest.approx(0.2 + half, abs=1e-5)


def test_the_noise_of_several_groups_is_pooled() -> None:
    # 0.01 with 2 degrees, as above, and no residual with 2 more: s2 = 0.0025.
    noise = some(noise_within([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]], [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]))
    assert noise.degrees == 4
    assert noise.deviation == pytest.approx(0.05)


def test_a_configuration_that_lacks_a_round_counts_in_the_others() -> None:
    # Without the last value 0.3 the differences are 0.1 and 0.2: squares 4 * 0.025**2 over 5 - 4 = 1 degree.
    noise = some(residual_noise({(0, 0): 0.0, (0, 1): 0.0, (0, 2): 7.0, (1, 0): 0.1, (1, 1): 0.2}))
    assert noise.degrees == 1
    assert noise.deviation == pytest.approx(0.05)


def test_three_rounds_that_happen_to_agree_give_no_interval_of_a_tenth_of_a_per_cent() -> None:
    # s counts as 0.005: half-width 4.302653 * 0.005 * sqrt(2 / 3) = 0.017565.
    result = paired_ratio([-0.045, -0.0451, -0.0449], Noise(0.0001, 2), 1)
    assert LEAST_DEVIATION == 0.005
    assert math.log(result.high or 0) == pytest.approx(-0.045 + 0.017565, abs=1e-5)


def test_values_that_never_vary_have_no_interval() -> None:
    assert paired_ratio([0.0, 0.0], Noise(0.0, 1), 1) == Ratio(1.0, None, None, 2)


def test_one_round_gives_a_ratio_and_no_interval() -> None:
    result = paired_ratio([math.log(1.5)], None, 1)
    assert result.ratio == pytest.approx(1.5)
    assert result.low is None
    assert not result.beyond_noise


def test_ratios_are_finite_whatever_the_rounds() -> None:
    ratio = paired_ratio([1400.0, -1400.0], Noise(1000.0, 1), 1)
    assert 0 < some(ratio.low) <= ratio.ratio <= some(ratio.high) < math.inf


def test_without_two_configurations_and_rounds_there_is_no_noise() -> None:
    assert [noise_within(rows) for rows in ([], [[0.0, 1.0]], [[0.0], [1.0]])] == [None, None, None]
    assert pooled_noise([[1.0], [2.0], []]) is None


def test_benchmarks_of_two_servers_are_compared_by_the_noise_within_servers() -> None:
    # Squares 0.0002 and 0.0002 with one degree each: s = 0.0141421. t(0.975, 2) = 4.302653; 1 / 2 + 1 / 1 = 1.5.
    noise = pooled_noise([[0.0, 0.02], [1.0, 1.02]])
    result = unpaired_ratio([0.0, 0.02], [0.1], noise)
    assert result.rounds == 0
    assert result.ratio == pytest.approx(math.exp(0.09))
    assert math.log(result.high or 0) == pytest.approx(0.09 + 4.302653 * 0.0141421 * math.sqrt(1.5), abs=1e-5)


def test_a_ratio_the_other_way_round() -> None:
    assert Ratio(2.0, 1.6, 2.5, 3).inverse() == Ratio(0.5, 0.4, 0.625, 3)


def test_an_absent_value_or_one_that_is_not_positive_has_no_logarithm() -> None:
    assert [logarithms(values) for values in ([], [1.0, None], [1.0, 0.0], [1.0])] == [None, None, None, [0.0]]


OUTPUT, TOTAL = "cost_per_million_output_tokens", "cost_per_million_total_tokens"


def test_the_cost_is_the_price_of_the_time_of_a_million_tokens() -> None:
    # 1,000 tokens a second: a million take 1,000 s, at 3.6 per hour
    costs = token_costs({"output_throughput": 1000.0, "total_token_throughput": 4000.0}, 3.6)
    assert costs == {OUTPUT: pytest.approx(1.0), TOTAL: pytest.approx(0.25)}


def test_with_slos_only_tokens_within_them_count() -> None:
    metrics = {
        "output_throughput": 1000.0,
        "output_goodput": 500.0,
        "total_token_throughput": 4000.0,
        "total_token_goodput": 2000.0,
    }
    assert token_costs(metrics, 3.6) == {OUTPUT: pytest.approx(2.0), TOTAL: pytest.approx(0.5)}


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"output_throughput": None},
        {"output_throughput": 0.0},
        {"output_throughput": 1000.0, "output_goodput": 0.0},
    ],
)
def test_no_token_has_no_cost(metrics: dict[str, float | None]) -> None:
    assert token_costs(metrics, 3.6)[OUTPUT] is None


def test_without_a_price_there_is_no_cost_at_all() -> None:
    assert token_costs({"output_throughput": 1000.0}, None) == {}


@given(st.floats(1e-6, 1e6), st.floats(1e-9, 1e15))
def test_a_cost_is_finite_and_falls_with_the_throughput(price: float, rate: float) -> None:
    one, other = (token_costs({"output_throughput": each}, price)[OUTPUT] for each in (rate, 2 * rate))
    assert one is not None
    assert one == pytest.approx(2 * other if other is not None else None)
    assert 0 < one < float("inf")


def test_the_throughput_behind_a_cost_keeps_its_prefix() -> None:
    assert throughput_behind("day.cost_per_million_total_tokens") == "day.total_token_throughput"
    assert throughput_behind(OUTPUT) == "output_throughput"
    assert throughput_behind("p99_ttft_ms") == "p99_ttft_ms"


BOTH = ("output_throughput", "p99_tpot_ms")


def front(records: Sequence[TrialRecord], reference: int, names: Sequence[str]) -> list[Point]:
    return fronts.front(StudyRounds(GOALS, records), reference, names)


def weighed(records: Sequence[TrialRecord], reference: int, scored: Sequence[Objective]) -> list[Weighed]:
    return fronts.weighed(StudyRounds(replace(GOALS, scored=tuple(scored)), records), reference)


def on_front(*records: TrialRecord) -> list[int]:
    return [point.number for point in front(records, 0, BOTH) if point.on_front]


def test_a_trial_that_another_one_beats_in_every_metric_is_not_on_the_front() -> None:
    fast, quick = trial(1, 1200.0, tpot=12.0), trial(2, 900.0, tpot=8.0)
    assert on_front(trial(0), fast, quick) == [0, 1, 2]
    assert on_front(trial(0), fast, quick, trial(3, 1200.0, tpot=9.0)) == [2, 3]  # as fast as 1, better than 0


def test_equal_trials_are_both_on_the_front() -> None:
    assert on_front(trial(0), trial(1)) == [0, 1]


def test_what_failed_or_missed_an_slo_in_the_search_or_in_a_round_is_not_on_the_front() -> None:
    missed = trial(1, 2000.0, tpot=60.0)  # p99_tpot_ms<50
    failed = trial(2, failure=out_of_memory())
    lucky = [trial(3, 2000.0), trial(3, 2000.0, tpot=60.0, round_=1)]
    crashed = [trial(4, 2000.0), trial(4, failure=out_of_memory(), round_=1)]
    assert on_front(trial(0), missed, failed, *lucky, *crashed) == [0]


def test_rounds_replace_the_search_and_are_relative_to_the_reference_in_the_same_rounds() -> None:
    # The rounds send more requests, so that their values are not those of the search.
    rounds = [
        trial(0, 500.0, round_=1),
        trial(0, 600.0, round_=2),
        trial(1, 550.0, round_=1),
        trial(1, 660.0, round_=2),
    ]
    points = {point.number: point for point in front([trial(0), trial(1, 2000.0), trial(2, 1200.0), *rounds], 0, BOTH)}
    assert (points[1].rounds, points[2].rounds) == (2, 0)
    assert points[1].metrics["output_throughput"].ratio == pytest.approx(1.1)
    # No noise, which counts as 0.5 %: t(0.975, 1) * 0.005 * sqrt(2 / 2) = 0.063531.
    assert math.log(points[1].metrics["output_throughput"].low or 0) == pytest.approx(
        math.log(1.1) - 0.063531, abs=1e-5
    )
    assert points[2].metrics["output_throughput"].ratio == pytest.approx(1.2)
    assert points[2].metrics["output_throughput"].low is None  # nothing has repeats


def test_the_noise_of_repeats_is_the_interval_of_a_single_measurement() -> None:
    one = trial(0)
    repeats = tuple(
        Repeat(index, index, 100, 100, 0, 40.0, {"output_throughput": value, "p99_tpot_ms": 10.0})
        for index, value in enumerate((1000.0, 1000.0 * math.e**0.02))
    )
    reference = replace(one, outcome=replace(some(one.outcome), repeats=repeats))
    point = front([reference, trial(1, 1200.0)], 0, BOTH)[1].metrics["output_throughput"]
    # s = 0.02 / sqrt(2), one degree: t(0.975, 1) = 12.7062, so the half-width is 12.7062 * 0.0141421 * sqrt(1 + 1/2).
    half = 12.7062 * 0.0141421 * math.sqrt(1.5)
    assert point.ratio == pytest.approx(1.2 / math.e**0.01)
    assert math.log(some(point.high) / (point.ratio or 1)) == pytest.approx(half, abs=1e-4)


def test_other_weights_choose_another_trial() -> None:
    records = [trial(0), trial(1, 2000.0, tpot=20.0), trial(2, 800.0, tpot=5.0), trial(3, 4000.0, tpot=60.0)]
    throughput = [parse_objective("output_throughput:3"), parse_objective("p99_tpot_ms:1")]
    found = weighed(records, 0, throughput)
    assert [each.number for each in found] == [1, 2, 0]  # 3 misses its SLO
    assert found[0].score.ratio == pytest.approx(2.0 ** (3 / 4) * 0.5 ** (1 / 4))
    latency = weighed(records, 0, [parse_objective("p99_tpot_ms:1")])
    assert [(each.number, each.score.ratio) for each in latency] == [(2, 2.0), (0, 1.0), (1, 0.5)]
    assert found[0].score.rounds == 0


def test_a_score_of_rounds_has_their_interval() -> None:
    rounds = [trial(0, 1000.0, round_=n) for n in (1, 2, 3)]
    rounds += [trial(1, 1000.0 * math.exp(d), round_=n) for n, d in ((1, 0.1), (2, 0.2), (3, 0.3))]
    found = weighed([trial(0), trial(1, 3000.0), *rounds], 0, [parse_objective("output_throughput")])[0]
    assert (found.number, found.score.rounds) == (1, 3)
    assert found.score.ratio == pytest.approx(math.exp(0.2))
    # As in test_compare: t(0.975, 2) * 0.1 / sqrt(3).
    assert math.log(found.score.low or 0) == pytest.approx(0.2 - 0.248414, abs=1e-5)


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
