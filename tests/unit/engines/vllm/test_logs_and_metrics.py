"""The server's own numbers, from its log and from `/metrics`."""

import itertools
import json
import time
from pathlib import Path

import pytest

from records.trials import ServerFacts
from tests.fakes.raw_server import answering
from tests.ports import free_port
from tuner.engines.server.metrics import parse_metrics, scrape, with_benchmark_metrics
from tuner.engines.sglang.engine import METRICS as SGLANG
from tuner.engines.vllm.texts import METRICS, facts_from_log

LOGS = Path(__file__).parents[3] / "data" / "logs"

GPU_FACTS = {
    "kv_cache_tokens": 981264,
    "kv_cache_gib": 11.23,
    "max_concurrency": 29.95,
    "weights_gib": 0.93,
    "graph_gib": 0.29,
    "graph_capture_s": 7.0,
    "compile_s": 9.87,
    "engine_init_s": 18.42,
}


@pytest.mark.parametrize(("log", "backend"), [("gpu_start_0.15", "FLASHINFER"), ("gpu_start_0.25", "TRITON_ATTN")])
def test_facts_are_read_from_the_logs_of_gpu_servers(log: str, backend: str) -> None:
    facts = facts_from_log((LOGS / f"{log}.log").read_text())
    assert facts == ServerFacts(attention_backend=backend, **GPU_FACTS)  # type: ignore[arg-type]


def test_facts_are_read_from_a_recorded_cpu_log() -> None:
    facts = facts_from_log((LOGS / "healthy_start.log").read_text())
    assert facts.kv_cache_tokens == 524288
    assert facts.kv_cache_gib == 1.0
    assert facts.max_concurrency == 512.0
    assert facts.engine_init_s is not None
    assert facts.graph_gib is None


def test_ascend_s_runner_logs_its_weights_in_other_words() -> None:
    assert facts_from_log("[model_runner_v1.py:9] Loading model weights took 27.5000 GB\n").weights_gib == 27.5


def test_a_log_without_facts_gives_none() -> None:
    assert facts_from_log("Traceback (most recent call last):\nKeyError: 1\n") == ServerFacts()


_DEFAULT = "config. Performance might be sub-optimal! Config file not found at"
_FILE = "E=128,N=768,device_name=H.json"
_MOE = f"[fused_moe.py:1164] Using default MoE {_DEFAULT} /t u/{_FILE}, /x/{_FILE}"
_BLOCKS = f"[fp8_utils.py:954] Using default W8A8 Block FP8 kernel {_DEFAULT} /x/N=4,K=2,block_shape=[128,128].json"
UNTUNED = f"""
(Worker_TP0 pid=9) WARNING 11-02 09:14:55 {_MOE}
(Worker_TP1 pid=9) WARNING 11-02 09:14:55 {_MOE}
WARNING 11-02 09:14:56 {_BLOCKS}
WARNING 11-02 09:14:57 [utils.py:276] Using default LoRA kernel configs
"""
"""vLLM's texts in 0.15.1, 0.25.1 and 0.32.0 (`fused_moe.py`, `fp8_utils.py`), on two GPUs."""


def test_missing_files_of_tuned_kernels_are_read() -> None:
    assert facts_from_log(UNTUNED).untuned_kernels == (
        "E=128,N=768,device_name=H.json; N=4,K=2,block_shape=[128,128].json"
    )


PAGE = """# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a b, {c}"} 3.0
vllm:num_preemptions_total{engine="1",model_name="a b, {c}"} 4.0
vllm:num_preemptions_created{engine="0",model_name="x"} 1.795182378000694e+09
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:request_queue_time_seconds_sum{engine="0"} 1.5
vllm:request_queue_time_seconds_count{engine="0"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 2.0
vllm:prefix_cache_queries_total{engine="0"} NaNa
process_open_fds 34.0
"""


def test_counters_are_summed_and_gauges_are_not() -> None:
    assert parse_metrics(PAGE, METRICS) == {
        "vllm:num_preemptions_total": 7.0,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:request_queue_time_seconds_sum": 1.5,
        "vllm:request_queue_time_seconds_count": 3.0,
    }


def test_malformed_lines_and_longer_names_are_ignored() -> None:
    page = """vllm:num_preemptions_total{engine="0"} NaNa
vllm:num_preemptions_total{engine="0" 1.0
vllm:num_preemptions_total
vllm:num_preemptions_total_of_another_kind 5.0
vllm:num_preemptions_total{engine="1"} 2.0 1395066363000
"""
    assert parse_metrics(page, METRICS) == {"vllm:num_preemptions_total": 2.0}
    assert parse_metrics(json.dumps(page), METRICS) == {"vllm:num_preemptions_total": 2.0}


def test_metrics_cover_the_time_between_the_scrapes_only() -> None:
    before = {
        "vllm:num_preemptions_total": 5.0,
        "vllm:prefix_cache_queries_total": 1000.0,
        "vllm:prefix_cache_hits_total": 1000.0,
        "vllm:request_queue_time_seconds_sum": 10.0,
        "vllm:request_queue_time_seconds_count": 4.0,
        "vllm:spec_decode_num_drafts_total": 0.0,
        "vllm:spec_decode_num_draft_tokens_total": 0.0,
        "vllm:spec_decode_num_accepted_tokens_total": 0.0,
    }
    after = {
        "vllm:num_preemptions_total": 7.0,
        "vllm:prefix_cache_queries_total": 3000.0,
        "vllm:prefix_cache_hits_total": 1500.0,
        "vllm:request_queue_time_seconds_sum": 12.0,
        "vllm:request_queue_time_seconds_count": 8.0,
        "vllm:spec_decode_num_drafts_total": 10.0,
        "vllm:spec_decode_num_draft_tokens_total": 80.0,
        "vllm:spec_decode_num_accepted_tokens_total": 60.0,
    }
    facts = with_benchmark_metrics(ServerFacts(kv_cache_tokens=7), before, after, [0.1, 0.3], METRICS)
    assert facts == ServerFacts(
        kv_cache_tokens=7,
        preemptions=2.0,
        prefix_hit_rate=0.25,
        queue_time_mean_s=0.5,
        kv_usage_max=0.3,
        kv_usage_mean=0.2,
        spec_acceptance_rate=0.75,
        spec_tokens_per_draft=6.0,
    )


def test_offloaded_tokens_are_hits_too() -> None:
    after = {
        "vllm:prefix_cache_queries_total": 2000.0,
        "vllm:prefix_cache_hits_total": 1000.0,
        "vllm:external_prefix_cache_hits_total": 500.0,
    }
    assert with_benchmark_metrics(ServerFacts(), {}, after, [], METRICS) == ServerFacts(prefix_hit_rate=0.75)


def test_a_counter_that_did_not_move_has_no_rate() -> None:
    same = {"vllm:prefix_cache_queries_total": 9.0, "vllm:prefix_cache_hits_total": 3.0}
    facts = with_benchmark_metrics(ServerFacts(), same, same, [], METRICS)
    assert facts == ServerFacts()


def test_a_server_that_is_gone_has_no_metrics() -> None:
    assert scrape("127.0.0.1", free_port(), METRICS) is None


PAGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
LINE = b'vllm:num_preemptions_total{engine="0"} 1.0\n'


def test_a_page_of_80_mb_is_not_read() -> None:
    with answering(PAGE_HEAD + b"Content-Length: 80000000\r\n\r\n", itertools.repeat(LINE * 1000)) as port:
        begun = time.monotonic()
        assert scrape("127.0.0.1", port, METRICS) is None
        assert time.monotonic() - begun < 15


def test_a_page_without_an_end_is_not_read() -> None:
    with answering(PAGE_HEAD + b"\r\n", itertools.repeat(LINE * 1000)) as port:
        assert scrape("127.0.0.1", port, METRICS) is None


def test_a_page_of_another_type_is_not_read() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 43\r\n\r\n" + LINE) as port:
        assert scrape("127.0.0.1", port, METRICS) is None


def test_a_page_of_vllm_is_read() -> None:
    with answering(PAGE_HEAD + b"Content-Length: %d\r\n\r\n" % len(LINE) + LINE) as port:
        assert scrape("127.0.0.1", port, METRICS) == {"vllm:num_preemptions_total": 1.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_a_value_that_is_not_finite_is_ignored(value: str) -> None:
    assert parse_metrics(f"vllm:num_preemptions_total {value}\n", METRICS) == {}


def test_ratios_that_overflow_are_none() -> None:
    after = {"vllm:prefix_cache_queries_total": 5e-324, "vllm:prefix_cache_hits_total": 1e308}
    assert with_benchmark_metrics(ServerFacts(), {}, after, [], METRICS) == ServerFacts()


@pytest.mark.parametrize("number", [",", "9" * 400, "9" * 30])
def test_a_number_that_is_none_is_no_fact(number: str) -> None:
    text = f"GPU KV cache size: {number} tokens\nModel loading took {number} GiB\n"
    facts = facts_from_log(text)
    assert facts.kv_cache_tokens is None
    assert facts.weights_gib is None or facts.weights_gib < 1e31


@pytest.mark.parametrize(
    ("labels", "running"),
    [
        (['tp_rank="0"', 'tp_rank="1"'], 7.0),
        (['dp_rank="0",tp_rank="0"', 'dp_rank="0",tp_rank="1"', 'dp_rank="1",tp_rank="0"'], 14.0),
        (['pp_rank="0",tp_rank="0"', 'pp_rank="1",tp_rank="0"', 'moe_ep_rank="1",pp_rank="0",tp_rank="1"'], 7.0),
        (['engine="0"', 'engine="1"'], 14.0),
        (["", ""], 14.0),
    ],
)
def test_ranks_of_one_copy_count_once(labels: list[str], running: float) -> None:
    name = "sglang:num_running_reqs"
    page = "".join(f'{name}{{model_name="m",{each}}} 7.0\n' for each in labels)
    assert parse_metrics(page.replace(",}", "}"), SGLANG) == {name: running}
