"""What the servers of all engines share: the warm-up, compilers' caches, and prompts of common tokens."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from records.trials import Cut, Failure, FailureKind, Phase, Repeat, ServerFacts
from tests.gguf_model import MadeModel
from tests.two_formats import write_both
from tuner.cancellation import CancelToken
from tuner.engines.server import early_end, running_server
from tuner.engines.server.metrics import CompileCaches, MetricNames, cache_folders
from tuner.engines.server.running_server import Readings, RunningServer
from tuner.engines.server.token_prompts import TokenTools, common_tokens, ordinary_texts, with_common_tokens
from tuner.engines.server.traffic import PromptTools
from tuner.engines.vllm.texts import COMPILES
from tuner.errors import SettingError, TrialCut, TrialFailed
from tuner.loadgen.plan import PlannedRequest
from tuner.loadgen.progress import ProgressReader, ProgressWriter
from tuner.processes.records import ProcessRecords
from tuner.specs import Limits, ModelRef
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestRecord, RequestSlo, RequestStatus
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

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


CUT = Cut("misses p99_ttft_ms<50", 2.0, 20, 100)


class PlayedServer(RunningServer):
    """A server whose runs are given: those of the warm-up, then those of the benchmarks; one below 0 is cut short."""

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

    def _prompt_tools(self, traffic: Traffic) -> PromptTools:
        raise NotImplementedError

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        seed = workload.repeat_seed(index)
        self.sent.append((phase, seed))
        latency, compiles = self.runs.pop(0)
        if compiles:
            (self.cache / str(len(self.sent))).touch()
        if latency < 0:
            raise TrialCut(CUT)
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


def test_a_window_in_which_the_log_tells_of_a_compilation_is_not_the_last(play: Make, tmp_path: Path) -> None:
    server = play([(100, False), (100, False), (100, False)])
    log, send = tmp_path / "server.log", server._run_workload
    log.write_text("WARNING Triton kernel JIT compilation during inference: before_the_warm_up.\n")

    def logged(workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        if index == 1:
            with log.open("a") as file:
                file.write("WARNING Triton kernel JIT compilation during inference: fused_moe_kernel.\n")
        return send(workload, index, phase, cancelled)

    server._run_workload = logged  # type: ignore[method-assign]
    server.reads = replace(server.reads, compiles=COMPILES)
    assert warmed(server) == (3, True)


def test_a_warm_up_that_does_not_settle_ends_and_says_so(play: Make) -> None:
    assert warmed(play([(12_800.0 / 2**k, False) for k in range(8)])) == (8, False)


def test_a_warm_up_ends_with_two_windows_that_are_no_faster(play: Make) -> None:
    assert warmed(play([(900, False), (100, False), (140, False), (101, False)])) == (4, True)


def test_a_window_without_a_gain_that_compiles_is_not_the_last(play: Make) -> None:
    assert warmed(play([(100, False), (140, True), (200, False), (150, False)])) == (4, True)


def test_a_slow_warm_up_starts_no_further_window(play: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_server, "SETTLE_S", -1.0)
    assert warmed(play([(100, False)])) == (1, False)


def test_a_warm_up_of_which_no_request_succeeds_fails_the_trial(play: Make) -> None:
    with pytest.raises(TrialFailed) as failed:
        play([(0, False)]).warm_up(LOAD, NEVER)
    assert failed.value.failure.kind is FailureKind.REQUESTS_FAILED


def test_each_load_of_a_suite_has_to_settle(play: Make) -> None:
    server = play([*((12_800.0 / 2**k, False) for k in range(8)), (100, False), (100, False)])
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


def test_a_trial_is_cut_for_a_benchmark_that_compiles_nothing(play: Make) -> None:
    with pytest.raises(TrialCut) as cut:
        play([(-1, False)]).benchmark(LOAD, 0, NEVER)
    assert cut.value.cut is CUT


def test_a_trial_is_not_cut_for_a_benchmark_that_compiles(play: Make) -> None:
    server = play([(-1, True), (100, False)])
    assert server.benchmark(LOAD, 0, NEVER).metrics["mean_e2el_ms"] == 100
    assert server.facts().benchmarks_again == 1


def test_each_line_of_progress_is_looked_at_until_the_trial_is_lost(tmp_path: Path) -> None:
    class LostAtTwo:
        slos: Mapping[str, RequestSlo] = {"a": RequestSlo({"ttft": 100.0})}
        users: int | None = None

        def look(self, progress: RunProgress, at_s: float) -> Cut | None:
            missed.append(progress.seen(at_s).missed.tolist())
            return CUT if at_s == 2.0 else None

    missed: list[list[bool]] = []
    file = tmp_path / "progress.jsonl"
    writer = ProgressWriter(file, [PlannedRequest(k, "a", k / 10, "text", 3, 4) for k in range(2)])
    look = early_end.BenchmarkLook(LostAtTwo(), ProgressReader(file))
    look.raise_if_lost()
    writer.add(0.15, [], [(0, 0.0, None), (1, 0.1, None)])
    look.raise_if_lost()
    look.raise_if_lost()
    writer.add(2.0, [], [(0, 0.0, None), (1, 0.1, None)])
    look._next_s = 0.0
    with pytest.raises(TrialCut):
        look.raise_if_lost()
    assert missed == [[True, False], [True, True]]


@pytest.mark.parametrize(("statuses", "fails"), [("ff", False), ("fff", False), ("ffff", True), ("fffc", False)])
def test_a_warm_up_is_hopeless_once_two_requests_of_each_user_have_failed(
    tmp_path: Path, statuses: str, fails: bool
) -> None:
    named = {"f": RequestStatus.REFUSED, "c": RequestStatus.COMPLETED}
    planned = [PlannedRequest(k, "a", None, "text", 3, 4) for k in range(9)]
    writer, failed = ProgressWriter(tmp_path / "progress.jsonl", planned), list[RequestRecord]()
    ended = [RequestRecord(k, "a", named[each], 3, 4, None, error="busy") for k, each in enumerate(statuses)]
    writer.add(1.0, ended, [])
    early_end.WarmupLook(ProgressReader(tmp_path / "progress.jsonl"), 2, failed.extend).raise_if_lost()
    assert [each.error for each in failed] == ["busy"] * (len(statuses) if fails else 0)


def test_a_variable_names_its_folder_and_home_has_the_others(tmp_path: Path) -> None:
    found = cache_folders({"HOME": "/h", "TRITON_CACHE_DIR": "/t", "FLASHINFER_WORKSPACE_BASE": "/f"})
    assert {Path("/t"), Path("/f/.cache/flashinfer"), Path("/h/.cache/vllm"), Path("/h/.nv/ComputeCache")} <= set(found)
    assert Path("/h/.triton/cache") not in found


def test_a_folder_in_another_one_counts_once() -> None:
    found = cache_folders({"VLLM_CACHE_ROOT": "/v", "TRITON_CACHE_DIR": "/v/triton"})
    assert found == (Path("/v"),)


def test_a_new_kernel_is_growth_until_the_next_mark(tmp_path: Path) -> None:
    caches = CompileCaches({"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    caches.mark()
    assert not caches.grew()
    kernel = tmp_path / "triton" / "AB12" / "moe.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert caches.grew()
    caches.mark()
    assert not caches.grew()


SMALL = MadeModel(layers=1, vocabulary=512)


def write_vocabulary(folder: Path, words: dict[str, int], added: tuple[int, ...] = ()) -> str:
    """Write a `tokenizer.json` and return its folder."""
    folder.mkdir()
    content = {"model": {"vocab": words}, "added_tokens": [{"id": token, "content": "x"} for token in added]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return str(folder)


def numbered(count: int, other: int = 0) -> dict[str, int]:
    """Return so many words, the last of which have another text."""
    return {f"{'other' if token >= count - other else 'word'}{token}": token for token in range(count)}


def test_both_formats_of_one_model_have_the_same_tokens(tmp_path: Path) -> None:
    gguf, folder = map(str, write_both(tmp_path, SMALL))
    common = common_tokens((folder, gguf))
    assert set(common) == set(ordinary_texts(gguf))
    assert len(common) > 200


def test_added_tokens_are_not_drawn(tmp_path: Path) -> None:
    first = write_vocabulary(tmp_path / "a", numbered(20))
    second = write_vocabulary(tmp_path / "b", numbered(20), added=(0, 7))
    assert common_tokens((first, second)) == (*range(1, 7), *range(8, 20))


@pytest.mark.parametrize(("other", "count"), [(0, 20), (2, 18), (3, 0)])
def test_vocabularies_are_the_same_if_nine_of_ten_tokens_are(tmp_path: Path, other: int, count: int) -> None:
    first = write_vocabulary(tmp_path / "a", numbered(20))
    second = write_vocabulary(tmp_path / "b", numbered(20, other))
    assert len(common_tokens((first, second))) == count


def test_a_list_of_words_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}))
    assert ordinary_texts(str(tmp_path)) == {0: "a", 1: "b"}


def test_a_file_that_is_no_tokenizer_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingError, match="its tokens cannot be read"):
        ordinary_texts(str(tmp_path))


def test_the_tools_of_a_server_draw_the_common_tokens(tmp_path: Path) -> None:
    first, second = (write_vocabulary(tmp_path / name, numbered(20, other)) for name, other in (("a", 0), ("b", 1)))
    tools = TokenTools([1, 2, 3, 19], ProcessRecords(tmp_path / "records"), lambda text, added: [])
    assert with_common_tokens(tools, ()) is tools
    found = with_common_tokens(tools, (first, second))
    assert isinstance(found, TokenTools)
    assert tuple(found._tokens) == tuple(range(19))
