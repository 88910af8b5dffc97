"""Ablation: the trials without one flag each, and their part in the conclusion."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.trials import Config, Failure, TrialKind
from search_spaces import ResolvedSpace, load_space
from tests.unit.study.conftest import PLAIN, Bench
from tests.unit.study.test_run import FIGURES, peak_at_16, worse
from tuner.specs import TrialSpec
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage
from tuner.study.reduction import reductions
from tuner.study.specification.spec import Enqueued

SPACE = """
description: for tests
parameters:
  max_num_seqs: {description: d, type: int, low: 1, high: 64, log: true, flag: --max-num-seqs, engine_default: 32}
  block_size: {description: d, type: categorical, choices: [16, 32, 64], flag: --block-size}
  dtype: {description: d, type: categorical, choices: [null, half, bfloat16], flag: --dtype}
  nested: {description: d, type: categorical, choices: [1, 2], flag: --nested, when: "dtype == 'half'"}
rules:
  - {name: small, forbid: block_size == 64 and effective.max_num_seqs > 31, why: "blocks of 64 need few sequences"}
"""


@pytest.fixture
def space(tmp_path: Path) -> ResolvedSpace:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return load_space(file).resolve(PLAIN)


def test_each_flag_is_reset_together_with_the_parameters_that_depend_on_it(space: ResolvedSpace) -> None:
    config: Config = {"max_num_seqs": 16, "block_size": 32, "dtype": "half", "nested": 2}
    assert reductions(space, config, [config]) == [
        ("max_num_seqs", {"block_size": 32, "dtype": "half", "nested": 2}, {"max_num_seqs": 32}),
        ("block_size", {"max_num_seqs": 16, "dtype": "half", "nested": 2}, {}),
        ("dtype", {"max_num_seqs": 16, "block_size": 32}, {"dtype": None}),
        ("nested", {"max_num_seqs": 16, "block_size": 32, "dtype": "half"}, {}),
    ]


@pytest.mark.parametrize(
    ("config", "tried", "names"),
    [
        ({"max_num_seqs": 32, "block_size": 16, "dtype": None}, [], ["block_size"]),  # two are at their defaults
        ({"max_num_seqs": 16, "block_size": 64}, [], ["block_size"]),  # without max_num_seqs it would break the rule
        ({"max_num_seqs": 16, "block_size": 32}, [{"max_num_seqs": 16}], ["max_num_seqs"]),
        ({"max_num_seqs": 16}, [{}], []),  # without it, the configuration equals the defaults
    ],
)
def test_resets_without_a_change_against_a_rule_or_already_tried_are_left_out(
    space: ResolvedSpace, config: Config, tried: list[Config], names: list[str]
) -> None:
    assert [name for name, *_ in reductions(space, config, tried)] == names


KNOWN = Enqueued("known", {"max_num_seqs": 16, "block_size": 32})


def test_a_study_measures_its_best_configuration_without_each_flag(bench: Bench) -> None:
    result = bench.run(peak_at_16, trials=2, enqueue=(KNOWN,), ablate=True)
    first = [record for record in bench.records() if record.round == 0]
    assert [(record.label, dict(record.config)) for record in first] == [
        ("defaults", {}),
        ("known", {"max_num_seqs": 16, "block_size": 32}),
        ("#1 without max_num_seqs", {"block_size": 32}),
        ("#1 without block_size", {"max_num_seqs": 16}),
    ]
    assert {record.kind for record in first[2:]} == {TrialKind.ENQUEUED}
    ablation = next(plan for plan in bench.listener.stages if plan.stage is Stage.ABLATION)
    assert ablation.subjects == ("#1 without max_num_seqs", "#1 without block_size")
    assert result.conclusion is not None
    # The rounds measure the effects. Without block_size nothing differs at all, which gives no interval and no effect.
    (effect,) = result.conclusion.flag_effects
    assert (effect.name, effect.rounds) == ("max_num_seqs", 3)
    assert (effect.value, effect.default) == (16, 32)
    assert effect.ratio == pytest.approx(1.5 ** (4 / 7), rel=0.01)  # throughput has the weight 40 of 70


def test_a_better_configuration_of_the_ablation_wins(bench: Bench) -> None:
    def blocks_cost(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        figures = peak_at_16(spec, index)
        assert isinstance(figures, dict)
        rate = figures["output_throughput"]
        assert rate is not None
        return {**figures, "output_throughput": rate * (0.9 if spec.config.get("block_size") == 32 else 1.0)}

    result = bench.run(blocks_cost, trials=2, enqueue=(KNOWN,), ablate=True)
    assert result.conclusion is not None
    assert result.conclusion.winner == 3
    winner = next(record for record in bench.records() if record.number == 3)
    assert dict(winner.config) == {"max_num_seqs": 16}


def test_a_resumed_ablation_runs_each_missing_trial_once(bench: Bench) -> None:
    bench.listener.on_finished = lambda record: bench.stop.set() if record.number == 2 else None
    result = bench.run(peak_at_16, trials=2, enqueue=(KNOWN,), ablate=True)
    assert result.ending is RunEnding.INTERRUPTED
    bench.stop.clear()
    bench.listener.on_finished = None
    for _ in range(2):
        result = bench.run(peak_at_16, trials=2, enqueue=(KNOWN,), ablate=True)
        labels = [record.label for record in bench.records() if record.round == 0]
        assert labels == ["defaults", "known", "#1 without max_num_seqs", "#1 without block_size"]
        assert result.ending is RunEnding.DONE


def test_a_better_trial_of_a_longer_search_gets_an_ablation_too(bench: Bench) -> None:
    weak = Enqueued("weak", {"max_num_seqs": 40})
    bench.run(peak_at_16, trials=2, enqueue=(weak,), ablate=True, confirm_rounds=0)
    assert len(bench.records()) == 2  # without its only flag, it equals the defaults
    bench.run(peak_at_16, trials=3, enqueue=(weak, KNOWN), ablate=True, confirm_rounds=0)
    named = ["defaults", "weak", "known", "#2 without max_num_seqs", "#2 without block_size"]
    assert [record.label for record in bench.records()] == named
    better = Enqueued("better", {"max_num_seqs": 17, "block_size": 64})
    bench.run(peak_at_16, trials=6, enqueue=(weak, KNOWN, better), ablate=True, confirm_rounds=0)
    assert [record.label for record in bench.records()] == [*named, "better"]  # the best is still of trial 2


def test_without_a_winning_configuration_there_are_no_flag_effects(bench: Bench) -> None:
    result = bench.run(worse, trials=2, enqueue=(KNOWN,), ablate=True)
    assert result.conclusion is not None
    assert result.conclusion.keep_defaults
    assert result.conclusion.flag_effects == ()
    assert len([record for record in bench.records() if record.round == 0]) == 4


def test_an_error_in_the_flag_effects_does_not_prevent_the_conclusion(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("array must not contain infs or NaNs")

    monkeypatch.setattr(OptunaStudy, "flag_effects", broken)
    result = bench.run(peak_at_16, trials=2, enqueue=(KNOWN,))
    assert result.conclusion is not None
    assert (result.conclusion.winner, result.conclusion.flag_effects) == (1, ())
    assert bench.listener.notes[-1] == (
        "flag effects cannot be estimated: ValueError: array must not contain infs or NaNs"
    )


def test_without_a_feasible_trial_there_is_no_ablation(bench: Bench) -> None:
    def breaks(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {**FIGURES, "output_throughput": 1.0, "p99_tpot_ms": 99.0}

    bench.run(breaks, trials=2, enqueue=(KNOWN,), ablate=True)
    assert len([record for record in bench.records() if record.round == 0]) == 2
