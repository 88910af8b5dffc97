"""The state of a running study: counts, the best so far, and the time that is left, worked out by hand."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from records.trials import Provenance
from tests.some import some
from tests.unit.cli.studies import Clock, out_of_memory, study_start, trial, trial_spec
from tuner.cli.output.progress.state import Progress
from tuner.settings.study import ConfirmationSettings
from tuner.study.protocols import Stage, StagePlan

CONFIRMATION = StagePlan(Stage.CONFIRMATION, 8, ("#0", "#1", "#2", "#3"), (4, 5))


def run(progress: Progress, clock: Clock, number: int, seconds: float, round_: int = 0) -> None:
    """Let a trial start now and finish after some seconds."""
    progress.started(trial_spec(number, round_))
    clock.now += seconds
    progress.finished(trial(number, round_=round_))


def test_trials_of_earlier_runs_count_as_done(tmp_path: Path) -> None:
    known = (trial(0), trial(1, score=1.2), trial(1, round_=1, score=1.1), trial(2, failure=out_of_memory()))
    progress = Progress(study_start(tmp_path, records=known), Clock())
    assert (progress.done, progress.stage_done, progress.stage_trials) == (3, 3, 10)
    assert progress.failures == {"out_of_memory_startup": 1}
    assert some(progress.best).number == 1
    assert list(progress.last) == []


def test_an_infeasible_trial_is_not_the_best(tmp_path: Path) -> None:
    progress = Progress(study_start(tmp_path, records=(trial(0), trial(1, score=2.0, tpot=60.0))), Clock())
    assert some(progress.best).number == 0


def test_trials_that_finished_before_the_defaults_get_their_score_afterwards(tmp_path: Path) -> None:
    progress = Progress(study_start(tmp_path, workers=2), Clock())
    progress.finished(trial(1, 2000.0, score=None))
    assert progress.best is None
    progress.finished(trial(0, 1000.0))
    # throughput has 40 of 70 parts of the score, p99 TPOT 20 and the success rate 10: 2 ** (40 / 70) = 1.486
    assert [round(record.score or 0, 3) for record in progress.last] == [1.486, 1.0]
    assert some(progress.best).number == 1


def test_the_time_left_counts_the_search_and_the_rounds(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(study_start(tmp_path), clock)
    assert progress.remaining_s() is None
    run(progress, clock, 0, 100.0)
    # 9 trials and 2 rounds of 4 measurements, 100 s each; the search sends as much as the rounds
    assert progress.remaining_s() == pytest.approx(1700.0)
    clock.now += 20.0  # the sampler's time between two trials
    run(progress, clock, 1, 100.0)
    assert progress.remaining_s() == pytest.approx((8 + 8) * 110.0)


def test_the_time_left_does_not_depend_on_dates(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(study_start(tmp_path), clock)
    progress.started(trial_spec(0))
    clock.now += 100.0
    record = trial(0)
    assert record.outcome is not None
    back = replace(record.outcome, ended_at=record.outcome.started_at - timedelta(days=1))
    progress.finished(replace(record, outcome=back))
    assert progress.remaining_s() == pytest.approx(1700.0)


def test_rounds_that_send_more_take_longer_by_the_benchmarks_share(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(
        study_start(tmp_path, search_prompts=50, confirmation=ConfirmationSettings(confirm_rounds=2)), clock
    )
    run(progress, clock, 0, 100.0)
    # 40 of 100 s are the benchmark, which is 2 x 3 times as long in a round: 60 + 40 * 6 = 300 s
    assert progress.remaining_s() == pytest.approx(9 * 100.0 + 8 * 300.0)


def test_a_simulation_spends_all_its_real_time_on_the_benchmark(tmp_path: Path) -> None:
    clock = Clock()
    start = study_start(
        tmp_path,
        search_prompts=50,
        confirmation=ConfirmationSettings(confirm_rounds=2),
        provenance=Provenance.SIMULATED,
    )
    progress = Progress(start, clock)
    run(progress, clock, 0, 1.0)
    assert progress.remaining_s() == pytest.approx(9 * 1.0 + 8 * 6.0)
    assert progress.simulated_s == 100.0
    assert progress.elapsed_s() == 1.0


def test_before_each_worker_is_back_those_that_run_count_as_finished(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(study_start(tmp_path, workers=4, confirmation=ConfirmationSettings(confirm_rounds=0)), clock)
    for number in range(4):
        progress.started(trial_spec(number))
    clock.now = 100.0
    progress.finished(trial(0))
    assert progress.remaining_s() == pytest.approx(9 * 25.0)


def test_the_confirmation_counts_its_rounds_from_one(tmp_path: Path) -> None:
    clock = Clock()
    earlier = (trial(0), trial(0, round_=1), trial(0, round_=4))
    progress = Progress(study_start(tmp_path, records=earlier), clock)
    assert progress.text_of_round(progress.round) == ""
    progress.stage(CONFIRMATION)
    run(progress, clock, 1, 10.0, round_=4)
    assert (progress.stage_done, progress.stage_trials, progress.text_of_round(progress.round)) == (
        2,
        8,
        "round 1 of 2",
    )
    run(progress, clock, 1, 10.0, round_=5)
    assert progress.text_of_round(progress.round) == "round 2 of 2"
    assert progress.remaining_s() == pytest.approx(5 * 10.0)


def test_until_a_stage_has_a_trial_the_pace_of_the_stage_before_counts(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(study_start(tmp_path, trials=1), clock)
    run(progress, clock, 0, 100.0)
    progress.stage(CONFIRMATION)
    assert progress.remaining_s() == pytest.approx(8 * 100.0)


def test_an_ablation_counts_only_its_own_trials(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(study_start(tmp_path, trials=1), clock)
    run(progress, clock, 0, 100.0)
    progress.stage(StagePlan(Stage.ABLATION, 2, ("#1 without block_size", "#1 without max_num_seqs")))
    assert (progress.stage_done, progress.stage_trials) == (0, 2)
    run(progress, clock, 2, 50.0)
    assert (progress.stage_done, progress.stage_trials) == (1, 2)
