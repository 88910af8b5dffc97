"""The Plotly figures, the pictures in MLflow, and the page of a report, on trials written by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dashboards.plots import results, search, traffic
from dashboards.plots.style import figure_json, new_figure
from dashboards.plots.traffic import roofline_figure
from dashboards.report.page import Command, Figure, Page, Section, Table, Tile, render
from records.tables import grid
from records.trials import Config, FailureKind, TrialKind, TrialOutcome, TrialRecord
from tests.some import some
from tests.store_samples import failed, pending, repeat, success, verdict


def trial(number: int, score: float | None, config: Config, outcome: TrialOutcome | None = None) -> TrialRecord:
    judged = None if score is None else verdict(score)
    return replace(pending(number), config=config, outcome=outcome or success(), verdict=judged)


TRIALS = (
    replace(trial(0, 1.0, {}), kind=TrialKind.BASELINE),
    trial(1, 0.8, {"a": 4, "b": "x"}),
    trial(2, None, {"a": 8, "b": "x"}, failed(FailureKind.OUT_OF_MEMORY_STARTUP)),
    replace(trial(3, 1.5, {"a": 8, "b": "y"}), verdict=verdict(1.5, constraint=2.0)),
    trial(4, 1.25, {"a": 16, "b": None}),
)


def test_the_progress_has_each_trial_in_its_group_and_the_best_feasible_score_so_far() -> None:
    figure = some(search.progress(TRIALS))
    groups = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert groups == {
        "meets the SLOs": ([0, 1, 4], [1.0, 0.8, 1.25]),
        "missed an SLO": ([3], [1.5]),
        "failed": ([2], [0.8]),
        "best so far": ([0, 1, 3, 4], [1.0, 1.0, 1.0, 1.25]),
    }


def test_the_progress_of_a_few_trials_has_a_tick_for_each() -> None:
    few = search.progress(TRIALS)
    many = search.progress([*TRIALS, *(trial(number, 1.0, {}) for number in range(5, 30))])
    assert few is not None
    assert many is not None
    assert (few.layout.xaxis.dtick, few.layout.xaxis.range) == (1, (-0.5, 4.5))
    assert many.layout.xaxis.dtick is None


def test_the_map_of_failures_counts_the_trials_of_each_value() -> None:
    figure = some(search.failures(TRIALS))
    [heatmap] = figure.data
    assert list(heatmap.x) == ["out of memory startup", "missed an SLO"]
    rows = dict(zip(heatmap.y, heatmap.text, strict=True))
    assert {name: list(cells) for name, cells in rows.items()} == {
        "a=8": ["1 of 2", "1 of 2"],
        "b=x": ["1 of 2", ""],
        "b=y": ["", "1 of 1"],
    }


def test_one_failed_trial_of_a_value_says_less_than_several() -> None:
    crash = failed(FailureKind.ENGINE_CRASH)
    tried = [trial(n, None if n < 3 else 1.0, {"often": 1}, crash if n < 3 else None) for n in range(4)]
    figure = some(search.failures([*tried, trial(4, None, {"once": 1}, crash)]))
    assert list(figure.data[0].y) == ["once=1", "often=1"]  # 1 / 3 below 3 / 6; the last is on top


def test_a_search_without_failures_has_no_map() -> None:
    assert search.failures(TRIALS[:2]) is None


def test_slices_put_what_is_left_to_the_engine_at_its_default() -> None:
    figure = some(search.slices(TRIALS, ["b"], {"a": 2}))
    by_title = dict(zip((each.text for each in figure.layout.annotations), figure.data, strict=True))
    assert list(by_title["b"].x) == ["unset", "x", "y", "unset"]
    assert list(by_title["a"].x) == ["2", "4", "8", "16"]


def test_parallel_coordinates_order_numbers_by_size_and_the_unset_value_first() -> None:
    figure = some(search.parallel(TRIALS, ["a"]))
    lanes = {lane.label: (list(lane.ticktext or ()), list(lane.values)) for lane in figure.data[0].dimensions}
    assert lanes["a"] == (["unset", "4", "8", "16"], [0, 1, 2, 3])
    assert lanes["score"][1] == [1.0, 0.8, 1.5, 1.25]


def test_importance_has_its_interval_on_both_sides() -> None:
    figure = some(search.importance({"a": (0.5, 0.25, 0.75), "b": (0.125, 0.0, 0.5)}))
    [bars] = figure.data
    assert (list(bars.y), list(bars.x)) == (["b", "a"], [0.125, 0.5])
    assert (list(bars.error_x.array), list(bars.error_x.arrayminus)) == ([0.375, 0.25], [0.125, 0.25])


def test_the_noise_shows_every_benchmark_by_its_launch() -> None:
    rounds = [replace(TRIALS[0], round=round_, outcome=success(repeat(0, 10.0 * round_))) for round_ in (1, 2)]
    figure = some(results.noise([*TRIALS, *rounds], "output_throughput", [0, 1]))
    assert {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data} == {
        "#0": (["search", "search", "round 1", "round 2"], [3332.25, 3332.25, 10.0, 20.0]),
        "#1": (["search", "search"], [3332.25, 3332.25]),
    }


def test_a_front_has_intervals_where_rounds_measured_them() -> None:
    def cell(ratio: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
        return {"ratio": ratio, "low": low, "high": high}

    points = [
        {"number": 1, "on_front": True, "rounds": 3, "metrics": {"x": cell(2.0, 1.5, 2.75), "y": cell(0.5)}},
        {"number": 2, "on_front": False, "rounds": 0, "metrics": {"x": cell(0.5), "y": cell(1.5)}},
    ]
    figure = results.front({"metrics": ["x", "y"], "reference": 0, "points": points})
    beaten, kept = figure.data
    assert (list(beaten.x), list(beaten.y)) == ([1.5], [0.5])
    assert (list(kept.x), list(kept.y), list(kept.text)) == ([0.5], [2.0], ["#1"])
    assert (kept.error_y.array[0], kept.error_y.arrayminus[0], kept.error_x.array[0]) == (0.75, 0.5, 0.0)


def test_percentiles_of_metrics_that_were_measured() -> None:
    outcome = success(repeat(0))
    figure = some(results.percentiles({"winner": outcome}))
    [line] = figure.data  # only p99 TPOT is known
    assert (list(line.x), list(line.y)) == (["p99"], [40.0])
    assert results.percentiles({}) is None


def test_a_distribution_ends_at_its_largest_value() -> None:
    figure = some(traffic.distributions({"winner": {"ttft_ms": np.array([10.0, 20.0, 40.0])}}))
    [line] = figure.data
    assert (line.x[0], line.x[-1], line.y[-1]) == (10.0, 40.0, 1.0)
    middle = int(np.argmin(np.abs(np.array(line.y) - 0.5)))
    assert line.x[middle] == pytest.approx(20.0, rel=0.02)


def test_the_heatmaps_of_lengths_count_completed_and_failed_requests() -> None:
    rows = [["1–64", "65–128", 128.0, 3, 1], ["65–128", "1–64", 64.0, 2, 0]]
    figure = some(traffic.lengths(pd.DataFrame(rows, columns=["prompt", "answer", "answer_to", "completed", "failed"])))
    completed, lost = figure.data
    assert (list(completed.x), list(completed.y)) == (["1–64", "65–128"], ["1–64", "65–128"])
    assert [list(line) for line in completed.z] == [[None, 2], [3, None]]
    assert [list(line) for line in lost.z] == [[None, 0], [1, None]]


def test_the_roofline_tells_measured_points_from_predicted_ones() -> None:
    predicted, measured = {"defaults": (100.0, 2e14)}, {"defaults #0": (50.0, 1e14), "winner #3": (0.0, 0.0)}
    figure = some(roofline_figure(1e15, 4e12, predicted, measured))
    roof, *points = figure.data
    assert list(roof.x)[1] == 250.0  # 1e15 / 4e12
    # the roof is 400 TFLOP/s at 100 FLOP a byte, and 200 at 50
    names = ["defaults, predicted: 50% of the roof", "defaults #0, measured: 50% of the roof"]
    assert [point.name for point in points] == names
    assert [point.marker.symbol for point in points] == ["circle-open", "diamond"]
    assert points[0].marker.color == points[1].marker.color
    assert roofline_figure(1e15, 4e12, {}, {}) is None


def test_labels_of_the_front_do_not_cover_each_other() -> None:
    places = [(1.0, 1.0), (1.0, 1.001), (2.0, 1.5)]
    points = [
        {
            "number": number,
            "rounds": 0,
            "on_front": True,
            "metrics": {n: {"ratio": v, "low": None, "high": None} for n, v in zip("ab", pair, strict=True)},
        }
        for number, pair in enumerate(places)
    ]
    figure = results.front({"metrics": ["a", "b"], "reference": 0, "points": points})
    kept = next(trace for trace in figure.data if trace.name == "on the front")
    assert list(kept.text) == ["#0", "", "#2"]
    assert list(kept.customdata) == ["#0", "#1", "#2"]


def test_the_trade_off_has_no_row_without_a_share() -> None:
    frame = pd.DataFrame({"class": ["chat", "worst", "all"], "#0 defaults": [None, None, 0.5], "best": ["", "", "#0"]})
    figure = some(results.tradeoff(frame.astype({"#0 defaults": "float64"})))
    assert list(figure.data[0].y) == ["all requests"]
    assert results.tradeoff(frame.assign(**{"#0 defaults": float("nan")})) is None


EVIL = "</script><script>alert(1)</script> & \"x\" 'y'"


def page(*parts: Figure | Table | Command | str, simulated: bool = False) -> Page:
    return Page(EVIL, "Keep the defaults.", simulated, [Tile("score", "1.2", EVIL)], [Section("Result", parts, EVIL)])


def test_no_text_becomes_markup() -> None:
    table = grid("metric", "value", left=("metric",))
    table.add(EVIL, "1")
    figure = new_figure()
    figure.add_scatter(x=[1], y=[1], name=EVIL)
    text = render(page(Table(EVIL, table), Command(EVIL, EVIL), Figure(EVIL, figure, EVIL), EVIL))
    assert "alert(1)</script>" not in text
    assert EVIL not in text


def test_a_figure_is_the_same_after_the_escape() -> None:
    figure = new_figure()
    figure.add_scatter(x=[1, 2], y=[3.5, None], name=EVIL)
    text = figure_json(figure)
    assert not re.search(r"[<>&]", text)
    [trace] = json.loads(text)["data"]
    assert (trace["name"], trace["x"], trace["y"]) == (EVIL, [1, 2], [3.5, None])


def test_plotly_is_embedded_once_and_only_with_a_figure() -> None:
    figure = new_figure()
    figure.add_scatter(x=[1], y=[1])
    with_two = render(page(Figure("one", figure), Figure("two", figure)))
    assert with_two.count('id="chart-') == 2
    assert 4_000_000 < len(with_two.encode()) < 6_000_000
    assert len(render(page("no figure"))) < 20_000


def test_a_simulated_page_says_so_on_top() -> None:
    assert "Simulated, not measured" in render(page(simulated=True))
    assert "Simulated, not measured" not in render(page())


def test_tables_mark_faint_rows_and_numbers() -> None:
    table = grid("flag", "effect", left=("flag",))
    table.add("a=1", "×1.20")
    table.add("b=2", "×1.00", faint=True)
    text = render(page(Table("flags", table)))
    assert len(re.findall(r'<tr class="faint">', text)) == 1
    assert '<td class="right">×1.20</td>' in text
    assert "<td>a=1</td>" in text


def test_headings_break_after_underscores_and_are_escaped() -> None:
    table = grid("p99_ttft_ms", "<b>", left=())
    text = render(page(Table("t", table)))
    assert "p99_<wbr>ttft_<wbr>ms</th>" in text
    assert "&lt;b&gt;</th>" in text


def test_each_part_of_a_step_has_a_colour_of_its_own() -> None:
    parts = ("weights", "attention", "kernels", "sampling", "launches", "host", "communication", "transfers")
    figure = some(traffic.time_shares({"one": dict.fromkeys(parts, 1 / 8)}))
    assert len({bar.marker.color for bar in figure.data}) == 8
