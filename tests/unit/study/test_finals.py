"""The finals: the winner has only the flags that it needs, each with its measured effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from records.trials import Failure, FailureKind, Phase, TrialKind
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import FIGURES, peak_at_16
from tuner.sampler.flag_effects import Elimination, ReductionStep
from tuner.specs import TrialSpec
from tuner.study import reduction
from tuner.study.protocols import Stage
from tuner.study.reduction import LEAST_MEASUREMENTS, GivenConfiguration, smaller_forms, unmeasured
from tuner.study.specification.spec import Enqueued

BOTH = Enqueued("both", {"max_num_seqs": 16, "block_size": 32})


def needs_both(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Throughput 1500 with both flags; neither brings anything alone."""
    both = spec.config.get("max_num_seqs") == 16 and spec.config.get("block_size") == 32
    return {**FIGURES, "output_throughput": (1500.0 if both else 1000.0) + index}


def noisy_peak_at_16(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """`peak_at_16`, ± 0.5 % from launch to launch."""
    known = peak_at_16(spec, index)
    assert isinstance(known, dict)
    throughput = known["output_throughput"]
    assert throughput is not None
    return {**known, "output_throughput": throughput * (1.0 + 0.005 * ((7 * spec.number + 5 * spec.round) % 3 - 1))}


def test_a_flag_without_effect_is_not_exported_and_a_continued_study_measures_nothing_again(bench: Bench) -> None:
    result = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=True)
    trials = {record.number: record for record in bench.records() if not record.round}
    assert {record.kind for number, record in trials.items() if number > 1} == {TrialKind.REDUCED}
    assert result.conclusion is not None
    assert result.conclusion.winner is not None
    assert dict(trials[result.conclusion.winner].config) == {"max_num_seqs": 16}
    [effect] = result.conclusion.flag_effects
    assert (effect.name, effect.value, effect.default, effect.rounds) == ("max_num_seqs", 16, 32, 3)
    assert effect.ratio == pytest.approx(1.5 ** (4 / 7), rel=0.01)  # throughput has the weight 40 of 70
    records = bench.records()
    assert 12 < sum(record.round > 0 for record in records) <= LEAST_MEASUREMENTS
    bench.listener.stages.clear()
    again = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=True)
    assert (again.conclusion, bench.records()) == (result.conclusion, records)
    assert [plan.stage for plan in bench.listener.stages] == [Stage.SEARCH]
    bench.run(noisy_peak_at_16, trials=3, enqueue=(BOTH,), reduce=True)
    kinds = [record.kind for record in bench.records() if not record.round]
    assert kinds.count(TrialKind.SEARCH) == 1  # reduced trials do not count as trials of the search
    assert kinds[:3] == [TrialKind.BASELINE, TrialKind.ENQUEUED, TrialKind.REDUCED]


def test_a_smaller_form_that_was_unlucky_is_measured_longer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "LEAST_MEASUREMENTS", 60)

    def unlucky(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        known = noisy_peak_at_16(spec, index)
        assert isinstance(known, dict)
        throughput = known["output_throughput"]
        assert throughput is not None
        alone = spec.config.get("max_num_seqs") == 16 and "block_size" not in spec.config
        luck = {4: 0.9, 5: 1.03, 6: 0.95}.get(spec.round, 1.0) if alone else 1.0
        return {**known, "output_throughput": throughput * luck}

    result = bench.run(unlucky, trials=2, enqueue=(BOTH,), reduce=True)
    records = bench.records()
    rounds = {record.label: record.round for record in records if record.round}
    further = {"finals 0,1,2,3 after round 6": 9, "finals 0,1,2,3 after round 9": 12}
    assert rounds == {"finals 0,1": 3, "finals 0,1,2,3": 6} | further
    [form] = [r.number for r in records if not r.round and dict(r.config) == {"max_num_seqs": 16}]
    assert {record.number for record in records if record.round > 6} == {1, form}
    assert result.conclusion is not None
    assert result.conclusion.winner == form


def test_a_flag_without_which_the_gain_is_lost_stays(bench: Bench) -> None:
    result = bench.run(needs_both, trials=2, enqueue=(BOTH,), reduce=True)
    assert result.conclusion is not None
    assert result.conclusion.winner == 1
    assert {effect.name: effect.rounds for effect in result.conclusion.flag_effects} == {
        "max_num_seqs": 3,
        "block_size": 3,
    }
    assert all(effect.low > 1.0 for effect in result.conclusion.flag_effects)


def test_a_flag_without_which_the_server_fails_stays(bench: Bench) -> None:
    def fails_alone(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.config.get("max_num_seqs") == 16 and "block_size" not in spec.config:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "CUDA out of memory")
        return noisy_peak_at_16(spec, index)

    result = bench.run(fails_alone, trials=2, enqueue=(BOTH,), reduce=True)
    assert result.conclusion is not None
    assert result.conclusion.winner == 1


def test_the_winner_of_a_study_whose_defaults_fail_is_reduced_too(bench: Bench) -> None:
    def fails_by_default(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.config.get("max_num_seqs") is None:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "CUDA out of memory")
        return noisy_peak_at_16(spec, index)

    result = bench.run(fails_by_default, trials=2, enqueue=(BOTH,), reduce=True)
    trials = {record.number: record for record in bench.records() if not record.round}
    assert result.conclusion is not None
    assert result.conclusion.winner is not None
    assert dict(trials[result.conclusion.winner].config) == {"max_num_seqs": 16}
    assert result.conclusion.reference == 1
    assert result.conclusion.smaller is not None
    assert "the defaults failed (out_of_memory_startup)" in result.conclusion.reason
    assert bench.run(fails_by_default, trials=2, enqueue=(BOTH,), reduce=True).conclusion == result.conclusion


def test_without_a_reduction_the_best_score_wins(bench: Bench) -> None:
    result = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=False)
    assert result.conclusion is not None
    assert result.conclusion.winner == 1
    assert all(record.kind is not TrialKind.REDUCED for record in bench.records())


def test_the_only_flag_of_a_winner_has_the_effect_that_its_rounds_measured(bench: Bench) -> None:
    alone = Enqueued("alone", {"max_num_seqs": 16})
    result = bench.run(noisy_peak_at_16, trials=4, enqueue=(alone,), reduce=False)
    assert result.conclusion is not None
    [effect] = result.conclusion.flag_effects
    assert (effect.name, effect.rounds) == ("max_num_seqs", 3)
    score = next(each.score for each in result.conclusion.finalists if each.number == result.conclusion.winner)
    assert score is not None
    assert (effect.ratio, effect.low, effect.high) == pytest.approx((score.ratio, score.low, score.high))


FOUR = """
description: four knobs
parameters:
  a: {description: d, type: categorical, choices: [1, 2], flag: --a, engine_default: 1}
  b: {description: d, type: categorical, choices: [1, 2], flag: --b, engine_default: 1}
  c: {description: d, type: categorical, choices: [1, 2], flag: --c, engine_default: 1}
  d: {description: d, type: categorical, choices: [1, 2], flag: --d, engine_default: 1}
rules:
  - {name: pair, forbid: "effective.b == 2 and effective.c == 1", why: "b needs c"}
"""


@pytest.mark.parametrize(
    ("names", "idle", "unproved", "cautious", "expected"),
    [
        ("dbac", 0, 0, False, []),
        ("dbac", 0, 3, False, [{"c": 2}]),
        ("dbac", 2, 3, False, [{"c": 2}, {"a": 2, "c": 2}]),
        ("dbac", 2, 2, False, [{"a": 2, "c": 2}]),
        ("dbac", 2, 2, True, [{"a": 2, "b": 2, "c": 2}]),  # half of the idle flags is d
        ("dbac", 0, 2, True, [{"a": 2, "c": 2}, {"a": 2, "b": 2, "c": 2}]),
        ("cdba", 0, 1, False, []),  # b needs c
        ("d", 0, 0, True, []),
    ],
)
def test_smaller_forms_lack_what_may_bring_nothing_or_half_and_a_quarter_of_it(
    bench: Bench, names: str, idle: int, unproved: int, cautious: bool, expected: list[dict[str, int]]
) -> None:
    bench.run(peak_at_16, trials=1, confirm_rounds=0)
    bench.space_file.write_text(FOUR)
    record = replace(bench.records()[0], config={"a": 2, "b": 2, "c": 2, "d": 2})
    steps = [ReductionStep(name, 0.0 if place < unproved else 1.0, 0.0) for place, name in enumerate(names)]
    forms = smaller_forms(bench.spec().space, record, Elimination(tuple(steps), 0.01, idle), cautious=cautious)
    assert [dict(given.config) for given in forms] == expected


def test_no_form_has_what_the_engine_chooses_by_itself_or_a_default(bench: Bench) -> None:
    bench.run(peak_at_16, trials=1, confirm_rounds=0)
    bench.space_file.write_text(FOUR)
    record = replace(bench.records()[0], config={"a": 2, "b": 1, "c": 2, "d": 2})
    steps = tuple(ReductionStep(name, 1.0, 0.0) for name in "cad")
    space = bench.spec().space
    forms = smaller_forms(space, record, Elimination(steps, 0.01, 1), redundant=["d"])
    assert [dict(given.config) for given in forms] == [{"a": 2}, {"a": 2, "c": 2}]
    [only] = smaller_forms(space, record, Elimination((), 0.01, 0), redundant=["d"])
    assert (only.config, only.label) == ({"a": 2, "c": 2}, "#0 with 2 of 3 flags")


def test_only_what_was_not_measured_is_measured(bench: Bench) -> None:
    bench.run(peak_at_16, trials=2, enqueue=(BOTH,), confirm_rounds=0)
    new = GivenConfiguration("new", {"block_size": 64}, {})
    given = [GivenConfiguration("known", BOTH.config, {}), new, replace(new, label="again")]
    assert unmeasured(bench.spec().space, given, bench.records()) == [new]
