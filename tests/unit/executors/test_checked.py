"""A configuration whose answers are lost is never started; the others carry their quality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from records.trials import Config, Failure, FailureKind, Phase, TrialKind
from tests.fakes.stub_engine import StubEngine
from tuner.executors.base import CheckedExecutor, Finished, InlineExecutor
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

LOST = Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, "misses quality>=0.99: quality 0.885")


def check(config: Config) -> float | Failure:
    return LOST if config.get("weights") == "broken" else 0.995


def spec(folder: Path) -> TrialSpec:
    load = ClosedLoop(max_concurrency=1, num_prompts=2, input_len=4, output_len=4)
    launch = LaunchSpec(ModelRef("m", "m", "m"), ())
    return TrialSpec("s", 1, 0, 1, TrialKind.SEARCH, {}, launch, load, 2, folder)


def test_lost_answers_fail_the_trial_without_a_server(tmp_path: Path) -> None:
    engine = StubEngine(lambda spec, index: {"output_throughput": 10.0})
    executor = CheckedExecutor(InlineExecutor(lambda _: engine), check)
    executor.submit(replace(spec(tmp_path), config={"weights": "broken"}), 0)
    assert executor.idle() == []
    (finished,) = executor.wait_any(5.0)
    assert (finished.slot, finished.outcome.failure, finished.outcome.repeats) == (0, LOST, ())
    assert executor.idle() == [0]
    executor.close()


def test_quality_is_a_metric_of_every_benchmark(tmp_path: Path) -> None:
    engine = StubEngine(lambda spec, index: {"output_throughput": 10.0})
    executor = CheckedExecutor(InlineExecutor(lambda _: engine), check)
    executor.submit(spec(tmp_path), 0)
    finished: list[Finished] = []
    while not finished:
        finished = executor.wait_any(1.0)
    outcome = finished[0].outcome
    assert [repeat.metrics["quality"] for repeat in outcome.repeats] == [0.995, 0.995]
    assert outcome.metric("quality") == 0.995
    executor.close()
