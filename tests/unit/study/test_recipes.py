"""Recipes of a study: their order by a prior, combinations, and their place among the trials."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from records.trials import Config, Failure, FailureKind, Phase, TrialKind, TrialRecord
from search_spaces import ResolvedSpace, load_space
from tests.unit.study.conftest import PLAIN, Bench
from tuner.sampler.prior import Prediction, Prior
from tuner.scoring.goals import Goals
from tuner.specs import TrialSpec
from tuner.study.recipes import combined, most_recipes, order_recipes
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import Enqueued, StudySpec

SPACE = """
parameters:
  weights: {description: d, type: categorical, choices: [null, fp8], flag: --weights}
  split: {description: d, type: categorical, choices: [null, tensor, data], flag: --split}
  tokens: {description: d, type: int, low: 1, high: 9, flag: --tokens, engine_default: 5}
  drafts: {description: d, type: categorical, choices: [null, mtp], flag: --drafts}
rules:
  - {name: no-drafts-over-data, forbid: drafts == "mtp" and split == "data", why: refused}
"""

FP8, TENSOR, DATA, FEW, MTP = (
    Enqueued("fp8", {"weights": "fp8"}),
    Enqueued("tensor", {"split": "tensor"}),
    Enqueued("data", {"split": "data"}),
    Enqueued("few", {"tokens": 1}),
    Enqueued("mtp", {"drafts": "mtp"}),
)


@pytest.fixture
def space(tmp_path: Path) -> ResolvedSpace:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return load_space(file).resolve(PLAIN)


def a_prior(values: Mapping[str, float | None], violations: Mapping[str, float]) -> Prior:
    """Predict the throughput of configurations by their values, joined by `+`; None: it fails; nothing else."""

    def predict(config: Config) -> Prediction | None:
        name = "+".join(str(value) for value in config.values())
        if name not in values:
            return None
        value = values[name]
        return Prediction(None if value is None else (value,), {"slo": violations.get(name, -0.1)})

    return predict


GOALS: Goals = make_goals(["output_throughput"], [])


def spec_of(bench: Bench, space: ResolvedSpace, *recipes: Enqueued) -> StudySpec:
    return bench.spec(space=space, goals=GOALS, recipes=recipes)


def labels(spec: StudySpec, prior: Prior | None, most: int = 6) -> list[str]:
    return [recipe.label for recipe in order_recipes(spec, prior, most)]


@pytest.mark.parametrize(("trials", "expected"), [(2, 1), (4, 1), (5, 1), (12, 2), (29, 5), (30, 6), (200, 6)])
def test_a_fifth_of_the_trials_and_at_most_six_are_recipes(trials: int, expected: int) -> None:
    assert most_recipes(trials) == expected


def test_without_a_prior_the_order_of_the_file_holds_and_one_place_is_left(bench: Bench, space: ResolvedSpace) -> None:
    spec = spec_of(bench, space, FP8, TENSOR, DATA, FEW)
    assert labels(spec, None) == ["fp8", "tensor", "data", "few"]
    assert labels(spec, None, 3) == ["fp8", "tensor"], "the third is their combination"
    assert labels(spec, None, 2) == ["fp8", "tensor"]
    assert labels(spec, None, 0) == []


def test_an_unpredicted_reference_orders_nothing(bench: Bench, space: ResolvedSpace) -> None:
    assert labels(spec_of(bench, space, FP8, TENSOR), a_prior({"tensor": 120.0, "fp8": 110.0}, {})) == ["fp8", "tensor"]
    assert labels(spec_of(bench, space, FP8, TENSOR), a_prior({"": None, "tensor": 120.0}, {})) == ["fp8", "tensor"]


def test_the_combination_of_the_best_comes_first_then_those_of_the_others(bench: Bench, space: ResolvedSpace) -> None:
    """With the defaults at 100, fp8 gains 20 %, tensor 50 %, data 30 %, both layouts more with fp8; few loses."""
    predicted = {"": 100.0, "fp8": 120.0, "tensor": 150.0, "data": 130.0, "1": 99.0}
    predicted |= {"fp8+tensor": 160.0, "fp8+data": 140.0, "fp8+tensor+1": 161.0, "tensor+1": 152.0, "data+1": 130.0}
    spec = spec_of(bench, space, FP8, TENSOR, DATA, FEW)
    # 161 is no gain of 1 % over 160. fp8 alone leads to fp8 + tensor, which is there already.
    assert labels(spec, a_prior(predicted, {})) == ["tensor + fp8", "data + fp8"]
    assert labels(spec, a_prior(predicted, {}), 1) == ["tensor + fp8"]


def test_what_is_predicted_to_lose_or_to_fail_is_left_out(bench: Bench, space: ResolvedSpace) -> None:
    predicted = {"": 100.0, "fp8": 100.9, "tensor": None, "data": 99.0, "1": 40.0}
    assert labels(spec_of(bench, space, FP8, TENSOR, DATA, FEW), a_prior(predicted, {})) == []


def test_what_is_not_predicted_follows_the_best(bench: Bench, space: ResolvedSpace) -> None:
    predicted = {"": 100.0, "fp8": 120.0, "data": 110.0}
    assert labels(spec_of(bench, space, MTP, DATA, FP8), a_prior(predicted, {})) == ["fp8", "mtp", "data"]
    assert labels(spec_of(bench, space, MTP, DATA), a_prior({"": 100.0, "data": 90.0}, {})) == ["mtp"]


@pytest.mark.parametrize(
    ("value", "violation", "kept"),
    [
        (70.0, -0.1, True),  # it meets the SLO
        (45.0, -0.1, False),  # so it does, with less than half of the score
        (105.0, 0.2, True),  # it misses it by less
        (95.0, 0.2, False),  # so it does, at the cost of the score
        (105.0, 0.4, False),  # it misses it by more
    ],
)
def test_where_the_defaults_miss_an_slo_by_0_3(
    bench: Bench, space: ResolvedSpace, value: float, violation: float, kept: bool
) -> None:
    prior = a_prior({"": 100.0, "fp8": value}, {"": 0.3, "fp8": violation})
    assert labels(spec_of(bench, space, FP8), prior) == (["fp8"] if kept else [])


def test_recipes_are_combined_unless_they_contradict_each_other(space: ResolvedSpace) -> None:
    both = combined(space, TENSOR, FP8)
    assert both == Enqueued("tensor + fp8", {"weights": "fp8", "split": "tensor"})
    assert combined(space, TENSOR, DATA) is None
    assert combined(space, DATA, MTP) is None, "a rule forbids it"
    assert combined(space, both, FP8) is None, "it has fp8"


def throughput(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Blocks of 64 and 16 sequences each gain, together most; blocks of 32 lose."""
    by_blocks: dict[object, float] = {64: 1.2, 32: 0.9, 16: 0.8, None: 1.0}
    factor = by_blocks[spec.config.get("block_size")]
    factor *= 1.3 if spec.config.get("max_num_seqs") == 16 else 1.0
    return {"success_rate": 1.0, "p99_tpot_ms": 10.0, "output_throughput": 1000.0 * factor}


RECIPES = (
    Enqueued("blocks-64", {"block_size": 64}),
    Enqueued("blocks-32", {"block_size": 32}),
    Enqueued("seqs-16", {"max_num_seqs": 16}),
)


def test_recipes_follow_enqueued_trials_and_the_winners_are_combined(bench: Bench) -> None:
    given = (Enqueued("mine", {"max_num_seqs": 8}), Enqueued("32", {"block_size": 32}))
    bench.run(throughput, trials=20, enqueue=given, recipes=RECIPES, confirm_rounds=0)
    records = bench.records()
    kinds = [TrialKind.BASELINE, TrialKind.ENQUEUED, TrialKind.ENQUEUED, *[TrialKind.RECIPE] * 3]
    assert [record.kind for record in records[:7]] == [*kinds, TrialKind.SEARCH]
    # The user's own blocks of 32 are not measured twice.
    assert [record.label for record in records[3:6]] == [
        "recipe: blocks-64",
        "recipe: seqs-16",
        "recipe: seqs-16 + blocks-64",
    ]
    assert dict(records[5].config) == {"max_num_seqs": 16, "block_size": 64}


def test_a_recipe_with_the_flags_of_one_that_crashed_is_left_out(bench: Bench) -> None:
    def crashing(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        crashes = spec.config.get("block_size") == 64
        return Failure(FailureKind.ENGINE_CRASH, Phase.WARMUP, "1 != 1633") if crashes else throughput(spec, index)

    together = Enqueued("both", {"block_size": 64, "max_num_seqs": 16})
    bench.run(crashing, trials=20, recipes=(RECIPES[0], together, RECIPES[2]), confirm_rounds=0)
    found = [record.label for record in bench.records() if record.kind is TrialKind.RECIPE]
    assert found == ["recipe: blocks-64", "recipe: seqs-16"]


def test_a_resumed_study_measures_the_recipes_that_are_left(bench: Bench) -> None:
    def stop_after_two(record: TrialRecord) -> None:
        if record.number == 1:
            bench.stop.set()

    bench.listener.on_finished = stop_after_two
    bench.run(throughput, trials=20, recipes=RECIPES, confirm_rounds=0)
    assert [record.label for record in bench.records() if record.outcome] == ["defaults", "recipe: blocks-64"]
    bench.listener.on_finished = None
    bench.stop.clear()
    bench.run(throughput, trials=20, recipes=RECIPES, confirm_rounds=0)
    found = [record.label for record in bench.records() if record.kind is TrialKind.RECIPE]
    assert found == [
        "recipe: blocks-64",
        "recipe: blocks-32",
        "recipe: seqs-16",
        "recipe: seqs-16 + blocks-64",
    ]


def test_recipes_end_where_the_search_has_begun(bench: Bench) -> None:
    bench.run(throughput, trials=2, confirm_rounds=0)
    bench.run(throughput, trials=20, recipes=RECIPES, confirm_rounds=0)
    assert not any(record.kind is TrialKind.RECIPE for record in bench.records())


def test_a_small_space_is_measured_whole_without_recipes(bench: Bench) -> None:
    bench.space_file.write_text(bench.space_file.read_text().replace("high: 64", "high: 2"))
    bench.run(throughput, trials=6, recipes=RECIPES[:2], confirm_rounds=0)
    assert len(bench.records()) == 6
    assert not any(record.kind is TrialKind.RECIPE for record in bench.records())
