"""Suites: the names and metrics of their workloads, and the metrics over all of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from records.trials import Repeat
from tests.contracts.executor_contract import spec as make_spec
from tests.fakes.stub_engine import StubEngine, StubServer
from tuner.cancellation import CancelToken
from tuner.specs import Limits, TrialSpec
from tuner.trial.pipeline import run_trial
from tuner.workloads.spec import SingleWorkload, Suite, merge_repeats, read_workload
from tuner.workloads.traffic import Traffic


def traffic(name: str, requests: int, **changes: Any) -> dict[str, Any]:
    arrivals = {"process": "poisson", "rate": 4}
    fields = {"arrivals": arrivals, "requests": requests, "classes": {name: {"input": 30, "output": 10}}}
    return {**fields, "slo": {name: {"p95_ttft_ms": 100}}, **changes}


def suite(**changes: Any) -> Suite:
    day = traffic("chat", 30, classes={"chat": {"input": 30, "output": 10}, "docs": {"input": 70, "output": 5}})
    return Suite.model_validate({"loads": {"day": day, "night": traffic("batch", 10, max_in_flight=3)}, **changes})


def test_class_names_have_the_workloads_name_as_a_prefix() -> None:
    made = suite(temperature=0.0, seed=7)
    assert made.sent_classes == ["day.chat", "day.docs", "night.batch"]
    assert [*made.slos] == ["day.chat", "night.batch"]
    assert {(part.seed, part.temperature) for part in made.parts().values()} == {(7, 0.0)}


def test_lengths_and_concurrency_are_those_of_the_largest_workload() -> None:
    made = suite()
    assert (made.longest_request, made.output_len, made.input_len) == (75, 10, 65)
    assert made.longest_workload.sent_classes.keys() == {"day.chat", "day.docs"}
    assert made.max_concurrency is None
    limits = {"day": 35, "night": 15}
    bounded = {name: part.model_copy(update={"max_in_flight": limits[name]}) for name, part in made.loads.items()}
    assert made.model_copy(update={"loads": bounded}).max_concurrency == 35


def test_every_run_has_its_own_index() -> None:
    assert [suite().run_index(repeat, part) for repeat in range(3) for part in range(2)] == [0, 1, 2, 3, 4, 5]


def test_a_suite_survives_a_dump() -> None:
    made = suite(seed=9)
    assert read_workload(made.model_dump(mode="json")) == made


@pytest.mark.parametrize("name", ["a.b", "worst", "client", "", "1"])
def test_a_workload_name_must_be_a_valid_metric_prefix(name: str) -> None:
    with pytest.raises(ValidationError, match="a workload cannot be called"):
        Suite.model_validate({"loads": {"day": traffic("a", 1), name: traffic("a", 1)}})


def repeat(offered: int, completed: int, duration_s: float, **metrics: float | None) -> Repeat:
    named = {key.replace("__", "."): value for key, value in metrics.items()}
    return Repeat(4, 11, offered, completed, offered - completed, duration_s, named)


def test_shares_count_all_requests_and_the_worst_class_is_over_all_workloads() -> None:
    day = repeat(
        30, 30, 5.0, goodput=3.0, goodput_share=0.5, p95_ttft_ms=80.0, worst__p95_ttft_ms=90.0, day__chat__goodput=2.0
    )
    night = repeat(10, 5, 2.0, goodput=1.0, goodput_share=0.1, p95_ttft_ms=None, worst__p95_ttft_ms=40.0)
    merged = merge_repeats(2, [("day", day), ("night", night)])
    assert (merged.index, merged.seed, merged.offered, merged.completed, merged.failed, merged.duration_s) == (
        *(2, 11, 40, 35, 5),
        7.0,
    )
    # (0.5 · 30 + 0.1 · 10) / 40 and 35 / 40
    assert merged.metrics == {
        "day.goodput": 3.0,
        "day.goodput_share": 0.5,
        "day.p95_ttft_ms": 80.0,
        "day.worst.p95_ttft_ms": 90.0,
        "day.chat.goodput": 2.0,
        "night.goodput": 1.0,
        "night.goodput_share": 0.1,
        "night.p95_ttft_ms": None,
        "night.worst.p95_ttft_ms": 40.0,
        "success_rate": 0.875,
        "goodput_share": 0.4,
        "worst.p95_ttft_ms": 90.0,
    }


def test_one_workload_without_slos_leaves_no_share_over_all() -> None:
    merged = merge_repeats(
        0, [("a", repeat(1, 1, 1.0, goodput_share=1.0)), ("b", repeat(1, 1, 1.0, goodput_share=None))]
    )
    assert merged.metrics["goodput_share"] is None


class RecordingServer(StubServer):
    sent: list[tuple[str, int | None, int]]

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        assert isinstance(workload, Traffic)
        self.sent.append(("warm", workload.requests, -1))

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        assert isinstance(workload, Traffic)
        (name,) = workload.classes
        self.sent.append((name, workload.requests, index))
        return Repeat(index, workload.repeat_seed(index), 10, 10, 0, 1.0, {"goodput": float(index)})


class RecordingEngine(StubEngine):
    sent: list[tuple[str, int | None, int]]

    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        made = RecordingServer(spec, lambda *_: {}, None)
        self.sent = made.sent = []
        return made


def test_a_trial_sends_every_workload_to_the_same_server(tmp_path: Path) -> None:
    engine = RecordingEngine(lambda *_: {})
    loads = {"day": traffic("a", 30), "night": traffic("b", 10)}
    spec = replace(make_spec(tmp_path, 2), workload=Suite.model_validate({"loads": loads, "seed": 100}))
    outcome = run_trial(engine, spec, threading.Event(), worker="w0", device="cpu")
    assert outcome.failure is None
    assert engine.sent == [
        ("warm", 30, -1),
        ("warm", 10, -1),
        ("day.a", 30, 0),
        ("night.b", 10, 1),
        ("day.a", 30, 2),
        ("night.b", 10, 3),
    ]
    assert [(each.index, each.seed, each.offered) for each in outcome.repeats] == [(0, 100, 20), (1, 102, 20)]
    # medians over the two repeats
    assert (outcome.metric("day.goodput"), outcome.metric("night.goodput")) == (1.0, 2.0)
