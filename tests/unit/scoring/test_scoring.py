"""Objectives, SLOs and the score, against values worked out by hand."""

import math
from datetime import UTC, datetime

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialOutcome
from tuner.errors import SettingError
from tuner.scoring.goals import FAILED, Goals, Slo, log_scores, parse_objective, parse_slo, score

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


def test_absent_metric_passes_no_slo() -> None:
    goals = Goals(PUBLISHED[:1], (parse_slo("p99_ttft_ms<2000"),), PUBLISHED)
    verdict = goals.verdict(outcome(output_throughput=10.0), BASE)
    assert verdict is not None
    assert not verdict.feasible


def test_failure_of_the_configuration_is_a_constraint_without_values() -> None:
    goals = Goals(PUBLISHED[:3], (), PUBLISHED)
    verdict = goals.verdict(outcome(Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "OOM")), BASE)
    assert verdict is not None
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
    verdict = goals.verdict(result, None)
    assert verdict is not None
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
    relative = score(runs[0], runs[1], objectives)
    assert relative is not None
    assert math.isfinite(relative)
    assert relative > 0
    assert all(math.isfinite(each) for each in log_scores(runs, objectives))


def test_a_violation_is_finite_whatever_the_threshold() -> None:
    assert math.isfinite(parse_slo("p99_ttft_ms<1e-320").violation(1e300))
    assert math.isfinite(parse_slo("goodput>=1e300").violation(-1e300))


def test_a_weight_has_a_largest_value() -> None:
    with pytest.raises(SettingError, match=r"at most 1e\+09"):
        parse_objective("goodput:1e308")
