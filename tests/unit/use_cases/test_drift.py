"""`tuner server drift` reads pages of vLLM, and compares their windows with a simulated study."""

import math
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import tuner
from storage import open_store
from tests.cli.command import run_here
from tests.cli.conftest import studies_alone
from tests.fakes.http_server import Answer, http_server
from tuner.errors import EXIT_WORSE
from tuner.use_cases.drift import Counters, counted, promise_of, samples_of, window_between

PAGE = """\
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{{engine="0",le="500.0",model_name="m"}} {low}
vllm:request_prompt_tokens_bucket{{engine="0",le="1000.0",model_name="m"}} {all}
vllm:request_prompt_tokens_bucket{{engine="0",le="+Inf",model_name="m"}} {all}
vllm:request_prompt_tokens_sum{{engine="0",model_name="m"}} 12345.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}
"""


def page(low: float, every: float, queries: float = 0, hits: float = 0) -> str:
    return PAGE.format(low=low, all=every, queries=queries, hits=hits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated study of 512 tokens in and 512 out."""
    folder = tmp_path_factory.mktemp("drift")
    storage, output = str(folder / "tuner.db"), str(folder / "best_serve.sh")
    with studies_alone():
        tuner.optimize(study="s", trials=1, confirm_rounds=0, storage=storage, output=output)
    return folder


def read_counters(pages: list[str]) -> Counters:
    return counted(sample for each in pages for sample in samples_of(each))


def test_a_window_has_the_differences_of_the_servers_together() -> None:
    before = read_counters([page(10, 10, 100, 50), page(0, 0)])
    after = read_counters([page(10, 40, 300, 100), page(20, 20, 200, 0)])
    window = window_between(before, after, 10.0)
    assert window is not None
    assert (window.requests, window.sharing) == (50, 50 / 400)
    assert window.histograms["prompt"].edges == (500.0, 1000.0, math.inf)
    assert window.histograms["prompt"].counts == (20, 30, 0)


def test_a_server_that_began_anew_gives_no_window() -> None:
    assert window_between(read_counters([page(10, 10)]), read_counters([page(3, 3)]), 10.0) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_counter_that_is_no_number_gives_no_window(value: float) -> None:
    assert window_between(read_counters([page(3, 3)]), read_counters([page(3, value)]), 10.0) is None
    assert window_between(read_counters([page(3, value)]), read_counters([page(3, 9)]), 10.0) is None


def test_a_study_promises_its_lengths_and_the_slos_that_it_measured(folder: Path) -> None:
    store = open_store(f"sqlite:///{folder / 'tuner.db'}")
    record = store.study("s")
    assert record is not None
    promise = promise_of(record, store.trials("s"))
    store.close()
    assert promise.rate is None  # a closed loop
    assert {*promise.lengths["prompt"]} == {*promise.lengths["answer"]} == {512}
    assert promise.bounds == {"TPOT": (0.05, 0.99), "TTFT": (2.0, 0.99)}


def served(pages: list[str]) -> AbstractContextManager[str]:
    """Serve one page after another at `/metrics`, the last one again and again."""
    left, kind = list(pages), {"content-type": "text/plain; version=0.0.4"}
    return http_server(lambda _: Answer(left.pop(0) if len(left) > 1 else left[0], headers=kind))


def watch(folder: Path, url: str, *more: str) -> tuple[int, list[str], str]:
    words = ("server", "drift", "--url", f"{url}/v1", "--study", "s", "--storage", str(folder / "tuner.db"))
    printed = run_here(folder, *words, "--window", "0.01s", *more)
    return printed.code, printed.out.splitlines(), printed.err


def test_prompts_that_are_shorter_for_three_windows_have_drifted(folder: Path) -> None:
    # every prompt of the study has 512 tokens, so that none is in the first bucket; here all are
    with served([page(count, count) for count in (0, 1000, 2000, 3000)]) as url:
        code, lines, _ = watch(folder, url)
    assert code == EXIT_WORSE
    assert lines[0] == "the numbers of study s are simulated: the servers are compared with predictions"
    assert len([line for line in lines if "requests/s" in line]) == 3
    assert lines[-2] == "drifted: prompt lengths differ by 1.00, at most 0.26 is chance"


def test_the_prompts_of_the_study_have_not(folder: Path) -> None:
    with served([page(0, 1000 * count) for count in range(500)]) as url:
        code, lines, _ = watch(folder, url, "--for", "0.2s")
    assert (code, lines[-1]) == (0, "nothing has drifted")


def test_another_server_is_refused_in_one_line(folder: Path) -> None:
    with served(["llamacpp:requests_processing 0\n"]) as url:
        code, lines, error = watch(folder, url)
    assert (code, lines) == (2, [])
    assert error == (
        f"tuner: --url '{url}': it answers 200 to /metrics, without vllm:request_prompt_tokens; "
        "give the address of a server of vLLM\n"
    )


@pytest.mark.parametrize("value", ["many", ""])
@pytest.mark.parametrize("edge", ["500.0", "wide"])
def test_a_page_of_another_format_is_refused_with_its_address(folder: Path, edge: str, value: str) -> None:
    bucket = f'vllm:request_prompt_tokens_bucket{{le="{edge}"}} {value}\n'
    with served([page(1, 1)]) as good, served([bucket]) as url:
        code, lines, error = watch(folder, url, "--url", good)
    assert (code, lines) == (2, [])
    assert error == (
        f"tuner: --url '{url}': its page at /metrics is not in the text format of Prometheus; "
        "give the address of a server of vLLM\n"
    )
