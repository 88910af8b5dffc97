"""The worked examples of docs/extending.md: each is loaded from docs/examples and does what the page says."""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from records.trials import FailureKind, TrialKind
from tests.some import some
from tuner.engines.base import Engine
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.testing.engine import EngineContract
from tuner.trial.pipeline import run_trial
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import ClosedLoop

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
USERS = 8


def load_example(name: str) -> ModuleType:
    """Import a file of docs/examples as a module."""
    spec = some(importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    some(spec.loader).exec_module(module)
    return module


def trial_spec(artifacts: Path, *argv: str) -> TrialSpec:
    """Return a trial of the toy engine: eight users, 16 requests of 10 tokens."""
    launch = LaunchSpec(ModelRef("toy-model", "toy-model", "toy"), argv, ("--ms-per-token", "8"), {"TOY": "yes"})
    workload = ClosedLoop(max_concurrency=USERS, num_prompts=2 * USERS, input_len=8, output_len=10)
    limits = Limits(startup_s=60)
    return TrialSpec("toy", 1, 0, 1, TrialKind.SEARCH, {}, launch, workload, 1, artifacts, limits)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = load_example("engine").ToyEngine(tmp_path / "home")
    yield made
    made.close()


class TestToyEngine(EngineContract):
    @pytest.fixture
    def good_spec(self, tmp_path: Path) -> TrialSpec:
        return trial_spec(tmp_path / "artifacts", "--batch", "4")

    @pytest.fixture
    def failing_spec(self, tmp_path: Path) -> TrialSpec:
        return trial_spec(tmp_path / "artifacts", "--batch", "1000")


def test_the_pipeline_measures_the_toy_engine(engine: Engine, tmp_path: Path) -> None:
    outcomes = {
        batch: run_trial(
            engine,
            trial_spec(tmp_path / str(batch), "--batch", str(batch)),
            threading.Event(),
            worker="w0",
            device="CPU",
        )
        for batch in (1, USERS, 1000)
    }
    slow, fast, failed = outcomes.values()
    assert (slow.failure, fast.failure) == (None, None)
    assert (fast.metric("output_throughput") or 0) > (slow.metric("output_throughput") or 0)
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.OUT_OF_MEMORY_STARTUP
    assert failed.failure.message == "out of memory: a batch of 1000 does not fit"


def test_the_toy_engine_refuses_traffic(engine: Engine, tmp_path: Path) -> None:
    traffic = load_preset("mixed").workload
    refused = some(engine.check(replace(trial_spec(tmp_path), workload=traffic)))
    assert refused.kind is FailureKind.INVALID_CONFIGURATION
