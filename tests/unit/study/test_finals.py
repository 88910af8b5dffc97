"""The finals: repeated defaults, rounds, ablation, and defaults that fail."""

from pathlib import Path

import pytest

from records.trials import Config, Failure, FailureKind, Phase, TrialKind
from search_spaces import Context, ResolvedSpace, hardware_named, load_space
from tests.some import some
from tests.unit.study.conftest import PLAIN, Bench
from tests.unit.study.test_run import FIGURES, peak_at_16, worse
from tuner.errors import SettingError, UserError
from tuner.sampler.flag_effects import Elimination
from tuner.specs import TrialSpec
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage
from tuner.study.reduction import order_of_reset, reductions
from tuner.study.specification.configurations import read_baseline, read_enqueued
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
    throughput = some(known["output_throughput"])
    return {**known, "output_throughput": throughput * (1.0 + 0.005 * ((7 * spec.number + 5 * spec.round) % 3 - 1))}


def test_a_flag_without_effect_is_not_exported_and_a_continued_study_measures_nothing_again(bench: Bench) -> None:
    result = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=True)
    trials = {record.number: record for record in bench.records() if not record.round}
    assert {record.kind for number, record in trials.items() if number > 1} == {TrialKind.REDUCED}
    assert result.conclusion is not None
    assert dict(trials[some(result.conclusion.winner)].config) == {"max_num_seqs": 16}
    [effect] = result.conclusion.flag_effects
    assert (effect.name, effect.value, effect.default, effect.rounds) == ("max_num_seqs", 16, 32, 2)
    assert effect.ratio == pytest.approx(1.5 ** (4 / 7), rel=0.01)  # throughput has the weight 40 of 70
    records = bench.records()
    assert sum(record.round > 0 or record.kind is TrialKind.REDUCED for record in records) <= 18
    bench.listener.stages.clear()
    again = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=True)
    assert (again.conclusion, bench.records()) == (result.conclusion, records)
    assert [plan.stage for plan in bench.listener.stages] == [Stage.SEARCH]
    bench.run(noisy_peak_at_16, trials=3, enqueue=(BOTH,), reduce=True)
    kinds = [record.kind for record in bench.records() if not record.round]
    assert kinds.count(TrialKind.SEARCH) == 1  # reduced trials do not count as trials of the search
    assert kinds[:3] == [TrialKind.BASELINE, TrialKind.ENQUEUED, TrialKind.REDUCED]


def test_a_flag_without_which_the_gain_is_lost_stays(bench: Bench) -> None:
    result = bench.run(needs_both, trials=2, enqueue=(BOTH,), reduce=True)
    assert some(result.conclusion).winner == 1
    records = bench.records()
    single = [record.label for record in records if record.kind is TrialKind.REDUCED]
    assert single == ["#1 again", "#1 with 1 of 2 flags", "#1 with 1 flag, without max_num_seqs"]
    # Each form scores a third less than the finalist in its single trial, so no round measures it.
    assert {record.number for record in records if record.round} == {0, 1}


def test_a_flag_without_which_the_server_fails_stays(bench: Bench) -> None:
    def fails_alone(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.config.get("max_num_seqs") == 16 and "block_size" not in spec.config:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "CUDA out of memory")
        return noisy_peak_at_16(spec, index)

    result = bench.run(fails_alone, trials=2, enqueue=(BOTH,), reduce=True)
    assert some(result.conclusion).winner == 1


def test_the_winner_of_a_study_whose_defaults_fail_is_reduced_too(bench: Bench) -> None:
    def fails_by_default(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.config.get("max_num_seqs") is None:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "CUDA out of memory")
        return noisy_peak_at_16(spec, index)

    result = bench.run(fails_by_default, trials=2, enqueue=(BOTH,), reduce=True)
    trials = {record.number: record for record in bench.records() if not record.round}
    assert result.conclusion is not None
    assert dict(trials[some(result.conclusion.winner)].config) == {"max_num_seqs": 16}
    assert result.conclusion.reference == 1
    assert "the defaults failed (out_of_memory_startup)" in result.conclusion.reason
    assert bench.run(fails_by_default, trials=2, enqueue=(BOTH,), reduce=True).conclusion == result.conclusion


def test_without_a_reduction_the_best_score_wins(bench: Bench) -> None:
    result = bench.run(noisy_peak_at_16, trials=2, enqueue=(BOTH,), reduce=False)
    assert some(result.conclusion).winner == 1
    assert all(record.kind is not TrialKind.REDUCED for record in bench.records())


def test_the_only_flag_of_a_winner_has_the_effect_that_its_rounds_measured(bench: Bench) -> None:
    alone = Enqueued("alone", {"max_num_seqs": 16})
    result = bench.run(noisy_peak_at_16, trials=4, enqueue=(alone,), reduce=False)
    assert result.conclusion is not None
    [effect] = result.conclusion.flag_effects
    assert (effect.name, effect.rounds) == ("max_num_seqs", 3)
    score = some(next(each.score for each in result.conclusion.finalists if each.number == result.conclusion.winner))
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


def test_flags_are_left_out_redundant_ones_first_and_those_with_unknown_defaults_after_the_idle(bench: Bench) -> None:
    bench.space_file.write_text(FOUR.replace("--d, engine_default: 1", "--d"))
    names = ("b", "c", "a")
    config = {"a": 2, "b": 2, "c": 2, "d": 2}
    space = bench.spec().space
    assert order_of_reset(space, config, Elimination(names, 1), []) == ["b", "d", "c", "a"]
    assert order_of_reset(space, config, Elimination(names, 2), ["b"]) == ["b", "c", "d", "a"]


AT_8 = Enqueued("baseline", {"max_num_seqs": 8})
AT_16 = Enqueued("n16", {"max_num_seqs": 16})


@pytest.mark.parametrize("text", ["--max-num-seqs 8", "--max-num-seqs=8", '{"max_num_seqs": 8}'])
def test_flags_and_json_are_the_same_configuration(bench: Bench, text: str) -> None:
    assert read_baseline(bench.spec().space, text) == AT_8


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("--max-num-sequences 8", "--max-num-sequences is no flag of the search space"),
        ("--max-num-seqs 900", "900"),
        ("--max-num-seqs", "max_num_seqs"),
        ("what-i-run", "no configuration has this name"),
        ('--block-size "16', "not readable as flags"),
    ],
)
def test_a_baseline_that_is_not_in_the_space_is_a_mistake(bench: Bench, text: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rule) as caught:
        read_baseline(bench.spec().space, text)
    assert caught.value.exit_code == 2


def test_a_name_that_the_host_excludes_is_refused_with_the_reason() -> None:
    """A container has 64 MiB of /dev/shm by default."""
    context = Context(hardware_named("h200"), "0.32.0", host_memory_gib=160.0, shm_gib=0.06)
    space = load_space("kv-offload").resolve(context)
    with pytest.raises(SettingError, match=r"vLLM keeps the blocks in /dev/shm, which has 0.06 GiB here") as caught:
        read_enqueued(space, "enqueue", "offload-128")
    assert "--shm-size" in str(caught.value)
    assert caught.value.exit_code == 2


def test_scores_and_rounds_are_relative_to_the_baseline(bench: Bench) -> None:
    conclusion = bench.run(peak_at_16, trials=3, enqueue=(AT_16,), baseline=AT_8).conclusion
    searched = [record for record in bench.records() if not record.round]
    assert [record.kind for record in searched] == [TrialKind.BASELINE, TrialKind.CURRENT, TrialKind.ENQUEUED]
    # Throughput weighs 40 of 70: 1001, 1340 and 1500 tok/s against 1340.
    scores = [record.verdict.score for record in searched if record.verdict]
    assert scores == pytest.approx([(1001 / 1340) ** (4 / 7), 1.0, (1500 / 1340) ** (4 / 7)])
    assert len(some(searched[1].outcome).repeats) == 3  # as often as the defaults
    assert conclusion is not None
    assert (conclusion.winner, conclusion.reference) == (2, 1)
    assert conclusion.reason.startswith("trial 2 is better than the baseline beyond the noise")
    assert {record.number for record in bench.records() if record.round} == {1, 2}


def test_without_anything_better_the_baseline_stays(bench: Bench) -> None:
    conclusion = some(bench.run(peak_at_16, trials=2, baseline=Enqueued("baseline", {"max_num_seqs": 16})).conclusion)
    assert (conclusion.winner, conclusion.keeps, conclusion.keep_defaults) == (1, "baseline", False)
    assert conclusion.reason == "keep the baseline: no trial of the search has a higher score"


def test_where_the_defaults_fail_the_baseline_takes_their_place(bench: Bench) -> None:
    def no_defaults(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        from records.trials import FailureKind, Phase

        return peak_at_16(spec, index) if spec.config else Failure(FailureKind.ENGINE_CRASH, Phase.READY, "boom")

    conclusion = some(bench.run(no_defaults, trials=3, enqueue=(AT_16,), baseline=AT_8).conclusion)
    assert (conclusion.winner, conclusion.reference) == (2, 1)
    assert conclusion.reason.endswith("; the defaults failed (engine_crash)")


def test_a_study_is_not_continued_with_another_baseline(bench: Bench) -> None:
    bench.run(peak_at_16, trials=2, baseline=AT_8)
    with pytest.raises(UserError, match="another baseline"):
        bench.run(peak_at_16, trials=2, baseline=AT_16)


N8 = Enqueued("n8", {"max_num_seqs": 8})
REMEDY = "out of memory; decrease max_num_seqs"


def out_of_memory(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Every configuration fails, each with a message of its own."""
    return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, f"{REMEDY}{'x' * spec.number}")


def without_sequences(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Fail unless the number of sequences is set."""
    return peak_at_16(spec, index) if "max_num_seqs" in spec.config else out_of_memory(spec, index)


def test_failed_defaults_end_the_study_with_the_reason(bench: Bench) -> None:
    result = bench.run(out_of_memory, trials=20)
    assert (result.ending, result.conclusion) == (RunEnding.DEFAULTS_FAILED, None)
    assert some(result.reason).message == REMEDY
    assert len(bench.records()) == 1


def test_the_same_command_ends_at_once_and_a_configuration_that_works_continues(bench: Bench) -> None:
    bench.run(without_sequences, trials=4)
    again = bench.run(without_sequences, trials=4)
    assert again.ending is RunEnding.DEFAULTS_FAILED
    assert again.reason is not None
    assert len(bench.records()) == 1
    result = bench.run(without_sequences, trials=4, enqueue=(AT_16,), confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert result.conclusion is not None
    assert len(bench.records()) == 4


def test_the_study_ends_once_everything_given_has_failed(bench: Bench) -> None:
    result = bench.run(out_of_memory, trials=20, baseline=N8, enqueue=(AT_16,))
    assert result.ending is RunEnding.DEFAULTS_FAILED
    assert some(result.reason).message == REMEDY
    assert [record.label for record in bench.records()] == ["defaults", "n8", "n16"]


def test_a_trial_that_works_beside_the_defaults_keeps_the_study_running(bench: Bench) -> None:
    result = bench.run(without_sequences, trials=6, slots=2, seed=1, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert [record.state for record in bench.records()][:2] == ["failed", "ok"]
    assert len(bench.records()) == 6


def test_defaults_that_infrastructure_failed_do_not_end_the_study(bench: Bench) -> None:
    def busy_at_first(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if not spec.config:
            return Failure(FailureKind.GPU_BUSY, Phase.READY, "free memory is less than desired")
        return peak_at_16(spec, index)

    result = bench.run(busy_at_first, trials=3, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert [record.attempts for record in bench.records()] == [3, 1, 1]


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
    # The rounds measure the effects. Without block_size nothing differs at all, which gives no interval and no effect.
    (effect,) = some(result.conclusion).flag_effects
    assert (effect.name, effect.rounds) == ("max_num_seqs", 3)
    assert (effect.value, effect.default) == (16, 32)
    assert effect.ratio == pytest.approx(1.5 ** (4 / 7), rel=0.01)  # throughput has the weight 40 of 70


def test_a_better_configuration_of_the_ablation_wins(bench: Bench) -> None:
    def blocks_cost(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        figures = peak_at_16(spec, index)
        assert isinstance(figures, dict)
        rate = some(figures["output_throughput"])
        return {**figures, "output_throughput": rate * (0.9 if spec.config.get("block_size") == 32 else 1.0)}

    result = bench.run(blocks_cost, trials=2, enqueue=(KNOWN,), ablate=True)
    assert some(result.conclusion).winner == 3
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
