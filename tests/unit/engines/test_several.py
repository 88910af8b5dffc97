"""Several engines of one study pass the contract of every engine, whichever of them a trial names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces import hardware_named
from tests.fakes.stub_engine import StubEngine
from tests.unit.engines.simulator.test_engine import NO_CACHE, spec
from tuner.engines.factory import SeveralEngines
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.specs import TrialSpec
from tuner.testing.engine import EngineContract


def named(trial: TrialSpec, engine: str | None) -> TrialSpec:
    return replace(trial, launch=replace(trial.launch, engine=engine))


def simulated() -> SimulatedEngine:
    return SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset())


@pytest.mark.parametrize("second", [False, True])
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, second: bool) -> SeveralEngines:
        other = StubEngine(lambda *_: {})
        return SeveralEngines({"a": other, "b": simulated()} if second else {"a": simulated(), "b": other})

    @pytest.fixture
    def good_spec(self, second: bool, tmp_path: Path) -> TrialSpec:
        return named(spec(tmp_path, "--max-num-seqs", "32"), "b" if second else "a")

    @pytest.fixture
    def failing_spec(self, second: bool, tmp_path: Path) -> TrialSpec:
        return named(spec(tmp_path, *NO_CACHE), "b" if second else "a")


def test_a_trial_runs_on_the_engine_it_names_and_without_a_name_on_the_first(tmp_path: Path) -> None:
    first, second = (StubEngine(lambda *_: {}) for _ in range(2))
    engines = SeveralEngines({"a": first, "b": second})
    (tmp_path / "artifacts").mkdir()
    trial = spec(tmp_path)
    for name in ("b", None, "a", "b"):
        engines.launch(named(trial, name), trial.limits)
    assert [each.launch.engine for each in first.launched] == [None, "a"]
    assert [each.launch.engine for each in second.launched] == ["b", "b"]
    engines.close()
    assert (first.closed, second.closed) == (True, True)


def test_the_installation_names_all_engines() -> None:
    info = SeveralEngines({"a": simulated(), "b": StubEngine(lambda *_: {})}).info()
    assert info.name == simulated().info().name
    assert [each.version for each in info.others] == ["0.0+stub"]
