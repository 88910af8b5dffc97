"""`tuner capacity` on a server with a known capacity: its output, and the table of tried rates."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from records.trials import Repeat
from tests.cli.command import CommandOutput, ran, refused, run_here
from tests.fakes import install_fake_vllm
from tests.fakes.stub_engine import StubEngine, StubServer
from tests.unit.test_gpu import FakeNvml
from tuner import gpu as devices
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineSettings
from tuner.specs import Limits, TrialSpec
from tuner.use_cases import capacity as capacity_run
from tuner.use_cases import engines
from tuner.workloads.spec import Workload
from tuner.workloads.traffic import Traffic

TRAFFIC = """
arrivals: {process: poisson, rate: 4}
requests: 10
classes: {a: {input: 4, output: 4}}
slo: {a: {p95_ttft_ms: 100}}
"""
Capacity = Callable[..., CommandOutput]


class HoldsUpTo(StubServer):
    """A server whose TTFT is 50 ms up to a rate, and 500 ms above it."""

    limit = 10.0

    def benchmark(self, workload: Workload, index: int, cancelled: CancelToken) -> Repeat:
        assert isinstance(workload, Traffic)
        assert workload.rate is not None
        ttft = 50.0 if workload.rate <= self.limit else 500.0
        return Repeat(index, workload.repeat_seed(index), 10, 10, 0, 1.0, {"a.p95_ttft_ms": ttft, "p95_ttft_ms": ttft})


class HoldingEngine(StubEngine):
    """An engine of such servers."""

    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        return HoldsUpTo(spec, lambda *_: {}, None)


@pytest.fixture
def capacity(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Capacity:
    def factory(settings: EngineSettings) -> Callable[[int], StubEngine]:
        return lambda slot: HoldingEngine(lambda *_: {})

    monkeypatch.setattr(capacity_run, "EngineFactory", factory)
    monkeypatch.setattr(engines, "check_prompts", lambda *_: None)  # no prompt is made
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    vllm = install_fake_vllm(tmp_path / "bin")

    def run(limit: float, *argv: str) -> CommandOutput:
        monkeypatch.setattr(HoldsUpTo, "limit", limit)
        return run_here(
            tmp_path, "capacity", "--vllm", str(vllm), "--model", str(model), "--workload", "traffic.yaml", *argv
        )

    return run


def test_the_capacity_is_between_the_rates_that_held_and_missed(capacity: Capacity, tmp_path: Path) -> None:
    printed = capacity(10.0)
    assert printed.code == 0, printed.err
    # 4 and 8 hold, 16 misses; then √(8·16) = 11.31 misses, √(8·11.31) = 9.51 holds, √(9.51·11.31) = 10.37 misses
    assert printed.out.splitlines()[-1].startswith("capacity 9.5"), printed.out
    assert "at least" not in printed.out
    assert "  held, the capacity\n" in printed.out
    assert (tmp_path / "tuner_capacity" / "1" / "capacity.csv").is_file()


def test_each_search_has_a_folder_of_its_own(capacity: Capacity, tmp_path: Path) -> None:
    capacity(10.0)
    first = (tmp_path / "tuner_capacity" / "1" / "capacity.csv").read_text()
    printed = json.loads(capacity(5.0, "--json").out)
    assert printed["folder"].endswith("tuner_capacity/2")
    assert printed["lower_bound"] is False
    assert (tmp_path / "tuner_capacity" / "1" / "capacity.csv").read_text() == first


def test_where_every_rate_held_the_capacity_is_at_least_the_highest(capacity: Capacity) -> None:
    assert "capacity at least " in capacity(math.inf).out
    assert json.loads(capacity(math.inf, "--json").out)["lower_bound"] is True


def test_where_no_rate_held_there_is_none(capacity: Capacity) -> None:
    printed = json.loads(capacity(0.0, "--json").out)
    assert (printed["capacity"], printed["searches"]) == (None, [None])
    assert "every rate that was tried missed an SLO: a.p95_ttft_ms<100" in capacity(0.0).out


def test_a_server_of_two_gpus_gets_both_and_pays_for_both(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_pynvml", lambda: FakeNvml((("NVIDIA H200", (9, 0), 140.0),) * 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(engines, "check_prompts", lambda *_: None)  # no prompt is made
    workers, trials = [], []

    class Watched(HoldingEngine):
        def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
            trials.append(spec)
            return super().launch(spec, limits)

    def factory(settings: EngineSettings) -> Callable[[int], StubEngine]:
        workers.append(settings)
        return lambda slot: Watched(lambda *_: {})

    monkeypatch.setattr(capacity_run, "EngineFactory", factory)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    vllm = str(install_fake_vllm(tmp_path / "bin"))
    words = ("--vllm", vllm, "--model", str(model), "--workload", "traffic.yaml", "--", "--tensor-parallel-size", "2")
    ran(tmp_path, "capacity", *words)
    assert [each.gpus for each in workers] == [2]
    assert [(each.gpus, each.launch.gpus(each.gpus)) for each in trials] == [(2, 2)]


def test_without_a_gpu_the_capacity_is_simulated_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [])
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    printed = ran(tmp_path, "capacity", "--workload", "traffic.yaml")
    first = printed.err.splitlines()[0]
    assert first.startswith("SIMULATED: predicted, not measured: vLLM "), printed.err
    assert first.endswith(" on one Tesla T4; use --engine vllm without --gpu to measure"), printed.err
    assert "(simulated): a.p95_ttft_ms<100" in printed.out
    two = run_here(tmp_path, "capacity", "--workload", "traffic.yaml", "--gpu", "h200", "--", "-tp", "2")
    assert two.err.splitlines()[0].endswith(" on 2 × NVIDIA H200; use --engine vllm without --gpu to measure"), two.err
    again = json.loads(run_here(tmp_path, "capacity", "--workload", "traffic.yaml", "--gpu", "h100", "--json").out)
    assert again["provenance"] == "simulated"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--", "--tensor-parallel-size", "4"], "14 attention heads, which 4 does not divide; choose a divisor"),
        (["--engine", "vllm", "--gpu", "t4"], "--gpu 't4': this setting is for a simulation"),
    ],
)
def test_a_simulated_capacity_refuses_what_cannot_be_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], part: str
) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [])
    refused(run_here(tmp_path, "capacity", "--preset", "chat", *argv), tmp_path, part)


def test_a_model_that_lacks_memory_gets_the_gpus_over_which_it_fits(tmp_path: Path) -> None:
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    large = ("--workload", "traffic.yaml", "--gpu", "h100", "--model", "meta-llama/Llama-3.3-70B-Instruct")
    printed = run_here(tmp_path, "capacity", *large)
    assert "79.10 GiB. It fits on 4 GPUs: --tensor-parallel-size 4; logs are in " in printed.err


def test_the_capacity_of_sessions_counts_requests_and_names_arrivals(capacity: Capacity, tmp_path: Path) -> None:
    # half a session of eight requests a second: 4 requests/s
    kind = "{input: 4, output: 4, session: {turns: 4, fan_out: 2}}"
    text = TRAFFIC.replace("rate: 4", "rate: 0.5").replace("{input: 4, output: 4}", kind)
    (tmp_path / "traffic.yaml").write_text(text)
    printed = capacity(10.0)
    assert printed.code == 0, printed.err
    assert printed.out.splitlines()[-1].startswith("capacity 9.514 req/s, 1.189 arrivals/s of 8 requests (")
    assert json.loads(capacity(10.0, "--json").out)["requests_per_arrival"] == 8.0
