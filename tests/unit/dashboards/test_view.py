"""The view in which MLflow's UI opens a study."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from dashboards.mlflow.ui import VIEW_TAG, columns_of, experiment_tags, runs_query, view_of
from records.trials import Provenance, StudyRecord
from tests import store_samples as samples

CLOSED: dict[str, Any] = {
    "objectives": ["p99_e2el_ms:40", "output_throughput:20"],
    "slos": ["p99_ttft_ms<2000", "success_rate>=1"],
}
CLASSES: dict[str, Any] = {"classes": {"chat": {"weight": 1.0}}, "slo": {"chat": {"p95_ttft_ms": 1000.0}}}


def study(provenance: Provenance = Provenance.MEASURED, price: bool = False, **premise: Any) -> StudyRecord:
    facts = {"price": {"per_gpu_hour": 0.5}} if price else {}
    return replace(samples.study("a [study]", provenance), premise=premise, facts=facts)


def test_a_measured_study_has_ten_columns_its_objectives_first() -> None:
    assert columns_of(study(**CLOSED)) == [
        "metrics.`score`",
        "tags.`state`",
        "metrics.`p99_e2el_ms`",
        "metrics.`output_throughput`",
        "metrics.`p99_ttft_ms`",
        "metrics.`p99_tpot_ms`",
        "metrics.`p99_itl_ms`",
        "metrics.`request_throughput`",
        "metrics.`flags_changed`",
        "tags.`failure`",
    ]


def test_a_simulated_study_with_a_price_has_its_cost_and_the_simulated_duration() -> None:
    columns = columns_of(study(Provenance.SIMULATED, price=True, **CLOSED))
    assert len(columns) == 10
    assert columns[-4:] == [
        "metrics.`cost_per_million_output_tokens`",
        "metrics.`flags_changed`",
        "tags.`failure`",
        "metrics.`simulated/total_s`",
    ]


def test_traffic_with_slos_has_its_goodput() -> None:
    assert "metrics.`goodput`" in columns_of(study(workload=CLASSES, objectives=["chat.goodput:1"]))
    assert "metrics.`goodput`" not in columns_of(study(**CLOSED))


def test_a_premise_of_an_older_version_has_the_common_columns() -> None:
    assert columns_of(samples.study())[:3] == ["metrics.`score`", "tags.`state`", "metrics.`output_throughput`"]


def test_the_view_sorts_by_score_and_leaves_out_the_rounds() -> None:
    state = json.loads(view_of(study(**CLOSED)))
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`score`", False)
    assert state["searchFilter"] == "tags.kind != 'confirm'"
    columns = state["selectedColumns"]
    assert state["columnOrder"] == ["attributes.`Run Name`", *columns, "runDateAndNestInfo", "duration"]
    assert set(state["columnWidths"]) == set(state["columnOrder"])


def test_the_tags_fit_into_mlflows_limit_and_link_to_the_parent_run() -> None:
    long = [f"{'c' * 200}.p95_ttft_ms:{number}" for number in range(10)]
    tags = experiment_tags(study(objectives=long), "7", "abc")
    assert max(map(len, tags.values())) <= 5000
    assert "[a \\[study\\]](#/experiments/7/runs/abc?workflowType=machine_learning)" in tags["mlflow.note.content"]


def test_a_link_names_no_order_beside_the_view_which_it_would_replace() -> None:
    mode = {"workflowType": ["machine_learning"]}
    assert parse_qs(runs_query({VIEW_TAG: "{}"})) == {"viewStateShareKey": ["tuner"], **mode}
    order = parse_qs(runs_query({}))
    assert order.items() >= {**mode, "orderByKey": ["metrics.`score`"], "orderByAsc": ["false"]}.items()
