"""The pictures in MLflow: which a trial and a study have; one that cannot be drawn does not stop the others."""

import warnings
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from dashboards.mlflow.follower import SyncReport, sync_to_mlflow
from dashboards.plots.pictures import study_pictures, trial_pictures
from records.trials import StudyRecord, TrialKind, TrialOutcome, TrialRecord
from storage.store import open_store
from tests import store_samples as samples
from tuner.loadgen.result import write_records
from tuner.workloads.results import RequestRecord, RequestStatus

RATES = """\
rate,held,missed,offered,completed,success_rate,goodput_share,goodput,p50_ttft_ms,p95_ttft_ms,p99_ttft_ms,p95_tpot_ms
16,True,,10,10,1,1,16,40,100,110,20
64,False,a.goodput_share>=0.95,10,5,0.5,0.5,20,1000,1900,2000,40
"""


def study(name: str = "demo $(x)$") -> StudyRecord:
    workload = {"classes": {"a": {"weight": 1.0}, "b": {"weight": 2.0}}, "slo": {"a": {"ttft_ms": 1.0}}}
    return replace(samples.study(name), premise={"workload": workload, "objectives": ["goodput:1"]})


def trial(number: int, a: float, b: float) -> TrialRecord:
    metrics = {
        "a.goodput_share": a,
        "b.goodput_share": b,
        "worst.goodput_share": min(a, b),
        "goodput_share": (a + b) / 2,
    }
    repeat = replace(samples.repeat(0), metrics=metrics)
    record = samples.pending(number, study="demo $(x)$")
    return replace(record, outcome=samples.success(repeat), verdict=samples.verdict(1.0))


def outcome_with_files(folder: Path) -> TrialOutcome:
    """An outcome whose folder has the files of one benchmark and of a capacity search."""
    folder.mkdir()
    write_records(folder / "requests-0.jsonl.gz", [RequestRecord(0, "a", RequestStatus.COMPLETED, planned_input=70)])
    (folder / "server-0.csv").write_text("at_s,running,waiting,kv_usage,preemptions\n1,2,0,0.5,0\n")
    (folder / "capacity.csv").write_text(RATES)
    return replace(trial(0, 0.5, 1.0).outcome or samples.success(), artifacts=str(folder))


def test_every_file_of_a_trial_is_drawn_under_the_trials_name(tmp_path: Path) -> None:
    found = trial_pictures(trial(0, 0.5, 1.0), outcome_with_files(tmp_path / "t"))
    titles = {name: figure.layout.title.text for name, figure in found.figures.items()}
    assert titles == {name: f"demo $(x)$ #0 (measured): {name}" for name in ("requests", "server", "rate")}
    assert found.undrawn == ()
    assert trial_pictures(trial(0, 0.5, 1.0), samples.success()).figures == {}


def test_a_picture_that_cannot_be_drawn_is_reported_beside_the_others(tmp_path: Path) -> None:
    outcome = outcome_with_files(tmp_path / "t")
    (tmp_path / "t" / "requests-1.jsonl.gz").write_bytes(b"PAR1 torn")
    found = trial_pictures(trial(0, 0.5, 1.0), outcome)
    assert [*found.figures] == ["server", "rate"]
    [reason] = found.undrawn
    assert reason.startswith("requests: StorageError: ")
    assert "requests-1.jsonl.gz cannot be read" in reason


def test_the_trade_off_of_a_study_is_limited() -> None:
    trials = [trial(number, number / 100, 1.0) for number in range(30)]
    assert len(study_pictures(study(), trials).figures["tradeoff"].data[0].x) == 24
    for nothing in (samples.study(), replace(study(), premise={"workload": {"max_concurrency": 1}})):
        assert [*study_pictures(nothing, trials).figures] == ["progress"]
    assert study_pictures(study(), []).figures == {}


def test_the_pictures_of_a_study_follow_from_its_facts_and_conclusion() -> None:
    cell = {"ratio": 1.2, "low": 1.1, "high": 1.3}
    point = {"number": 3, "rounds": 2, "on_front": True, "metrics": {"x": cell, "y": cell}}
    front = {"metrics": ["x", "y"], "reference": 0, "points": [point]}
    effects = [{"name": "a", "value": 8, **cell}, {"name": "b", "value": 1, "ratio": 1.0, "low": None, "high": None}]
    facts = {"importance": {"a": [0.1, 0.05, 0.2]}}
    concluded = replace(study(), premise={}, facts=facts, conclusion={"flag_effects": effects, "front": front})
    ended = replace(samples.pending(0), outcome=samples.success(), verdict=samples.verdict(1.0))
    figures = study_pictures(concluded, [ended]).figures
    assert [*figures] == ["progress", "importance", "flags", "front"]
    [flags] = figures["flags"].data
    assert (list(flags.y), list(flags.x)) == (["a=8", "b=1"], [1.2, 1.0])
    assert [round(each, 9) for each in (*flags.error_x.array, *flags.error_x.arrayminus)] == [0.1, 0.0, 0.1, 0.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_the_follower_logs_pictures_once(tmp_path: Path, uri: str) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    store = open_store(url)
    store.create_study(study())
    finished = trial(0, 0.5, 1.0)
    store.add_trial(samples.pending(0, 0, "demo $(x)$", TrialKind.SEARCH))
    store.begin_attempt("demo $(x)$", 0)
    store.finish_trial("demo $(x)$", 0, 0, outcome_with_files(tmp_path / "t"), finished.verdict)

    with warnings.catch_warnings(action="ignore"):  # MLflow's own
        assert sync_to_mlflow(url, None, uri) == SyncReport(logged=1)
        assert sync_to_mlflow(url, None, uri) == SyncReport()

    client = mlflow.MlflowClient(tracking_uri=uri)
    store.close()
    [experiment] = client.search_experiments(filter_string="name != 'Default'")
    runs = client.search_runs([experiment.experiment_id])
    run, parent = (each.info.run_id for each in sorted(runs, key=lambda run: run.data.tags["kind"]))
    drawn = {file.path: file.file_size or 0 for file in client.list_artifacts(run, "pictures")}
    assert {*drawn} == {"pictures/requests.html", "pictures/server.html", "pictures/rate.html"}
    assert max(drawn.values()) < 100_000  # Plotly's script, 4.8 MB, is not in each
    of_study = {file.path for file in client.list_artifacts(parent, "pictures")}
    assert of_study == {"pictures/progress.html", "pictures/tradeoff.html"}
    rows = Path(client.download_artifacts(parent, "tradeoff.csv")).read_text().splitlines()
    assert rows[1] == "a,0.5,#0"
