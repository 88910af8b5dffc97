"""Rounds of servers in alternation, with an engine that measures nothing."""

import threading
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase
from search_spaces import hardware_named
from tests.fakes.stub_engine import Landscape, StubEngine
from tests.unit.use_cases.recheck.test_expected import EXPECTED
from tuner.errors import InfrastructureError
from tuner.specs import TrialSpec
from tuner.use_cases.devices import Devices
from tuner.use_cases.recheck.rounds import Alternation, Arm
from tuner.use_cases.recheck.today import Installation


def silent(_: str) -> None:
    pass


def alternation(folder: Path, landscape: Landscape, stop: threading.Event) -> tuple[Alternation, StubEngine]:
    """Return the rounds of the reference and the winner on a stub."""
    engine = StubEngine(landscape)
    devices = Devices(("cpu",), hardware_named("cpu"), gpus=False)
    installation = Installation(engine, engine.info(), devices)
    arms = [Arm(each.name, each, installation) for each in EXPECTED.setups]
    return Alternation(EXPECTED, arms, folder, stop, silent), engine


def fine(spec: TrialSpec, index: int) -> dict[str, float | None]:
    return {"output_throughput": 100.0 + len(spec.launch.argv), "success_rate": 1.0}


def test_the_order_turns_and_a_round_has_one_seed(tmp_path: Path) -> None:
    rounds, engine = alternation(tmp_path, fine, threading.Event())
    looked: list[int] = []

    def is_decided() -> bool:
        looked.append(len(rounds.records))
        return len(looked) == 2

    rounds.run(3, is_decided)
    assert looked == [4, 8]  # after two and four rounds of two servers
    assert [(each.round, each.number) for each in rounds.records] == [
        (1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1), (4, 1), (4, 0),
    ]  # fmt: skip
    seeds = [spec.workload.seed for spec in engine.launched]
    assert seeds == [902_000, 902_000, 903_000, 903_000, 904_000, 904_000, 905_000, 905_000]
    assert [spec.launch.argv for spec in engine.launched[:2]] == [(), ("--max-num-seqs", "64")]
    assert all(server.stopped for server in engine.servers)


def test_it_ends_after_twice_as_many_rounds(tmp_path: Path) -> None:
    rounds, _ = alternation(tmp_path, fine, threading.Event())
    rounds.run(2, lambda: False)
    assert len(rounds.records) == 2 * 4


def failing(kind: FailureKind, attempts: int) -> Landscape:
    """Return a landscape in which the first attempts to launch the winner fail."""

    def landscape(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.launch.argv and spec.attempt <= attempts:
            return Failure(kind, Phase.LAUNCH, "as set")
        return fine(spec, index)

    return landscape


def test_a_failed_configuration_ends_the_rounds(tmp_path: Path) -> None:
    rounds, _ = alternation(tmp_path, failing(FailureKind.ENGINE_CRASH, 99), threading.Event())
    rounds.run(3, lambda: False)
    assert [each.outcome.failure.kind for each in rounds.records if each.outcome and each.outcome.failure] == [
        FailureKind.ENGINE_CRASH
    ]
    assert len(rounds.records) == 2


def test_infrastructure_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    rounds, engine = alternation(tmp_path, failing(FailureKind.PORT_TAKEN, 2), threading.Event())
    rounds.run(2, lambda: True)
    assert all(each.outcome is not None and each.outcome.succeeded for each in rounds.records)
    assert [spec.uid for spec in engine.launched[:2]] == ["0-r1", "1-r1-a3"]
    broken, _ = alternation(tmp_path, failing(FailureKind.PORT_TAKEN, 3), threading.Event())
    with pytest.raises(InfrastructureError, match="trial 7 could not be measured, 3 attempts: port_taken: as set"):
        broken.run(2, lambda: True)


def test_a_stop_ends_it_at_once(tmp_path: Path) -> None:
    stop = threading.Event()

    def landscape(spec: TrialSpec, index: int) -> dict[str, float | None]:
        stop.set()
        return fine(spec, index)

    rounds, _ = alternation(tmp_path, landscape, stop)
    with pytest.raises(KeyboardInterrupt):
        rounds.run(2, lambda: False)
    assert rounds.records == []
