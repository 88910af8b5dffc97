"""Plots are PNG files that show the values of their frames; one that cannot be drawn does not stop the others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from dashboards.analysis.tradeoff import tradeoff_frame
from dashboards.analysis.trial_files import rate_frame, requests_by_length_frame, server_frame
from dashboards.mlflow.follower import SyncReport, sync_to_mlflow
from dashboards.mlflow.tracking import embedded_uri
from dashboards.plots import figures, plot_files, study_figures
from storage.records import FailureKind, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from storage.store import open_store
from tests import store_samples as samples
from tuner.loadgen.result import write_records
from tuner.workloads.results.requests import RequestRecord, RequestStatus

pytestmark = pytest.mark.filterwarnings("error")
RATES = """\
rate,held,missed,offered,completed,success_rate,goodput_share,goodput,p50_ttft_ms,p95_ttft_ms,p99_ttft_ms,p95_tpot_ms
16,True,,10,10,1,1,16,40,100,110,20
64,False,a.goodput_share>=0.95,10,5,0.5,0.5,20,1000,1900,2000,40
32,True,,10,10,1,1,32,50,120,130,25
128,False,a.goodput_share>=0.95,10,0,0,0,,,,,
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


def written(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and file.stat().st_size > 5000


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def points(line: Line2D) -> tuple[list[float], list[float]]:
    x, y = np.asarray(line.get_xydata()).T
    return x.tolist(), y.tolist()


def legend(holder: Figure | Axes) -> list[str]:
    found = holder.legends[0] if isinstance(holder, Figure) else holder.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_the_tradeoff_matrix(tmp_path: Path) -> None:
    failed = replace(samples.pending(2), outcome=samples.failed(FailureKind.ENGINE_CRASH), label="awq")
    frame = tradeoff_frame(study(), [trial(0, 0.5, 1.0), trial(1, 0.75, 1.0), failed])
    figure = figures.draw_tradeoff(frame, tmp_path / "x.png", "demo $x$ (measured)")
    matrix, explained = figure.axes[:2]
    assert written(tmp_path / "x.png")
    assert figure.get_suptitle() == "demo $x$ (measured)"
    assert [label.get_text() for label in matrix.get_yticklabels()] == ["a", "b", "worst class", "all requests"]
    assert [label.get_text() for label in matrix.get_xticklabels()] == ["#0", "#1", "#2"]
    assert texts(matrix) == [
        *("50%", "75%*", "–"),
        *("100%*", "100%*", "–"),
        *("50%", "75%*", "–"),
        *("75%", "87.5%*", "–"),
    ]
    assert texts(explained)[2] == "#2 awq (engine_crash)"


def test_requests_have_a_panel_for_each_class(tmp_path: Path) -> None:
    columns = ["class", "from", "to", "offered", "completed", "not_sent", "timed_out"]
    rows = [["a", 1, 64, 10, 10, 0, 0], ["a", 129, 256, 9, 4, 2, 3], ["b", None, None, 5, 0, 5, 0]]
    frame = pd.DataFrame(rows, columns=columns).astype({"from": "Int64", "to": "Int64"})
    figure = figures.draw_requests(frame, tmp_path / "x.png", "demo (simulated)")
    a, b = figure.axes
    assert written(tmp_path / "x.png")
    assert [axes.get_title() for axes in (a, b)] == ["request class a", "request class b"]
    assert [label.get_text() for label in a.get_xticklabels()] == ["1–64", "65–128", "129–256", "unknown"]
    assert texts(a) == ["10", "9\n5 failed"]
    assert texts(b) == ["5\n5 failed"]
    # completed, then not_sent, then timed_out, each over the one before
    boxes = [bar.get_bbox() for bar in a.patches if isinstance(bar, Rectangle)]
    assert [(round((box.x0 + box.x1) / 2, 6), box.y0, box.y1) for box in boxes] == [
        *((0, 0, 10), (2, 0, 4)),
        *((0, 10, 10), (2, 4, 6)),
        *((0, 10, 10), (2, 6, 9)),
    ]
    assert legend(figure) == ["completed", "not sent", "timed out"]


def test_rates_show_the_capacity_and_missed_slos(tmp_path: Path) -> None:
    (tmp_path / "capacity.csv").write_text(RATES)
    figure = figures.draw_rates(rate_frame(tmp_path / "capacity.csv"), tmp_path / "x.png", "demo")
    (axes,) = figure.axes
    assert written(tmp_path / "x.png")
    assert axes.get_yscale() == "log"
    assert legend(axes) == ["p50 TTFT", "p95 TTFT", "p99 TTFT", "capacity: 32 requests/s", "missed an SLO"]
    capacity, missed = axes.lines[3:]
    assert points(capacity)[0] == [32, 32]
    assert points(missed)[0] == [64, 128]


def test_rates_without_completed_requests(tmp_path: Path) -> None:
    header, *_, none = RATES.splitlines()
    (tmp_path / "capacity.csv").write_text(f"{header}\n{none}\n")
    figure = figures.draw_rates(rate_frame(tmp_path / "capacity.csv"), tmp_path / "x.png", "demo")
    assert texts(figure.axes[0]) == ["no request completed at any rate"]
    assert legend(figure.axes[0]) == ["p50 TTFT", "p95 TTFT", "p99 TTFT", "missed an SLO"]
    assert written(tmp_path / "x.png")


def test_the_server_over_time(tmp_path: Path) -> None:
    for index in range(2):
        (tmp_path / f"server-{index}.csv").write_text(
            "at_s,running,waiting,kv_usage,preemptions\n1,2,,0.5,0\n2,3,1,0.6,0\n"
        )
    frame = server_frame([tmp_path / "server-0.csv", tmp_path / "server-1.csv"])
    figure = figures.draw_server(frame, tmp_path / "x.png", "demo")
    above, below = figure.axes
    assert written(tmp_path / "x.png")
    assert legend(above) == ["running", "waiting", "next benchmark"]
    assert [points(line)[1] for line in below.lines[:2]] == [[50, 60], [50, 60]]
    assert points(below.lines[2])[0] == [3, 3]  # the first sample of the second benchmark


@pytest.mark.parametrize("frame", [requests_by_length_frame([]), server_frame([])])
def test_an_empty_frame_is_drawn(tmp_path: Path, frame: pd.DataFrame) -> None:
    draw = figures.draw_requests if "class" in frame else figures.draw_server
    draw(frame, tmp_path / "x.png", "demo")
    assert (tmp_path / "x.png").exists()


def outcome_with_files(folder: Path) -> TrialOutcome:
    """An outcome whose folder has the files of one benchmark and of a capacity search."""
    folder.mkdir()
    write_records(folder / "requests-0.parquet", [RequestRecord(0, "a", RequestStatus.COMPLETED, planned_input=70)])
    (folder / "server-0.csv").write_text("at_s,running,waiting,kv_usage,preemptions\n1,2,0,0.5,0\n")
    (folder / "capacity.csv").write_text(RATES)
    return replace(trial(0, 0.5, 1.0).outcome or samples.success(), artifacts=str(folder))


def test_every_file_of_a_trial_is_drawn(tmp_path: Path) -> None:
    outcome = outcome_with_files(tmp_path / "t")
    with plot_files.trial_plots(trial(0, 0.5, 1.0), outcome) as folder:
        files = {str(file.relative_to(folder)) for file in folder.rglob("*.*")}
        assert files == {"pictures/requests.png", "pictures/server.png", "pictures/rate.png"}
        assert all(written(folder / file) for file in files)
    assert not folder.exists()
    with plot_files.trial_plots(trial(0, 0.5, 1.0), samples.success()) as folder:
        assert list(folder.iterdir()) == []


def test_a_plot_that_cannot_be_drawn_is_reported_beside_the_others(tmp_path: Path) -> None:
    outcome = outcome_with_files(tmp_path / "t")
    (tmp_path / "t" / "requests-1.parquet").write_bytes(b"PAR1 torn")
    with plot_files.trial_plots(trial(0, 0.5, 1.0), outcome) as folder:
        files = {str(file.relative_to(folder)) for file in folder.rglob("*.*")}
        assert files == {"pictures/undrawn.txt", "pictures/server.png", "pictures/rate.png"}
        reasons = (folder / "pictures" / "undrawn.txt").read_text()
        assert reasons.startswith("pictures/requests.png: StorageError: ")
        assert "requests-1.parquet cannot be read" in reasons


def test_the_plot_of_a_study_is_limited_and_its_csv_is_complete() -> None:
    trials = [trial(number, number / 100, 1.0) for number in range(30)]
    with plot_files.study_plots(study(), trials) as folder:
        assert written(folder / "pictures" / "tradeoff.png")
        rows = (folder / "tradeoff.csv").read_text().splitlines()
    assert rows[0].count(",") == 31
    assert rows[1].endswith(",0.29,#29")
    for nothing in (samples.study(), replace(study(), premise={"workload": {"max_concurrency": 1}})):
        with plot_files.study_plots(nothing, trials) as folder:
            assert [file.name for file in folder.rglob("*.*")] == ["progress.png"]
    with plot_files.study_plots(study(), []) as folder:
        assert list(folder.iterdir()) == []


def test_the_follower_logs_plots_once(tmp_path: Path) -> None:
    url, uri = f"sqlite:///{tmp_path / 'tuner.db'}", embedded_uri(tmp_path)
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
    run, parent = store.synced_run("demo $(x)$", 0), store.study_run("demo $(x)$")
    store.close()
    assert run is not None
    assert parent is not None
    drawn = {file.path for file in client.list_artifacts(run, "pictures")}
    assert drawn == {"pictures/requests.png", "pictures/server.png", "pictures/rate.png"}
    of_study = {file.path for file in client.list_artifacts(parent, "pictures")}
    assert of_study == {"pictures/progress.png", "pictures/tradeoff.png"}
    assert "tradeoff.csv" in {file.path for file in client.list_artifacts(parent)}


def test_the_front_has_a_panel_for_each_further_metric_and_intervals(tmp_path: Path) -> None:
    bar = {"ratio": 1.2, "low": 1.1, "high": 2000.0}
    beaten = {"ratio": 0.9, "low": None, "high": None}
    names = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
    points = [
        {"number": 3, "rounds": 2, "on_front": True, "metrics": dict.fromkeys(names, bar)},
        {"number": 4, "rounds": 0, "on_front": True, "metrics": {name: {**beaten, "ratio": 0.8} for name in names}},
        {"number": 5, "rounds": 0, "on_front": False, "metrics": dict.fromkeys(names, beaten)},
    ]
    front = {"metrics": names, "reference": 0, "points": points}
    figure = figures.draw_front(front, tmp_path / "front.png", "demo (measured)")
    assert written(tmp_path / "front.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["p99_tpot_ms, ratio to #0", "p99_ttft_ms, ratio to #0"]
    assert texts(figure.axes[0]) == ["#3", "#4"]
    assert figure.axes[0].get_xlim()[1] < 2.0  # a very wide interval leaves the picture
    concluded = replace(study(), premise={}, conclusion={"front": front})
    with plot_files.study_plots(concluded, []) as folder:
        assert written(folder / "pictures" / "front.png")


def test_the_progress_has_each_state_and_the_best_so_far(tmp_path: Path) -> None:
    def trial(number: int, score: float | None, violation: float = -1.0, round: int = 0) -> TrialRecord:
        outcome = samples.failed() if score is None else samples.success()
        verdict = None if score is None else samples.verdict(score, violation)
        return replace(samples.pending(number, round), outcome=outcome, verdict=verdict)

    trials = [trial(0, 1.0), trial(1, 0.8), trial(2, None), trial(3, 1.3, 0.5), trial(4, 1.2), trial(4, 9.0, round=1)]
    figure = study_figures.draw_progress(trials, tmp_path / "progress.png", "demo (measured)")
    assert written(tmp_path / "progress.png")
    lines = {
        line.get_label(): list(zip(*map(np.asarray, line.get_data()), strict=True))
        for line in figure.axes[0].get_lines()
    }
    assert lines["within the SLOs"] == [(0, 1.0), (1, 0.8), (4, 1.2)]
    assert lines["an SLO is missed"] == [(3, 1.3)]
    assert lines["failed"] == [(2, 0.8)]
    assert lines["best so far"] == [(0, 1.0), (1, 1.0), (4, 1.2), (4, 1.2)]


def test_importance_and_flags_have_the_largest_on_top(tmp_path: Path) -> None:
    shares = {"a": [0.1, 0.05, 0.2], "b": [0.7, 0.5, 0.9]}
    figure = study_figures.draw_importance(shares, tmp_path / "importance.png", "demo")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b"]
    effect = {"name": "x", "value": 8, "default": None, "metrics": {}, "needed": 0.0, "trials": 3}
    effects = [{**effect, "ratio": 1.2, "low": 1.1, "high": 1.3}, {**effect, "ratio": 1.0, "low": None, "high": None}]
    figure = study_figures.draw_flags(effects, tmp_path / "flags.png", "demo")
    assert [list(np.asarray(line.get_xdata())) for line in figure.axes[0].get_lines()][:2] == [[1.0, 1.0], [1.0]]
    assert written(tmp_path / "importance.png")
    assert written(tmp_path / "flags.png")


def test_the_pictures_of_a_study_follow_from_its_facts_and_conclusion() -> None:
    facts = {"importance": {"a": [0.1, 0.05, 0.2]}}
    effect = {"name": "x", "value": 8, "ratio": 1.2, "low": 1.1, "high": 1.3}
    concluded = replace(study(), premise={}, facts=facts, conclusion={"flag_effects": [effect]})
    ended = replace(samples.pending(0), outcome=samples.success(), verdict=samples.verdict(1.0))
    with plot_files.study_plots(concluded, [ended]) as folder:
        names = sorted(file.name for file in (folder / "pictures").iterdir())
    assert names == ["flags.png", "importance.png", "progress.png"]
