"""The Grafana dashboard against `/metrics`: every query parses, and asks for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.service.http.conftest import Api

DASHBOARD = Path(__file__).parents[4] / "deploy" / "grafana" / "tuner.json"
FROM_PROMETHEUS = {"instance"}
"""Labels that Prometheus adds to what it scrapes."""

Used = dict[str, set[str]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def targets() -> Iterator[dict[str, str]]:
    for panel in panels():
        yield from panel["targets"]


def used_by(query: str, legend: str = "") -> tuple[set[str], set[str]]:
    """Return the metrics and the labels that a query and its legend use.

    Raises:
        ValueError: if it is not PromQL.
    """
    metrics: set[str] = set()
    labels = set(re.findall(r"{{(\w+)}}", legend))

    def visit(node: Any) -> None:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            metrics.add(str(selector.name))
            labels.update(matcher.name for matcher in selector.matchers.matchers)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(query.replace("$__rate_interval", "5m")), pre_visit=visit)
    return metrics, labels


def exported(api: Api) -> Used:
    """Return the labels of each sample's name at `/metrics`."""
    api.call("GET", "/v1/studies")
    found: Used = defaultdict(set)
    for family in text_string_to_metric_families(api.call("GET", "/metrics").text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


def test_the_reader_of_queries_finds_metrics_and_labels() -> None:
    query = 'sum by (le) (rate(a{b="c"}[$__rate_interval])) / on () max(d{e!="f"})'
    assert used_by(query, "{{le}} {{g}}") == ({"a", "d"}, {"b", "e", "le", "g"})
    with pytest.raises(ValueError, match="unclosed"):
        used_by("sum by (a")


def test_every_query_asks_for_what_the_service_has(api: Api) -> None:
    known = exported(api)
    wrong = []
    for target in targets():
        metrics, labels = used_by(target["expr"], target["legendFormat"])
        assert metrics
        allowed = set().union(*(known.get(name, set()) for name in metrics)) | FROM_PROMETHEUS
        wrong += [name for name in metrics if name not in known]
        wrong += [f"{label} of {sorted(metrics)}" for label in labels - allowed]
    assert wrong == []


def test_the_dashboard_shows_every_metric(api: Api) -> None:
    shown = set().union(*(used_by(target["expr"])[0] for target in targets()))
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported(api)}
    assert {name for name in families if not any(each.startswith(name) for each in shown)} == set()


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert own.isdisjoint(cells), panel["title"]
        assert max(column for column, _ in own) < 24
        assert panel["description"].endswith(".")
        cells |= own
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids)) > 12
