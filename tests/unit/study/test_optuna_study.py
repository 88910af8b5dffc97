"""The Optuna study of a search, its storage, and its lock."""

import math
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from records.trials import Config, Failure, Provenance, Verdict
from storage import normalise_url, open_store
from storage.errors import StorageError
from tests import store_samples as samples
from tests.contracts.store_processes import counted
from tests.unit.storage.test_locks import another_process
from tests.unit.study.conftest import SPACE, Bench
from tuner.errors import InfrastructureError
from tuner.sampler.acquisition import PREDICTED_NEXT
from tuner.sampler.background import BackgroundPredictions
from tuner.sampler.encoding import Params
from tuner.sampler.history import GAIN_AT_MOST
from tuner.sampler.prior import Prediction, Prior
from tuner.scoring.goals import parse_objective
from tuner.settings.study import RESIDUAL, TPE
from tuner.study.optuna_storage import OptunaStorage, open_durable
from tuner.study.optuna_study import OptunaStudy, SharedTrial, shown
from tuner.study.study_folder import StudyIsRunning, refuse_running, wait_until_free

WIDE = SPACE.replace("high: 64", "high: 4096")
OBJECTIVES = (parse_objective("output_throughput"), parse_objective("p99_tpot_ms"))
OUT_OF_MEMORY = "out_of_memory_startup"
GOOD = Verdict({"output_throughput": 1300.0}, {}, 1.3)


def open_study(
    tmp_path: Path, sampler: str, prior: Prior | None = None, text: str = SPACE, objectives: int = 1
) -> OptunaStudy:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    space = Bench(tmp_path, file).spec().space
    return OptunaStudy(url_of(tmp_path), "s", space, OBJECTIVES[:objectives], 0, sampler, prior)


def url_of(tmp_path: Path) -> str:
    return normalise_url(str(tmp_path / "o.db"))


def study_of_four(tmp_path: Path, sampler: str, prior: Prior | None = None, text: str = SPACE) -> OptunaStudy:
    """Return a study of four trials: 1000, an infrastructure failure, 1500 and 1200; none violates a constraint."""
    study = open_study(tmp_path, sampler, prior, text)
    for seqs, throughput in ((4, 1000.0), (8, None), (32, 1500.0), (16, 1200.0)):
        trial = study.ask_fixed({"max_num_seqs": seqs, "block_size": 16}, {})
        verdict = None if throughput is None else Verdict({"output_throughput": throughput}, {}, throughput / 1000)
        study.tell(trial.number, verdict)
    return study


def test_the_ranking_contains_the_trial_numbers_of_the_study(tmp_path: Path) -> None:
    assert study_of_four(tmp_path, RESIDUAL).ranking() == [2, 3, 0]


def test_a_ranking_waits_for_background_predictions(tmp_path: Path) -> None:
    """The prior is held up until the ranking begins to wait."""
    ranking, predicted = Event(), []

    def slow(params: Params) -> Prediction:
        assert ranking.wait(30)
        predicted.append(params)
        return Prediction((1000.0,), {})

    study = study_of_four(tmp_path, RESIDUAL, slow)
    wait = study.wait_for_predictions

    def waiting() -> None:
        ranking.set()
        wait()

    study.wait_for_predictions = waiting  # type: ignore[method-assign]
    assert predicted == []
    assert study.ranking() == [2, 3, 0]
    assert len(predicted) > 4


def test_a_resumed_study_predicts_its_earlier_trials_before_the_first_suggestion(tmp_path: Path) -> None:
    predicted: list[tuple[int, Thread]] = []

    def prior(params: Params) -> Prediction:
        predicted.append((params["max_num_seqs"], current_thread()))
        return Prediction((1000.0,), {})

    study_of_four(tmp_path, RESIDUAL, None, WIDE)
    again = open_study(tmp_path, RESIDUAL, prior, WIDE)
    again.wait_for_predictions()
    assert {4, 32, 16} <= {seqs for seqs, _ in predicted}
    again.ask()
    again.wait_for_predictions()
    assert main_thread() not in {thread for _, thread in predicted}


def test_predictions_for_the_next_suggestion_are_computed_while_the_trial_runs(tmp_path: Path) -> None:
    going, threads = Event(), []

    def slow(params: Params) -> Prediction:
        assert going.wait(30)
        threads.append(current_thread())
        return Prediction((1000.0 + params["max_num_seqs"],), {})

    going.set()
    study = study_of_four(tmp_path, RESIDUAL, slow, WIDE)
    study.wait_for_predictions()
    going.clear()
    before = len(threads)
    trial = study.ask()  # The predictions for the next suggestion are held up, this suggestion is not.
    assert len(threads) == before
    study.tell(trial.number, GOOD)
    going.set()
    study.wait_for_predictions()
    assert before < len(threads) <= before + PREDICTED_NEXT + 1
    study.ask()
    assert main_thread() not in threads


@pytest.mark.parametrize(("before", "first", "later"), [(0, 19, 0), (17, 19, 17)])
def test_background_predictions_have_a_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, first: int, later: int
) -> None:
    """The thread never raises the priority that the program was started with, which only root may do."""
    niceness_of_runs: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda which, who: before)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: niceness_of_runs.append(niceness))
    study = open_study(tmp_path, RESIDUAL, lambda params: Prediction((1000.0,), {}), WIDE)
    study.ask_fixed({"max_num_seqs": 4}, {})
    study.wait_for_predictions()
    assert niceness_of_runs == [first, later]


def test_an_early_suggestion_computes_the_missing_predictions_itself_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction in progress is finished by the background thread, all others by the main thread."""
    released, held_up, finish, predicted = Event(), Event(), BackgroundPredictions.finish, []

    def prior(params: Params) -> Prediction:
        predicted.append((current_thread(), params["max_num_seqs"]))
        assert current_thread() is main_thread() or released.wait(30)
        return Prediction((1000.0 + params["max_num_seqs"],), {})

    def search(folder: Path, early: bool) -> list[Config]:
        folder.mkdir()
        released.set()
        study = study_of_four(folder, RESIDUAL, prior, WIDE)
        study.wait_for_predictions()
        predicted.clear()
        configs = []
        if early:
            held_up.set()
        for _ in range(3):
            trial = study.ask()
            study.tell(trial.number, GOOD)
            configs.append(trial.config)
            if not early:
                study.wait_for_predictions()
        released.set()
        study.wait_for_predictions()
        return configs

    def finishing(self: BackgroundPredictions, directions: list[optuna.study.StudyDirection]) -> None:
        self._stopped.set()
        released.set()
        finish(self, directions)
        if held_up.is_set():
            released.clear()

    monkeypatch.setattr(BackgroundPredictions, "finish", finishing)
    late = search(tmp_path / "late", early=False)
    in_background = [seqs for _, seqs in predicted]
    assert main_thread() not in {thread for thread, _ in predicted}
    assert search(tmp_path / "early", early=True) == late
    assert [seqs for _, seqs in predicted] == in_background
    assert main_thread() in {thread for thread, _ in predicted}


def test_of_a_long_history_the_first_measured_the_best_and_the_latest_trials_are_used() -> None:
    """200 trials: 0 failed, 1 is the worst of all, 20 to 79 are the best 60."""

    def trial(number: int) -> FrozenTrial:
        state = TrialState.PRUNED if number == 0 else TrialState.COMPLETE
        score = 0.1 if number == 1 else 2.0 if 20 <= number < 80 else 1.0
        made = create_trial(
            state=state, value=None if number == 0 else score, user_attrs={"score": None if number == 0 else score}
        )
        made.number = number
        return made

    numbers = [each.number for each in shown([trial(number) for number in range(200)])]
    # 1 + 60, and of the 140 the other 79 are the latest
    assert numbers == [1, *range(20, 80), *range(121, 200)]
    assert len(numbers) == 140
    few = [trial(number) for number in range(140)]
    assert shown(few) == few


def test_a_shared_trial_is_stored_without_a_copy_of_its_values() -> None:
    trial = create_trial(params={"x": 0.5}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}, value=2)
    trial.set_constraint("slo", -0.5)
    study = optuna.create_study()
    study.add_trial(SharedTrial.of(trial))
    [stored] = study.get_trials(deepcopy=False)
    assert (stored.params, stored.value, stored.constraints) == ({"x": 0.5}, 2, {"slo": -0.5})
    assert stored.distributions is trial.distributions


def test_tpe_ranks_nothing(tmp_path: Path) -> None:
    assert study_of_four(tmp_path, TPE).ranking() == []


@pytest.mark.parametrize("sampler", [RESIDUAL, TPE])
def test_a_study_without_measurements_ranks_nothing(tmp_path: Path, sampler: str) -> None:
    assert open_study(tmp_path, sampler).ranking() == []


def test_optunas_objectives_have_the_names_of_the_metrics(tmp_path: Path) -> None:
    open_study(tmp_path, TPE, objectives=2)
    stored = optuna.load_study(study_name="s", storage=url_of(tmp_path))
    assert stored.metric_names == ["output_throughput", "p99_tpot_ms"]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("names", [None, ["output_throughput", "p99_tpot_ms"]])
def test_a_study_of_an_earlier_version_gets_or_keeps_the_names(tmp_path: Path, names: list[str] | None) -> None:
    study_of_four(tmp_path, TPE)
    optuna.delete_study(study_name="s", storage=url_of(tmp_path))
    former = optuna.create_study(study_name="s", storage=url_of(tmp_path), directions=["maximize", "minimize"])
    former.add_trial(create_trial(values=[1000.0, 10.0]))
    if names is not None:
        former.set_metric_names(names)
    study = open_study(tmp_path, TPE, objectives=2)
    stored = optuna.load_study(study_name="s", storage=url_of(tmp_path))
    assert stored.metric_names == ["output_throughput", "p99_tpot_ms"]
    assert stored.trials[0].values == [1000.0, 10.0]
    trial = study.ask()
    study.tell(trial.number, Verdict({"output_throughput": 1300.0, "p99_tpot_ms": 9.0}, {}, 1.3))
    assert study.running() == []


@pytest.mark.parametrize(
    ("verdict", "failure", "expected"),
    [
        (GOOD, None, {"score": 1.3, "verdict": "feasible"}),
        (
            Verdict({"output_throughput": 900.0}, {"p99_ttft_ms<2000": 0.1, "p99_tpot_ms<50": -0.2}, 0.9),
            None,
            {"score": 0.9, "verdict": "infeasible: p99_ttft_ms<2000"},
        ),
        (
            Verdict({}, {"failed": 10.0}, None),
            samples.failed().failure,
            {"verdict": "failed", "failure": OUT_OF_MEMORY},
        ),
        (None, None, {}),
        (None, samples.failed().failure, {"verdict": "failed", "failure": OUT_OF_MEMORY}),
    ],
)
def test_a_reader_of_optunas_tables_finds_verdict_and_failure(
    tmp_path: Path, verdict: Verdict | None, failure: Failure | None, expected: dict[str, object]
) -> None:
    study = open_study(tmp_path, TPE)
    study.tell(study.ask().number, verdict, failure)
    [stored] = optuna.load_study(study_name="s", storage=url_of(tmp_path)).trials
    assert {name: value for name, value in stored.user_attrs.items() if name != "config"} == expected


def test_a_trial_that_was_cut_is_stored_with_its_bounds(tmp_path: Path) -> None:
    study = open_study(tmp_path, TPE)
    study.tell(study.ask().number, GOOD)  # scores 1.3
    cut = Verdict({"output_throughput": None}, {"p99_tpot_ms<50": 0.4}, None)
    study.tell(study.ask().number, cut, None, math.log(0.65))
    study.tell(study.ask().number, replace(cut, constraints={}), None, None)
    _, bounded, unknown = optuna.load_study(study_name="s", storage=url_of(tmp_path)).trials
    assert bounded.state is TrialState.PRUNED
    assert bounded.user_attrs[GAIN_AT_MOST] == pytest.approx(math.log(0.5))
    assert bounded.user_attrs["verdict"] == "cut short"
    assert bounded.constraints == {"p99_tpot_ms<50": 0.4, "failed": 0.0}
    assert unknown.user_attrs[GAIN_AT_MOST] is None


def test_a_reader_of_optunas_tables_finds_where_the_numbers_come_from(tmp_path: Path) -> None:
    with closing(open_store(url_of(tmp_path))) as store:
        record = samples.study("s", Provenance.SIMULATED)
        engine = {"name": "simulated vllm", "version": "0.15.1"}
        store.create_study(replace(record, premise={**record.premise, "engine": engine}, facts={"devices": ["L4"]}))
        OptunaStorage(url_of(tmp_path), "s", [StudyDirection.MAXIMIZE], store).close()
    assert optuna.load_study(study_name="s", storage=url_of(tmp_path)).user_attrs == {
        "provenance": "simulated",
        "engine": "simulated vllm 0.15.1",
        "model": "Qwen/Qwen2.5-0.5B",
        "devices": "L4",
    }


OPEN = """
import sys
from tuner.study.optuna_storage import open_storage
sys.stdin.readline()
print(open_storage(sys.argv[1], {}).get_current_version())
"""
PROCESSES = 3


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/t.db"]
    pipe = subprocess.PIPE
    opened = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(PROCESSES)]
    for each in opened:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    answers = [each.communicate() for each in opened]
    assert [each.returncode for each in opened] == [0] * PROCESSES, answers
    assert len({out for out, _ in answers}) == 1


@pytest.mark.parametrize(("schema", "step"), [("v1.3.0.a", "`optuna storage upgrade"), ("v99.0.0.a", "update Optuna")])
def test_tables_of_another_optuna_are_refused_in_one_line(tmp_path: Path, schema: str, step: str) -> None:
    url = url_of(tmp_path)
    open_durable(url).engine.dispose()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (schema,))
        connection.execute("UPDATE version_info SET library_version = '2.10.1'")
    with pytest.raises(StorageError, match=f"are of Optuna 2.10.1, which .* does not read; .*{step}"):
        open_durable(url)


def test_a_study_that_another_process_runs_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process, pytest.raises(StudyIsRunning, match=f"process {process.pid} on host"):
        refuse_running(url, "s")


def test_the_wait_ends_when_the_other_process_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process:
        waits = threading.Thread(target=wait_until_free, args=(url, "s", 600.0, threading.Event()))
        waits.start()
        assert waits.is_alive()
        process.kill()
        waits.join()
    refuse_running(url, "s")


def test_a_wait_without_an_end_is_a_failure_of_the_infrastructure(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process:
        rule = f"process {process.pid} on host .* is running the study 's', and did not end within 0 s"
        with pytest.raises(InfrastructureError, match=rule):
            wait_until_free(url, "s", 0.0, threading.Event())


def test_a_request_to_stop_ends_the_wait(tmp_path: Path) -> None:
    url, stop = f"sqlite:///{tmp_path / 't.db'}", threading.Event()
    stop.set()
    with another_process(url):
        wait_until_free(url, "s", 600.0, stop)


def test_other_predictions_begin_as_in_a_resumed_study(tmp_path: Path) -> None:
    """No prediction of before remains: every residual of the surrogate follows from the new ones."""
    asked: list[str] = []

    def rising(params: Params) -> Prediction:
        asked.append("rising")
        return Prediction((1000.0 + params["max_num_seqs"],), {})

    def falling(params: Params) -> Prediction:
        asked.append("falling")
        return Prediction((9000.0 - params["max_num_seqs"],), {})

    def second_suggestion(folder: Path, resumed: bool) -> Config:
        folder.mkdir()
        study = study_of_four(folder, RESIDUAL, rising, WIDE)
        study.wait_for_predictions()
        if resumed:
            study.close()
            study = open_study(folder, RESIDUAL, falling, WIDE)
        else:
            study.use_prior(falling)
        asked.clear()
        config = study.ask().config
        study.wait_for_predictions()
        study.close()
        return config

    changed = second_suggestion(tmp_path / "changed", resumed=False)
    assert "rising" not in asked
    assert changed == second_suggestion(tmp_path / "resumed", resumed=True)


def test_each_constraint_of_an_outcome_is_written_and_nothing_is_read_again(tmp_path: Path) -> None:
    study, counts = open_study(tmp_path, TPE), []
    for names in ((), ("a", "b", "c")):
        trial = study.ask_fixed({"max_num_seqs": 4}, {})
        with counted() as statements:
            study.tell(trial.number, Verdict({"output_throughput": 1300.0}, dict.fromkeys(names, 0.0), 1.3))
        counts.append(len(statements))
    assert counts[1] - counts[0] <= 2 * 3  # Optuna looks for the trial, then writes
