"""The conclusion: its winner or the defaults, and the effects of flags."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from records.trials import (
    Config,
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from search_spaces import JoinedSpace, join, load_space
from tests.some import some
from tests.unit.search_spaces.test_joined_space import LLAMA, VLLM
from tests.unit.study.conftest import Bench
from tuner.confidence import t_quantile
from tuner.scoring.goals import distance_of
from tuner.specs import TrialSpec
from tuner.study.alternatives import mean_interval, nearest_of, nearest_trials
from tuner.study.conclusion import Conclusion, without_one_flag
from tuner.study.confirmation import nominate
from tuner.study.decide import Preference, conclude, noise_of
from tuner.study.reduction import without_flags
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import Enqueued

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOALS = make_goals(["output_throughput"], ["p99_tpot_ms<50"])


def record(
    number: int, values: list[float], round_: int = 0, tpot: float = 10.0, score: float | None = 1.0
) -> TrialRecord:
    metrics = [{"output_throughput": v, "p99_tpot_ms": tpot, "success_rate": 1.0} for v in values]
    repeats = tuple(Repeat(i, i, 10, 10, 0, 1.0, m) for i, m in enumerate(metrics))
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w0", "cpu", {}, "", repeats=repeats)
    kind = TrialKind.CONFIRM if round_ else TrialKind.BASELINE if number == 0 else TrialKind.SEARCH
    verdict = Verdict({"output_throughput": values[0]}, {"p99_tpot_ms<50": (tpot - 50) / 50}, score)
    label = "finals" if round_ else None
    return TrialRecord("s", number, round_, kind, label, {}, {"x": number}, 1, NOW, outcome, verdict)


def failing(
    trial: TrialRecord, kind: FailureKind = FailureKind.KV_CACHE_TOO_SMALL, phase: Phase = Phase.READY
) -> TrialRecord:
    failure = Failure(kind, phase, "no memory")
    return replace(trial, outcome=replace(some(trial.outcome), failure=failure, repeats=()))


def rounds(*triples: tuple[int, Sequence[float]]) -> list[TrialRecord]:
    return [record(number, [v], i + 1) for number, values in triples for i, v in enumerate(values)]


def test_a_gain_beyond_the_noise_wins() -> None:
    finalists = [record(0, [100.0]), record(3, [120.0], score=1.2)]
    found = conclude(GOALS, [*finalists, *rounds((0, [100, 101, 99]), (3, [120, 121, 119]))], finalists, "finals")
    assert found.winner == 3
    assert not found.keep_defaults
    ratio = found.finalists[0].metrics["output_throughput"]
    assert ratio.ratio == pytest.approx(1.2, abs=0.002)
    # Throughput weighs 40 and success 10 of 50, success is equal: the score's gain is 1.2 ** 0.8.
    assert some(found.finalists[0].score).ratio == pytest.approx(1.2**0.8, abs=0.002)


def test_a_gain_within_the_noise_keeps_the_defaults() -> None:
    finalists = [record(0, [100.0]), record(3, [110.0], score=1.1)]
    found = conclude(GOALS, [*finalists, *rounds((0, [100, 110, 90]), (3, [110, 92, 108]))], finalists, "finals")
    assert found.winner == 0
    assert found.keep_defaults
    assert found.confirmed
    [score] = [each.score for each in found.finalists]
    assert score is not None
    excluded = f"gains above {100 * (some(score.high) - 1):.1f} % are excluded with 97.5 % confidence"
    assert found.reason == (
        f"keep the defaults: no finalist is better beyond the noise "
        f"(the best finalist's score is {score.ratio:.3f}; {excluded})"
    )


def test_a_gain_of_one_round_is_not_called_noise() -> None:
    finalists = [record(0, [100.0]), record(3, [190.0], score=1.9)]
    found = conclude(GOALS, [*finalists, *rounds((0, [100]), (3, [190]))], finalists, "finals")
    assert (found.winner, found.keep_defaults) == (0, True)
    gain = "one round cannot tell a gain from noise, two or more can (the best finalist's score is 1.671)"
    assert found.reason == f"keep the defaults: {gain}"  # 1.9 ** 0.8
    worse = conclude(GOALS, [*finalists, *rounds((0, [100]), (3, [90]))], finalists, "finals")
    assert worse.reason.startswith("keep the defaults: no finalist is better beyond the noise")


ALIKE = ((0, [100, 101, 99]), (3, [150, 152, 148]), (4, [149, 150, 148]))
"""Trial 4 loses 0.4 % of the throughput, a third of 1 % of the score."""


def decided(
    *triples: tuple[int, Sequence[float]], flags: dict[int, int], as_good: Sequence[int] = (3, 4), losses: float = 0.004
) -> Conclusion:
    """Return the conclusion where trial 4 is expected to lose so much of its score."""
    finalists = [record(number, [100.0]) for number, _ in triples]
    preference = Preference(flags, {3: 0.0, 4: losses}, frozenset(as_good))
    return conclude(GOALS, [*finalists, *rounds(*triples)], finalists, "finals", preference)


def test_of_two_that_are_as_good_the_one_with_fewer_flags_wins() -> None:
    found = decided(*ALIKE, flags={3: 9, 4: 2})
    assert found.winner == 4
    assert found.smaller is not None
    assert found.smaller.best == 3
    assert found.smaller.score.ratio == pytest.approx((149 * 150 / 150 / 152) ** (0.8 / 3), abs=0.01)
    assert found.smaller.score.rounds == 3
    assert decided(*ALIKE, flags={3: 2, 4: 9}).winner == 3
    assert decided(*ALIKE, flags={3: 2, 4: 9}).smaller is None


def test_fewer_flags_do_not_win_at_a_loss() -> None:
    assert decided(*ALIKE, flags={3: 9, 4: 2}, as_good=(3,)).winner == 3


def test_a_smaller_form_that_is_as_good_but_not_better_than_the_defaults_does_not_win() -> None:
    """Trial 4 has the fewest flags, and its interval includes 1."""
    noisy = ((0, [100, 101, 99]), (3, [150, 152, 148]), (4, [101, 99, 101]))
    assert decided(*noisy, flags={3: 9, 4: 2}).winner == 3


def test_rounds_that_might_have_ended_earlier_have_wider_intervals() -> None:
    """With three looks at two comparisons, t(1 - 0.05 / (2 · 2 · 3), f) takes the place of t(1 - 0.05 / (2 · 2), f)."""
    finalists = [record(number, [100.0]) for number, _ in ALIKE]
    found = [
        conclude(GOALS, [*finalists, *rounds(*ALIKE)], finalists, "finals", Preference(looks=looks)) for looks in (1, 3)
    ]
    widths = [
        math.log(score.high / score.low)
        for each in found
        if (score := each.finalists[0].score) and score.low and score.high
    ]
    assert widths[1] / widths[0] == pytest.approx(t_quantile(1 - 0.05 / 12, 4) / t_quantile(1 - 0.05 / 4, 4))


def test_without_a_reference_the_first_finalist_wins_no_tie() -> None:
    """Both have two flags and are as good; trial 3 comes first, trial 4 is expected to be better."""
    finalists = [record(number, [100.0]) for number in (3, 4)]
    measured = rounds((3, [149, 150, 148]), (4, [150, 152, 148]))
    preference = Preference({3: 2, 4: 2}, {3: 0.004, 4: 0.0}, frozenset((3, 4)))
    assert conclude(GOALS, [*finalists, *measured], finalists, "finals", preference).winner == 4


def test_a_metric_is_compared_in_the_same_rounds_as_the_score() -> None:
    finalists = [record(0, [100.0]), record(3, [110.0]), record(4, [120.0])]
    first = [replace(each, label="first") for each in rounds((0, [100, 100]), (3, [120, 120]))]
    second = rounds((0, [0, 0, 100, 100]), (3, [0, 0, 130, 130]), (4, [0, 0, 121, 119]))
    later = [each for each in second if each.round > 2]
    found = conclude(GOALS, [*finalists, *first, *later], finalists, "finals")
    [three] = [each for each in found.finalists if each.number == 3]
    assert (some(three.score).rounds, three.metrics["output_throughput"].rounds) == (4, 4)
    # Twice 120 and twice 130 of 100.
    assert three.metrics["output_throughput"].ratio == pytest.approx((1.2 * 1.3) ** 0.5)


def test_missing_an_slo_in_one_round_disqualifies() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    bad = record(3, [150.0], 2, tpot=60.0)
    trials = [*finalists, *rounds((0, [100, 100, 100]), (3, [150])), bad, record(3, [150.0], 3)]
    found = conclude(GOALS, trials, finalists, "finals")
    assert found.keep_defaults
    assert found.finalists[0].disqualified == "missed p99_tpot_ms<50 in round 2 (60)"


def test_failing_in_a_round_disqualifies() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    failed = failing(record(3, [150.0], 2), FailureKind.ENGINE_CRASH, Phase.BENCHMARK)
    found = conclude(GOALS, [*finalists, *rounds((0, [100, 100]), (3, [150])), failed], finalists, "finals")
    assert found.finalists[0].disqualified == "failed in round 2: engine_crash"
    assert found.winner == 0


def test_where_every_finalist_is_disqualified_nothing_is_recommended() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    missed = [record(number, [100.0], 1, tpot=60.0) for number in (0, 3)]
    found = conclude(GOALS, [*finalists, *missed], finalists, "finals")
    assert (found.winner, found.keep_defaults) == (None, False)
    assert found.reason == (
        "no finalist passed every round: trial 0 missed p99_tpot_ms<50 in round 1 (60); "
        "trial 3 missed p99_tpot_ms<50 in round 1 (60)"
    )


def test_where_only_the_defaults_are_disqualified_the_first_remaining_finalist_wins() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5), record(4, [140.0], score=1.4)]
    measured = [record(0, [100.0], 1, tpot=60.0), record(3, [150.0], 1), record(4, [190.0], 1)]
    found = conclude(GOALS, [*finalists, *measured], finalists, "finals")
    assert (found.winner, found.confirmed) == (3, True)
    assert found.reason == (
        "trial 3 met the SLOs in every round; the defaults did not: missed p99_tpot_ms<50 in round 1 (60); "
        "no other finalist is better beyond the noise"
    )


def test_where_the_defaults_failed_the_first_finalist_is_the_reference_of_the_rounds() -> None:
    finalists = [record(3, [150.0], score=1.5), record(4, [140.0], score=1.4)]
    alike = rounds((3, [150, 152, 148]), (4, [149, 153, 147]))
    found = conclude(GOALS, [failing(record(0, [100.0])), *finalists, *alike], finalists, "finals")
    assert (found.winner, found.reference, found.confirmed, found.keep_defaults) == (3, 3, True, False)
    assert found.reason == (
        "trial 3 met the SLOs in every round; the defaults failed (kv_cache_too_small); "
        "no other finalist is better beyond the noise"
    )
    [other] = found.finalists
    assert other.number == 4
    # Throughput weighs 40 and success 10 of 50, success is equal.
    assert some(other.score).ratio == pytest.approx((149 * 153 * 147 / 150 / 152 / 148) ** (0.8 / 3))


def test_where_the_defaults_failed_another_finalist_wins_if_it_is_better_beyond_the_noise() -> None:
    finalists = [record(3, [150.0], score=1.5), record(4, [140.0], score=1.4)]
    measured = rounds((3, [150, 152, 148]), (4, [180, 183, 177]))
    found = conclude(GOALS, [failing(record(0, [100.0])), *finalists, *measured], finalists, "finals")
    assert (found.winner, found.reference) == (4, 3)
    assert "it is better than trial 3 beyond the noise: score 1.157" in found.reason  # 1.2 ** 0.8


def test_where_the_defaults_failed_a_single_finalist_is_measured_again() -> None:
    finalists = [record(3, [150.0], score=1.5)]
    found = conclude(GOALS, [failing(record(0, [100.0])), *finalists, *rounds((3, [150, 152]))], finalists, "finals")
    assert (found.winner, found.confirmed, found.rounds) == (3, True, 2)
    assert found.reason == "trial 3 met the SLOs in every round; the defaults failed (kv_cache_too_small)"


def test_the_users_baseline_is_the_reference_and_its_failure_is_told() -> None:
    current = replace(record(1, [100.0]), kind=TrialKind.CURRENT)
    finalists = [current, record(3, [150.0], score=1.5)]
    measured = rounds((1, [100, 101, 99]), (3, [100, 99, 101]))
    found = conclude(GOALS, [record(0, [50.0]), *finalists, *measured], finalists, "finals")
    assert (found.winner, found.reference, found.keeps, found.keep_defaults) == (1, 1, "baseline", False)
    assert found.reason.startswith("keep the baseline: no finalist is better beyond the noise")
    broken = replace(failing(record(0, [100.0])), number=1, kind=TrialKind.CURRENT)
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    measured = rounds((0, [100, 101, 99]), (3, [150, 151, 149]))
    found = conclude(GOALS, [broken, *finalists, *measured], finalists, "finals")
    assert (found.winner, found.reference) == (3, 0)
    assert found.reason.endswith("; the baseline failed (kv_cache_too_small)")


def test_an_objective_that_a_round_did_not_measure_disqualifies() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    lacking = record(3, [150.0], 1)
    assert lacking.outcome is not None
    repeat = replace(lacking.outcome.repeats[0], metrics={"p99_tpot_ms": 10.0, "success_rate": 1.0})
    lacking = replace(lacking, outcome=replace(lacking.outcome, repeats=(repeat,)))
    found = conclude(GOALS, [*finalists, record(0, [100.0], 1), lacking], finalists, "finals")
    assert found.finalists[0].disqualified == "output_throughput was not measured in round 1"


def test_a_throughput_of_zero_counts_as_a_hundredth_of_the_lowest_other() -> None:
    # Round 1: 0 counts as 100 / 100 = 1. Throughput weighs 40 of 50: ratios 0.01 ** 0.8 and 1, mean of logs half.
    finalists = [record(0, [100.0]), record(3, [100.0], score=1.0)]
    found = conclude(GOALS, [*finalists, *rounds((0, [100, 100]), (3, [0, 100]))], finalists, "finals")
    assert some(found.finalists[0].score).ratio == pytest.approx(0.01**0.4)


def test_without_rounds_the_best_trial_is_unconfirmed() -> None:
    finalists = [record(0, [100.0]), record(3, [150.0], score=1.5)]
    found = conclude(GOALS, finalists, finalists, None)
    assert (found.winner, found.confirmed) == (3, False)
    assert found.reason == "trial 3 has the highest score (1.500), but no round confirmed it"


def test_where_the_defaults_failed_the_best_wins_without_a_gain() -> None:
    trials = [failing(record(0, [100.0], score=None)), record(2, [100.0]), record(3, [150.0], score=1.5)]
    found = conclude(GOALS, trials, nominate(trials, 2), None)
    assert (found.winner, found.keep_defaults, found.confirmed) == (3, False, False)
    assert found.reason == (
        "trial 3 is the best that met the SLOs; the defaults failed (kv_cache_too_small), "
        "so the gain over them is unknown"
    )


def test_where_the_defaults_were_not_measured_the_gain_is_unknown() -> None:
    found = conclude(GOALS, [record(3, [150.0])], [record(3, [150.0])], None)
    assert found.winner == 3
    assert "the defaults were not measured, so the gain over them is unknown" in found.reason


def test_noise_is_the_spread_of_the_defaults() -> None:
    # 90, 100, 110: standard deviation 10, mean 100.
    assert noise_of(record(0, [90.0, 100.0, 110.0]), "output_throughput") == pytest.approx(0.1)
    assert noise_of(record(0, [90.0]), "output_throughput") is None
    assert noise_of(None, "output_throughput") is None


def test_nominated_are_the_best_feasible_by_score() -> None:
    trials = [
        record(0, [100.0]),
        record(1, [1.0], score=1.3),
        record(2, [1.0], score=1.5, tpot=80.0),
        record(3, [1.0], score=1.4),
        record(4, [1.0], score=None),
        record(5, [1.0], score=1.2),
    ]
    assert [trial.number for trial in nominate(trials, 2)] == [3, 1]
    assert [trial.number for trial in nominate(trials, 3, ranking=[1, 99])][:2] == [1, 3]


def test_every_engine_has_a_finalist() -> None:
    trials = [
        record(0, [1.0], score=1.0),
        replace(record(1, [1.0], score=1.5), config={"engine": "vllm"}),
        replace(record(2, [1.0], score=1.4), config={}),
        replace(record(3, [1.0], score=1.2), config={"engine": "llama.cpp"}),
        replace(record(4, [1.0], score=1.1), config={"engine": "llama.cpp", "llama.cpp.threads": 1}),
    ]
    engines = ("vllm", "llama.cpp")
    assert [trial.number for trial in nominate(trials, 2, (), engines)] == [1, 2, 3]
    assert [trial.number for trial in nominate(trials, 1, (4,), engines)] == [4, 1]
    assert [trial.number for trial in nominate(trials, 2)] == [1, 2]


ENGINE: Config = {"engine": "llama.cpp"}
WINNER: Config = {**ENGINE, "llama.cpp.ctx_size": 1024}


@pytest.fixture(scope="module")
def both() -> JoinedSpace:
    return join({"vllm": load_space("cpu").resolve(VLLM), "llama.cpp": load_space("llama.cpp").resolve(LLAMA)})


def trial(number: int, config: Config) -> TrialRecord:
    return replace(record(number, [1.0]), config=config)


def test_the_defaults_of_vllm_are_no_llama_cpp_without_its_flag(both: JoinedSpace) -> None:
    """Seen in a study: a flag of llama.cpp had the effect of llama.cpp itself, ×2.73."""
    winner = trial(12, WINNER)
    assert without_one_flag(both, [trial(0, {}), winner], winner) == {}
    engine = trial(1, ENGINE)
    assert without_one_flag(both, [trial(0, {}), engine, winner], winner) == {"llama.cpp.ctx_size": engine}


def test_the_last_flag_of_another_engine_may_go_too(both: JoinedSpace) -> None:
    form = some(without_flags(both, trial(12, WINNER), ["llama.cpp.ctx_size"]))
    assert (form.config, form.label) == (ENGINE, "#12 with 0 of 1 flags")
    assert without_flags(both, trial(3, {"vllm.enforce_eager": True}), ["vllm.enforce_eager"]) is None


def missing(number: int, tpot: float, throughput: float = 100.0, score: float = 1.0) -> TrialRecord:
    return record(number, [throughput], tpot=tpot, score=score)


def test_the_distance_is_the_logarithm_of_what_each_missed_slo_exceeds() -> None:
    assert distance_of([1.0, -0.5, 0.0, 3.0]) == pytest.approx(math.log(2) + math.log(4))
    assert distance_of([-1.0]) == 0.0


def test_the_nearest_trials_come_first_and_of_those_that_are_alike_the_highest_score() -> None:
    # Bound 50: violations 1, 1.05 and 3; log(2.05) is within 10 % of log(2).
    trials = [missing(0, 60), missing(1, 200), missing(2, 100), missing(3, 102.5, score=1.5)]
    assert [each.number for each in nearest_trials(trials, 2)] == [3, 2]
    assert [each.number for each in nearest_trials(trials, 9)] == [3, 2, 1]  # the defaults are not nominated


def test_the_interval_pools_the_variance_of_all_configurations() -> None:
    mean, low, high = mean_interval({1: [0.0, 2.0], 2: [10.0, 14.0]}, 1)
    # Squares 2 and 8 with a degree of freedom each: variance 5, half-width t(0.975, 2) * sqrt(5 / 2).
    half = t_quantile(0.975, 2) * math.sqrt(2.5)
    assert [mean, low, high] == pytest.approx([1.0, 1.0 - half, 1.0 + half])
    assert mean_interval({1: [4.0]}, 1)[1:] == (None, None)


def test_the_nearest_of_the_rounds_has_its_distance_to_each_slo() -> None:
    searched = [missing(1, 100), missing(2, 200), missing(3, 45)]
    cells = [record(number, [100.0], round_, tpot) for number, tpot in ((1, 100.0), (2, 200.0)) for round_ in (1, 2)]
    found = some(nearest_of(GOALS, [*searched, *cells], "finals"))
    assert found.number == 1
    [distance] = found.slos
    assert distance.slo == "p99_tpot_ms<50"
    assert [distance.value, distance.excess] == pytest.approx([100.0, 1.0])
    assert (distance.best, distance.best_trial, distance.best_meets) == (45, 3, True)
    assert nearest_of(GOALS, [*searched, *rounds()], "finals") is None


def slow(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """p99 TPOT 100 ms for the defaults and 60 at max_num_seqs 16; the SLO is 50."""
    tpot = 60.0 if spec.config.get("max_num_seqs") == 16 else 100.0
    return {"success_rate": 1.0, "p99_tpot_ms": tpot, "output_throughput": 500.0}


def test_the_nearest_is_measured_again_and_a_continued_study_measures_nothing_again(bench: Bench) -> None:
    known = tuple(Enqueued(f"n{seqs}", {"max_num_seqs": seqs}) for seqs in (8, 16))
    conclusion = some(bench.run(slow, trials=3, enqueue=known).conclusion)
    assert (conclusion.winner, conclusion.exported, conclusion.confirmed) == (None, 2, True)
    assert conclusion.nearest is not None
    assert {each.slo: each.excess for each in conclusion.nearest.slos} == {
        "p99_tpot_ms<50": pytest.approx(0.2),
        "success_rate>=1": 0.0,
    }
    assert conclusion.nearest.capacity is None  # a closed loop has no request rate
    records = bench.records()
    assert {each.kind for each in records if each.round} == {TrialKind.CONFIRM}
    assert bench.run(slow, trials=3, enqueue=known).conclusion == conclusion
    assert bench.records() == records


def test_one_that_meets_the_slos_in_every_round_wins_after_all(bench: Bench) -> None:
    def slow_in_the_search(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {"success_rate": 1.0, "p99_tpot_ms": 10.0 if spec.round else 60.0, "output_throughput": 500.0}

    conclusion = some(bench.run(slow_in_the_search, trials=3).conclusion)
    assert (conclusion.winner, conclusion.keep_defaults, conclusion.nearest) == (0, True, None)
