"""Blocks of runs against two servers, without servers: their latencies are drawn."""

import random
from pathlib import Path

import pytest

from tests.unit.use_cases.test_mirrored import answered
from tuner.errors import InfrastructureError, SettingError
from tuner.scoring.change import Change
from tuner.use_cases import canary
from tuner.use_cases.canary import CanarySettings, compare_servers
from tuner.use_cases.load import LoadSettings
from tuner.workloads.request_class import RequestClass
from tuner.workloads.results import RequestRecord
from tuner.workloads.traffic import Closed, Traffic

TRAFFIC = Traffic(
    arrivals=Closed(users=2),
    requests=200,
    classes={"c": RequestClass.model_validate({"input": 8, "output": 4})},
    warmup_requests=4,
)


class Run:
    """What a run measured; see `LoadResult`."""

    def __init__(self, records: list[RequestRecord], invalid: str | None) -> None:
        self.records, self.invalid = records, invalid


class Virtual:
    """A server whose answers take 1 s, and on B `slower` times as long, with noise by run; see `LoadSender`."""

    slower = 1.1
    noise = 0.02
    late = 0
    """The runs that this machine sends late, counted down."""

    sent: list[tuple[str, int, int, int]]
    """Address, seed, requests and warm-up of each run."""

    def __init__(self, settings: LoadSettings) -> None:
        self._url, self.traffic, self.tokenizer = settings.url, TRAFFIC, "t"

    def __enter__(self) -> "Virtual":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, seed: int, output: Path, traffic: Traffic) -> Run:
        """Return a run of the drawn latencies."""
        type(self).sent.append((self._url, seed, traffic.requests or 0, traffic.warmup_requests))
        if type(self).late:
            type(self).late -= 1
            return Run([], "late")
        draw = random.Random(f"{seed} {self._url}")
        seconds = (self.slower if self._url.endswith("b") else 1.0) * (1 + draw.gauss(0, self.noise))
        return Run([answered(0, seconds), answered(1, seconds)], None)


Virtual.sent = []


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> type[Virtual]:
    monkeypatch.setattr(canary, "LoadSender", Virtual)
    monkeypatch.setattr(Virtual, "sent", [])
    return Virtual


SETTINGS = CanarySettings(urls=("http://a", "http://b"), workloads=("w.yaml",))


def silent(_: str) -> None:
    pass


def test_pairs_have_the_same_requests_in_the_order_abba_and_one_warm_up(virtual: type[Virtual]) -> None:
    result = compare_servers(SETTINGS, silent)
    assert result.verdict is Change.WORSE
    assert [url[-1] for url, *_ in virtual.sent[:4]] == ["a", "b", "b", "a"]
    seeds = [seed for _, seed, *_ in virtual.sent]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == len(seeds) // 2
    assert {requests for _, _, requests, _ in virtual.sent} == {50}
    assert [warm for *_, warm in virtual.sent] == [4, 4] + [0] * (len(seeds) - 2)
    assert result.mirrored.requests == 2 * len(seeds)
    assert len(seeds) < 40  # it ended before the last block


def test_a_pair_that_was_sent_late_is_sent_again_with_other_requests(
    virtual: type[Virtual], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "late", 1)
    found = compare_servers(SETTINGS, silent)
    seeds = [seed for _, seed, *_ in virtual.sent]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert len(found.mirrored.pairs) == len(seeds) / 2 - 1
    monkeypatch.setattr(virtual, "late", 1000)
    with pytest.raises(InfrastructureError, match="not sent in time: late; run it on a machine with less work"):
        compare_servers(SETTINGS, silent)


def test_two_addresses_are_needed() -> None:
    for urls in (("http://a",), ("http://a", "http://a"), ("a", "b", "c")):
        with pytest.raises(SettingError, match="two servers are compared"):
            compare_servers(CanarySettings(urls=urls, workloads=("w",)), silent)


@pytest.mark.parametrize(
    ("slower", "right", "wrong"),
    [(1.0, (Change.HOLDS,), (Change.WORSE, Change.BETTER)), (1.1, (Change.WORSE,), (Change.HOLDS, Change.BETTER))],
)
def test_verdicts_of_many_comparisons(
    virtual: type[Virtual],
    monkeypatch: pytest.MonkeyPatch,
    slower: float,
    right: tuple[Change, ...],
    wrong: tuple[Change, ...],
) -> None:
    monkeypatch.setattr(virtual, "slower", slower)
    found = []
    for number in range(20):
        monkeypatch.setattr(canary, "_SEED", 10**6 * number)
        found.append(compare_servers(SETTINGS, silent).verdict)
    assert sum(each in right for each in found) >= 15
    assert sum(each in wrong for each in found) <= 2
