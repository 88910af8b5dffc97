"""MLflow's record of a study, and the layout of its runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run

from dashboards.mlflow.follower import Follower, SyncReport, _follow, sync_to_mlflow
from dashboards.mlflow.log import MlflowUnavailable
from dashboards.mlflow.run_layout import (
    NOTE_TAG,
    note_of,
    run_name,
    study_tags,
    trial_params,
    trial_points,
)
from dashboards.mlflow.ui import VIEW_TAG, embedded_uri
from records.trials import (
    JsonScalar,
    Provenance,
    ServerFacts,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    configuration_changes,
)
from storage.store import Store, open_store
from storage.waiting import DatabaseWait
from tests import store_samples as samples
from tests.postgres import postgres_server

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tuner.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    study = samples.study("demo $(x)")
    engine = {"name": "vllm", "version": "0.32.0"}
    store.create_study(replace(study, premise={**study.premise, "engine": engine}))
    yield store
    store.close()


def finish(store: Store, number: int, outcome: TrialOutcome, round: int = 0, score: float | None = 1.25) -> None:
    kind = TrialKind.CONFIRM if round else TrialKind.SEARCH
    store.add_trial(samples.pending(number, round, "demo $(x)", kind))
    store.begin_attempt("demo $(x)", number, round)
    verdict = samples.verdict(score) if outcome.failure is None else None
    store.finish_trial("demo $(x)", number, round, outcome, verdict)


def runs_by_name(uri: str) -> dict[str, Run]:
    """Return all runs of the study's experiment; two of one name are an error."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("demo $(x)")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    named = {run.info.run_name: run for run in runs}
    assert len(named) == len(runs)
    return named


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_trial_is_a_nested_run_with_all_its_numbers(store: Store, url: str, uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "trials"
    folder.mkdir()
    for name in ("server.log", "command.txt", "bench-0.json", "bench-0.log", "other.bin"):
        (folder / name).write_text(name)
    outcome = samples.success(server=ServerFacts(kv_cache_tokens=1000, attention_backend="FLASHINFER"))
    finish(store, 7, replace(outcome, artifacts=str(folder)))

    assert sync_to_mlflow(url, "demo $(x)", uri) == SyncReport(logged=1)

    runs = runs_by_name(uri)
    assert set(runs) == {"demo $(x)", "#7"}
    run, parent = runs["#7"], runs["demo $(x)"]
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (run.info.start_time, run.info.end_time) == (1772366400123, 1772366490123)
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "max-num-seqs": "64",
        "gpu-memory-utilization": "0.9",
        "enforce-eager": "true",
        "dtype": "half",
        "x": "default",
        "env/VLLM_CACHE_ROOT": "c",
    }
    expected = {
        "output_throughput": 3332.25,
        "p99_tpot_ms": 40.5,
        "score": 1.25,
        "flags_changed": 4.0,
        "repeat/p99_tpot_ms": 41.0,
        "repeat/duration_s": 30.5,
        "repeat/failed": 1.0,
        "server/kv_cache_tokens": 1000.0,
        "timing/launch_s": 1.5,
        "timing/own_s": 0.125,
        "timing/total_s": 90.0,
    }
    assert expected.items() <= run.data.metrics.items()
    assert not [name for name in run.data.metrics if "p99_ttft" in name]
    tags = {
        "feasible": "true",
        "state": "ok",
        "provenance": "measured",
        "device": "Tesla T4",
        "kind": "search",
        "engine": "vllm",
        "version": "0.32.0",
        "attention_backend": "FLASHINFER",
        "command": "vllm serve 'a model'",
    }
    assert tags.items() <= run.data.tags.items()
    assert "failure" not in run.data.tags
    client = mlflow.MlflowClient(tracking_uri=uri)
    steps = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "repeat/p99_tpot_ms")]
    assert sorted(steps) == [(0, 40.0), (1, 41.0)]
    logged = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert logged == {"server.log", "command.txt", "bench-0.json", "bench-0.log"}
    [stored] = [path for path in tmp_path.rglob("server.log") if path.parent != folder]
    assert stored.samefile(folder / "server.log"), "it is stored once"
    fetched = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="server.log", tracking_uri=uri)
    assert Path(fetched).read_text() == "server.log"
    assert store.unsynced() == []
    store.mark_synced("demo $(x)", 7, 0, run.info.run_id)  # refuses any other run


def test_the_defaults_show_what_the_engine_chooses(store: Store, url: str, uri: str) -> None:
    facts = {
        "engine_defaults": {"max-num-seqs": 256, "dtype": "half", "suffix_depth": 24},
        "default_config": {"max-num-seqs": 256, "x": None},
    }
    store.update_study("demo $(x)", facts)
    reference = replace(samples.pending(0, 0, "demo $(x)", TrialKind.BASELINE), config={}, label="defaults")
    store.add_trial(reference)
    store.begin_attempt("demo $(x)", 0, 0)
    store.finish_trial("demo $(x)", 0, 0, replace(samples.success(), environment={}), samples.verdict(1.0))
    finish(store, 1, samples.success())
    sync_to_mlflow(url, None, uri)
    runs = runs_by_name(uri)
    defaults, searched = runs["#0 defaults"].data, runs["#1"].data
    assert defaults.params == {"max-num-seqs": "256", "x": "default"}
    assert (defaults.metrics["flags_changed"], searched.metrics["flags_changed"]) == (0.0, 3.0)
    assert not [name for name in runs["demo $(x)"].data.tags if "default_config" in name]


def test_an_experiment_gets_the_view_again_and_keeps_its_description(
    store: Store, url: str, uri: str, tmp_path: Path
) -> None:
    client, artifacts = mlflow.MlflowClient(tracking_uri=uri), (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment("demo $(x)", artifacts, tags={"mlflow.note.content": "mine", VIEW_TAG: "{}"})
    finish(store, 1, samples.success())
    sync_to_mlflow(url, None, uri)
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.note.content"] == "mine"
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert json.loads(tags[VIEW_TAG])["orderByKey"] == "metrics.`score`"


def test_tags_have_the_type_of_a_failure(store: Store, url: str, uri: str) -> None:
    finish(store, 1, samples.failed())
    sync_to_mlflow(url, None, uri)
    run = runs_by_name(uri)["#1"]
    tags = {
        "failure": "out_of_memory_startup",
        "culprit": "configuration",
        "failure_phase": "ready",
        "failure_message": "no memory",
        "state": "failed",
        "feasible": "false",
    }
    assert tags.items() <= run.data.tags.items()
    assert run.info.status == "FAILED"
    assert "output_throughput" not in run.data.metrics


def test_the_parent_run_describes_the_study(store: Store, url: str, uri: str, tmp_path: Path) -> None:
    finish(store, 0, samples.success(), score=1.0)
    finish(store, 1, samples.success(samples.repeat(0, 4000.0)), score=2.0)
    finish(store, 1, samples.success(samples.repeat(0, 4100.0)), round=2, score=3.0)
    script = tmp_path / "best.sh"
    script.write_text("#!/bin/sh\n")
    store.update_study("demo $(x)", {"script": str(script)}, {"winner": 1, "gain": 0.2})

    assert sync_to_mlflow(url, "demo $(x)", uri) == SyncReport(logged=3)

    runs = runs_by_name(uri)
    assert set(runs) == {"demo $(x)", "#0", "#1", "#1 r2"}
    parent = runs["demo $(x)"]
    client = mlflow.MlflowClient(tracking_uri=uri)
    course = [(m.step, m.value) for m in client.get_metric_history(parent.info.run_id, "trial/score")]
    assert sorted(course) == [(0, 1.0), (1, 2.0)]
    assert parent.data.metrics["best/output_throughput"] == 4100.0  # that of its round
    assert parent.data.params["model"] == "Qwen/Qwen2.5-0.5B"
    tags = {"version": "0.32.0", "best_trial": "#1", "conclusion.winner": "1", "conclusion.gain": "0.2"}
    assert tags.items() <= parent.data.tags.items()
    assert parent.info.status == "FINISHED"
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"premise.json", "facts.json", "conclusion.json", "best.sh", "pictures"}


def test_the_parent_run_names_the_winner_once_there_is_one(store: Store, url: str, uri: str) -> None:
    finish(store, 0, samples.success(), score=1.5)
    finish(store, 1, samples.success(samples.repeat(0, 4000.0)), score=2.0)
    finish(store, 2, samples.success(samples.repeat(0, 5000.0)), score=3.0)

    def best() -> tuple[str, float, float]:
        sync_to_mlflow(url, "demo $(x)", uri)
        run = runs_by_name(uri)["demo $(x)"].data
        return run.tags["best_trial"], run.metrics["best/output_throughput"], run.metrics["best/score"]

    assert best() == ("#2", 5000.0, 3.0)
    for round_, throughput in ((1, 4100.0), (2, 4200.0)):
        finish(store, 1, samples.success(samples.repeat(0, throughput)), round=round_, score=1.5)
    finalists = [
        {"number": 2, "score": {"ratio": 0.9}, "metrics": {}, "disqualified": None},
        {"number": 1, "score": {"ratio": 1.2}, "metrics": {}, "disqualified": None},
    ]
    store.update_study("demo $(x)", conclusion={"winner": 1, "keeps": None, "contenders": finalists})
    assert best() == ("#1", 4150.0, 1.2)
    runs = runs_by_name(uri)
    assert {runs[f"#1 r{n}"].data.tags["mlflow.parentRunId"] for n in (1, 2)} == {runs["#1"].info.run_id}
    for kept in ("defaults", "baseline"):
        conclusion = {"winner": 0, "keeps": kept, "contenders": finalists, "would_help": ["x"]}
        store.update_study("demo $(x)", conclusion=conclusion)
        finish(store, 3 if kept == "defaults" else 4, samples.success(samples.repeat(0, 6000.0)), score=4.0)
        assert best() == ("#0", 3332.25, 1.0)
    tags = runs_by_name(uri)["demo $(x)"].data.tags
    assert [name for name in tags if name.startswith("conclusion.would_help")] == []


def test_the_parent_run_of_a_study_without_a_winner_names_none(store: Store, url: str, uri: str) -> None:
    finish(store, 0, samples.success(), score=1.0)
    store.update_study("demo $(x)", conclusion={"winner": None, "keep_defaults": False, "contenders": []})
    sync_to_mlflow(url, "demo $(x)", uri)
    run = runs_by_name(uri)["demo $(x)"].data
    assert run.tags["best_trial"] == "none"
    assert [name for name in run.metrics if name.startswith("best/")] == []


KILLED = """
import os, signal, sys
import dashboards.mlflow.log as log
from dashboards.mlflow.follower import sync_to_mlflow

name, after = sys.argv[3], int(sys.argv[4])
original, calls = getattr(mlflow_client := log.mlflow.MlflowClient, name), []

def die(self, *arguments, **options):
    calls.append(1)
    result = original(self, *arguments, **options)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(mlflow_client, name, die)
sync_to_mlflow(sys.argv[1], None, sys.argv[2])
"""


@pytest.mark.parametrize(
    ("call", "after"),
    [
        pytest.param("create_experiment", 1, marks=pytest.mark.slow),
        pytest.param("create_run", 1, marks=pytest.mark.slow),
        pytest.param("create_run", 3, marks=pytest.mark.slow),
        ("log_batch", 4),
        pytest.param("set_terminated", 2, marks=pytest.mark.slow),
    ],
)
def test_each_trial_has_one_run_after_a_killed_follower(
    store: Store, url: str, uri: str, call: str, after: int
) -> None:
    for number in range(4):
        finish(store, number, samples.success())
    killed = subprocess.run([sys.executable, "-c", KILLED, url, uri, call, str(after)], cwd=ROOT, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    done = 4 - len(store.unsynced())

    report = sync_to_mlflow(url, None, uri)

    assert report.logged + report.already == 4 - done
    runs = runs_by_name(uri)
    assert set(runs) == {"demo $(x)", "#0", "#1", "#2", "#3"}
    client = mlflow.MlflowClient(tracking_uri=uri)
    for number in range(4):
        run = runs[f"#{number}"]
        assert (run.info.status, run.data.params["dtype"]) == ("FINISHED", "half")
        history = client.get_metric_history(run.info.run_id, "repeat/p99_tpot_ms")
        assert sorted((point.step, point.value) for point in history) == [(0, 40.0), (1, 41.0)]


def test_trials_are_logged_after_mlflow_was_down(store: Store, url: str, uri: str) -> None:
    finish(store, 0, samples.success())
    with pytest.raises(MlflowUnavailable, match=r"http://127.0.0.1:\d+ cannot be used: API request"):
        sync_to_mlflow(url, None, f"http://127.0.0.1:{closed_port()}")
    assert len(store.unsynced()) == 1
    with pytest.raises(MlflowUnavailable, match=r"http://me:\*\*\*@127.0.0.1:\d+ cannot be used: API request") as error:
        sync_to_mlflow(url, None, f"http://me:cogent@127.0.0.1:{closed_port()}")
    assert "cogent" not in str(error.value)
    assert sync_to_mlflow(url, None, uri) == SyncReport(logged=1)


def test_a_trial_that_mlflow_refuses_does_not_block_the_others(store: Store, url: str, uri: str) -> None:
    finish(store, 0, samples.success())
    sync_to_mlflow(url, None, uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    spoiled = client.create_run(
        runs_by_name(uri)["#0"].info.experiment_id,
        tags={"tuner.trial": runs_by_name(uri)["#0"].data.tags["tuner.trial"].replace("/0r", "/1r")},
        run_name="#1",
    )
    client.log_param(spoiled.info.run_id, "dtype", "another")
    finish(store, 1, samples.success())
    finish(store, 2, samples.success())

    report = sync_to_mlflow(url, None, uri)

    assert report.logged == 1
    assert len(report.failed) == 1
    assert report.failed[0].startswith("#1 of demo $(x): ")
    assert [trial.number for trial in store.unsynced()] == [1]


def test_runs_are_created_in_another_mlflow(store: Store, url: str, uri: str, tmp_path: Path, cache: Path) -> None:
    finish(store, 0, samples.success())
    sync_to_mlflow(url, None, uri)
    finish(store, 1, samples.success())
    assert sync_to_mlflow(url, None, embedded_uri(tmp_path / "b"), cache=cache) == SyncReport(logged=1)
    assert set(runs_by_name(embedded_uri(tmp_path / "b"))) == {"demo $(x)", "#1"}


def test_an_open_follower_logs_later_trials(store: Store, url: str, uri: str) -> None:
    follower = Follower(url, "demo $(x)", uri)
    try:
        assert follower.sync() == SyncReport()
        late = samples.success()
        finish(store, 3, replace(late, ended_at=late.ended_at + timedelta(seconds=1)))
        assert follower.sync() == SyncReport(logged=1)
        assert follower.sync() == SyncReport()
    finally:
        follower.close()
    assert runs_by_name(uri)["#3"].data.metrics["timing/total_s"] == 91.0


@pytest.mark.program("postgresql")
def test_an_open_follower_waits_for_a_database_that_is_restarted(uri: str) -> None:
    with postgres_server() as server:
        url = server.new_database()
        lines: list[str] = []

        def report(line: str) -> None:
            lines.append(line)
            if line.startswith("waiting"):
                server.start()

        with closing(open_store(url)) as store:
            store.create_study(samples.study("demo $(x)"))
            finish(store, 0, samples.success())
            with closing(Follower(url, None, uri, wait=DatabaseWait(report, first_delay_s=0.01))) as follower:
                server.stop()
                assert follower.sync() == SyncReport(logged=1)
            assert len(lines) == 2
            assert store.unsynced() == []


def test_follow_syncs_after_each_line_and_at_the_end(store: Store, url: str, uri: str) -> None:
    command = [sys.executable, "-m", "dashboards.mlflow.follower", "follow"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TUNER_SYNC_STORAGE": url, "MLFLOW_TRACKING_URI": uri},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdin is not None
        assert follower.stdout is not None
        finish(store, 0, samples.success())
        follower.stdin.write("\n")
        follower.stdin.flush()
        assert json.loads(follower.stdout.readline()) == {"logged": 1, "already": 0, "failed": []}
        os.kill(follower.pid, signal.SIGINT)
        finish(store, 1, samples.success())
        out, err = follower.communicate(timeout=60)
    assert json.loads(out) == {"logged": 1, "already": 0, "failed": []}
    assert (follower.returncode, err) == (0, "")
    assert set(runs_by_name(uri)) == {"demo $(x)", "#0", "#1"}


def test_follow_continues_while_mlflow_is_down(
    store: Store, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "input").write_text("\n")
    with (tmp_path / "input").open() as lines_of_a_study:
        monkeypatch.setattr(sys, "stdin", lines_of_a_study)
        with closing(Follower(url, None, f"http://127.0.0.1:{closed_port()}")) as follower:
            assert _follow(follower) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert all("cannot be used" in line["error"] for line in lines)


def test_a_creation_of_mlflows_database_that_was_cut_off_begins_anew(
    tmp_path: Path, url: str, store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """In place of a SIGKILL between two tables."""

    class Cut:
        def __init__(self, tracking_uri: str) -> None:
            Path(tracking_uri.removeprefix("sqlite:///")).write_bytes(b"half a database")
            raise Killed

    monkeypatch.setattr("dashboards.mlflow.log.mlflow.MlflowClient", Cut)
    with pytest.raises(Killed):
        sync_to_mlflow(url, tracking_uri=embedded_uri(tmp_path))
    assert not (tmp_path / "mlflow.db").exists()
    monkeypatch.undo()
    finish(store, 0, samples.success())
    assert sync_to_mlflow(url, tracking_uri=embedded_uri(tmp_path), cache=cache) == SyncReport(logged=1)
    assert sorted(path.name for path in tmp_path.glob("mlflow.db*")) == ["mlflow.db"]


def test_a_follower_whose_parent_ended_while_it_started_ends_at_once(url: str, store: Store) -> None:
    environment = {**os.environ, "TUNER_SYNC_STORAGE": url, "TUNER_SYNC_PARENT": "1"}
    command = [sys.executable, "-m", "dashboards.mlflow.follower", "follow"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
    assert (ended.returncode, ended.stdout) == (1, b"")


FACTS = {"engine_defaults": {"block_size": 16, "prefix_caching": True, "rate": 1.0}}


def test_durations_of_a_simulated_trial_are_marked() -> None:
    trial = samples.pending(1)
    points = {
        each.name: each.value
        for each in trial_points(trial, replace(samples.success(), provenance=Provenance.SIMULATED), {})
    }
    assert points["simulated/launch_s"] == 1.5
    assert points["simulated/total_s"] == 62.875, "1.5 + 61.25 + 0.125"
    assert points["repeat/simulated_s"] == 30.5
    assert [name for name in points if name.startswith("timing/") or name == "repeat/duration_s"] == []


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 0),
        ({"block_size": 16, "prefix_caching": True, "rate": 1, "dtype": None}, 0),
        ({"block_size": 32, "prefix_caching": True}, 1),
        ({"prefix_caching": 1}, 1),
        ({"dtype": "half", "block_size": None}, 1),
    ],
)
def test_a_flag_is_changed_where_its_value_is_not_the_default(config: dict[str, JsonScalar], count: int) -> None:
    assert len(configuration_changes(config, FACTS["engine_defaults"])) == count


def test_a_parameter_that_a_search_trial_lacks_does_not_count_there_and_gets_no_default() -> None:
    facts = {**FACTS, "default_config": {"block_size": 16, "suffix_depth": 24}}
    searched = replace(samples.pending(1), config={"block_size": None})
    given = replace(searched, kind=TrialKind.ENQUEUED)
    outcome = replace(samples.success(), environment={})
    assert trial_params(searched, outcome, facts) == {"block_size": "16"}
    assert trial_params(given, outcome, facts) == {"block_size": "16", "suffix_depth": "24"}
    assert trial_params(searched, outcome, {}) == {"block_size": "default"}


def test_the_reference_is_named() -> None:
    reference = replace(samples.pending(0, kind=TrialKind.BASELINE), label="defaults")
    assert run_name(reference) == "#0 defaults"
    assert run_name(replace(reference, kind=TrialKind.CONFIRM, round=2, label="finals 0,1")) == "#0 r2"


RATIO = {"ratio": 1.2, "low": 1.1, "high": 1.3, "rounds": 3}
CONCLUSION: dict[str, Any] = {
    "winner": 3,
    "keep_defaults": False,
    "reference": 1,
    "reason": "trial 3 is better than the baseline beyond the noise",
    "contenders": [
        {"number": 3, "score": RATIO, "metrics": {"output_throughput": RATIO}, "disqualified": None},
        {"number": 4, "score": None, "metrics": {}, "disqualified": "missed p99_tpot_ms<50 in round 2 (60)"},
        {
            "number": 5,
            "score": {**RATIO, "low": None, "high": None},
            "metrics": {"output_throughput": RATIO},
            "disqualified": None,
        },
    ],
    "flag_effects": [
        {
            "name": "capture_sizes",
            "value": "a|b",
            "default": None,
            "ratio": 1.25,
            "low": 1.15,
            "high": 1.36,
            "metrics": {"output_throughput": 1.5},
            "needed": 0.02,
            "trials": 40,
        }
    ],
}


def study(**changes: Any) -> StudyRecord:
    made = StudyRecord("s", datetime(2026, 11, 22, tzinfo=UTC), Provenance.MEASURED, {}, {}, CONCLUSION)
    return replace(made, **changes)


def test_it_has_the_verdict_the_finalists_and_the_flag_effects() -> None:
    assert (note_of(study()) or "").replace("\N{NO-BREAK SPACE}", " ").splitlines() == [
        "**trial 3 is better than the baseline beyond the noise**",
        "",
        "Finalists relative to #1, as ratios [95 % confidence interval]; 1 means equal:",
        "",
        "|  | score | output_throughput | disqualified |",
        "| --- | --- | --- | --- |",
        "| #3 | 1.200 [1.100, 1.300] | 1.200 [1.100, 1.300] |  |",
        "| #4 | – | – | missed p99\\_tpot\\_ms\\<50 in round 2 (60) |",
        "| #5 | 1.200 | 1.200 [1.100, 1.300] |  |",
        "",
        "Flag effects of #3: each value with the flag relative to the value with the flag reset to its default, "
        "estimated from 40 trials [95 % confidence interval]. Failure risk: the probability that the server fails or "
        "misses an SLO with the flag reset to its default.",
        "",
        "| flag | default | score | output_throughput | failure risk |",
        "| --- | --- | --- | --- | --- |",
        "| `capture_sizes=a\\|b` | `unset` | 1.25 [1.15, 1.36] | 1.50 | 2 % |",
    ]


def test_a_simulated_study_is_marked_first() -> None:
    assert (note_of(study(provenance=Provenance.SIMULATED)) or "").startswith("Simulated, not measured")


def test_parts_that_a_conclusion_lacks_are_left_out() -> None:
    alone = {"winner": 0, "reason": "keep the defaults"}
    assert note_of(study(conclusion=alone)) == "**keep the defaults**"


def test_the_parent_run_has_a_description_once_there_is_a_conclusion() -> None:
    assert study_tags(study())[NOTE_TAG] == note_of(study())
    assert NOTE_TAG not in study_tags(study(conclusion=None))


def test_it_has_what_would_help_a_study_that_keeps_its_defaults() -> None:
    line = "FP8 weights (changes the answers): score ×1.20, output_throughput ×1.25"
    found = (note_of(study(conclusion={"reason": "keep the defaults", "would_help": [line]})) or "").splitlines()
    assert found[-1] == r"- FP8 weights (changes the answers): score ×1.20, output\_throughput ×1.25"
    assert "predicted" in found[2]
