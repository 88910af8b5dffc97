"""The warm-up of a running server, and benchmarks during which it compiles kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from records.trials import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.server import running_server
from tuner.engines.server.metrics import MetricNames
from tuner.engines.server.running_server import Readings, RunningServer
from tuner.engines.server.traffic import PromptTools
from tuner.errors import TrialFailed
from tuner.specs import Limits, ModelRef
from tuner.workloads.spec import ClosedLoop, SingleWorkload

NEVER = threading.Event()
LOAD = ClosedLoop(max_concurrency=4, num_prompts=100)
Run = tuple[float, bool]
"""The latency of a run in ms, and whether kernels are compiled during it."""


class Process:
    """Nothing."""

    def record_family(self) -> None:
        """Record nothing."""


def fail(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    raise NotImplementedError


class PlayedServer(RunningServer):
    """A server whose runs are given: those of the warm-up, then those of the benchmarks."""

    reads = Readings(fail, lambda log: ServerFacts(kv_cache_tokens=7), MetricNames("running", "waiting"))

    def __init__(self, folder: Path, runs: list[Run]) -> None:
        self.runs, self.sent = list(runs), cast(list[tuple[Phase, int]], [])
        self.cache = folder / "triton"
        self.cache.mkdir()
        started: dict[str, Any] = {"process": Process(), "lease": None, "argv": (), "model": ModelRef("m", "m", "m")}
        started |= {"environment": {"TRITON_CACHE_DIR": str(self.cache), "HOME": str(folder)}, "limits": Limits()}
        super().__init__(artifacts=folder, secrets=cast(Any, None), api_key=None, devices=(), **started)
        self._before = self._after = {"preemptions": 0.0}

    @property
    def port(self) -> int:
        return 1

    def _prompt_tools(self) -> PromptTools:
        raise NotImplementedError

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        seed = workload.repeat_seed(index)
        self.sent.append((phase, seed))
        latency, compiles = self.runs.pop(0)
        if compiles:
            (self.cache / str(len(self.sent))).touch()
        done = 4 if latency else 0
        return Repeat(index, seed, 4, done, 4 - done, 1.0, {"mean_e2el_ms": latency, "p99_ttft_ms": latency})


Make = Callable[[list[Run]], PlayedServer]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(running_server, "scrape", lambda *args, **options: {})
    return lambda runs: PlayedServer(tmp_path, runs)


def warmed(server: PlayedServer) -> tuple[int | None, bool | None]:
    server.warm_up(LOAD, NEVER)
    assert server.runs == []
    facts = server.facts()
    return facts.warmup_windows, facts.warmup_settled


def test_a_warm_server_needs_two_windows_with_prompts_of_their_own(play: Make) -> None:
    server = play([(100, False), (110, False)])
    assert warmed(server) == (2, True)
    assert server.sent == [(Phase.WARMUP, 501_000), (Phase.WARMUP, 501_001)]
    assert server.facts().kv_cache_tokens == 7


def test_windows_are_sent_until_two_agree(play: Make) -> None:
    assert warmed(play([(900, False), (300, False), (100, False), (95, False)])) == (4, True)


def test_a_window_during_which_kernels_are_compiled_is_not_the_last(play: Make) -> None:
    assert warmed(play([(100, True), (100, True), (100, False)])) == (3, True)


def test_a_warm_up_that_does_not_settle_ends_and_says_so(play: Make) -> None:
    assert warmed(play([(100.0 * 2**k, False) for k in range(8)])) == (8, False)


def test_a_slow_warm_up_starts_no_further_window(play: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_server, "SETTLE_S", -1.0)
    assert warmed(play([(100, False)])) == (1, False)


def test_a_warm_up_of_which_no_request_succeeds_fails_the_trial(play: Make) -> None:
    with pytest.raises(TrialFailed) as failed:
        play([(0, False)]).warm_up(LOAD, NEVER)
    assert failed.value.failure.kind is FailureKind.REQUESTS_FAILED


def test_each_load_of_a_suite_has_to_settle(play: Make) -> None:
    server = play([*((100.0 * 2**k, False) for k in range(8)), (100, False), (100, False)])
    server.warm_up(LOAD, NEVER)
    assert warmed(server) == (10, False)


def test_a_benchmark_that_compiles_nothing_is_sent_once(play: Make) -> None:
    server = play([(100, False)])
    assert server.benchmark(LOAD, 0, NEVER).metrics["mean_e2el_ms"] == 100
    assert server.facts().benchmarks_again == 0


def test_a_benchmark_that_compiles_is_measured_again_with_other_prompts(play: Make) -> None:
    server = play([(500, True), (100, False)])
    repeat = server.benchmark(LOAD, 2, NEVER)
    assert (repeat.index, repeat.metrics["mean_e2el_ms"]) == (2, 100)
    assert server.sent == [(Phase.BENCHMARK, 1002), (Phase.BENCHMARK, 11_002)]
    assert server.facts().benchmarks_again == 1


def test_a_benchmark_that_compiles_again_and_again_is_kept_as_not_settled(play: Make) -> None:
    server = play([(100, False), (100, False), (500, True), (400, True), (300, True)])
    server.warm_up(LOAD, NEVER)
    assert server.benchmark(LOAD, 0, NEVER).metrics["mean_e2el_ms"] == 300
    assert (server.facts().warmup_settled, server.facts().benchmarks_again) == (False, 2)
