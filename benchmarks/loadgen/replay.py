"""Sends the same prompts at the same times with `vllm bench serve` and with `tuner.loadgen`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.loadgen.vllm_bench import CLIENT_LIMIT_S, VllmBench
from records.trials import Repeat
from tuner.engines.server.traffic import TrafficFiles, plan_requests, read_traffic, start_generator
from tuner.engines.vllm.bench_serve import read_result
from tuner.engines.vllm.engine import VllmServer
from tuner.loadgen.plan import PlannedRequest, RequestPlan
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic

VLLM_CLIENT, TUNER_CLIENT = "vllm bench serve", "tuner"
ORDERS = (
    (VLLM_CLIENT, TUNER_CLIENT, TUNER_CLIENT, VLLM_CLIENT),
    (TUNER_CLIENT, VLLM_CLIENT, VLLM_CLIENT, TUNER_CLIENT),
)
"""Orders of the runs in even and odd blocks."""
BLOCK_SEED = 5000
REQUEST_LIMIT_S = 300.0
HTTP_LIMIT_S = 30.0
TTFT_HISTOGRAM = "vllm:time_to_first_token_seconds"
LOG_TAIL = 2000
"""Characters of a failed client's log that are printed."""


class Replay:
    """Two clients that send the same prompts at the same times to one server.

    Attributes:
        traffic: the prompts and the request rate.
    """

    def __init__(self, bench: VllmBench, server: VllmServer, traffic: Traffic, rate: float) -> None:
        self._bench = bench
        self._server = server
        self._rate = rate
        self.traffic = traffic

    def block(self, number: int, slow_s: float) -> tuple[dict[str, list[Repeat]], list[tuple[str, int]]]:
        """Run each client twice, in an order that favours neither.

        A first run, which is slower for either client, is left out; it sets the times.

        Args:
            number: of the block; it determines the prompts and the order.
            slow_s: a bucket bound of the server's TTFT histogram, in seconds.

        Returns:
            The metrics by client, and for each run the client and the number of requests with a TTFT above `slow_s`.
        """
        files = TrafficFiles(self._bench.folder, f"block-{number}")
        tokenizer = self._bench.model.tokenizer
        requests = plan_requests(self._bench.tools, self.traffic, BLOCK_SEED + number, files, tokenizer)
        prompts = self._bench.folder / "prompts.jsonl"
        lines = (json.dumps({"prompt": each.prompt, "output_tokens": each.max_tokens}) for each in requests)
        prompts.write_text("".join(f"{line}\n" for line in lines))
        times = self._run_vllm_client(prompts, len(requests), number)[1]
        timed = [replace(request, at_s=at) for request, at in zip(requests, times, strict=True)]
        repeats: dict[str, list[Repeat]] = {VLLM_CLIENT: [], TUNER_CLIENT: []}
        slow = []
        for client in ORDERS[number % 2]:
            before = slow_requests(self._server.port, slow_s)
            if client == VLLM_CLIENT:
                repeat = self._run_vllm_client(prompts, len(requests), number)[0]
            else:
                repeat = self._run_tuner_client(timed, number, files)
            repeats[client].append(repeat)
            slow.append((client, slow_requests(self._server.port, slow_s) - before))
        return repeats, slow

    def _run_tuner_client(self, timed: list[PlannedRequest], number: int, files: TrafficFiles) -> Repeat:
        """Send the prompts at their times with `tuner.loadgen`."""
        empty_prefix_cache(self._server.port)
        url = f"http://127.0.0.1:{self._server.port}/v1/completions"
        plan = RequestPlan(url, self._bench.model.name, None, None, REQUEST_LIMIT_S, CLIENT_LIMIT_S)
        job = start_generator(plan, timed, files, self._bench.tools.records)
        job.wait(CLIENT_LIMIT_S)
        job.cancel()
        return read_traffic(self.traffic, number, files)[0]

    def _run_vllm_client(self, prompts: Path, count: int, number: int) -> tuple[Repeat, list[float]]:
        """Send the prompts with `vllm bench serve`; return its metrics and when it sent each request, in seconds.

        Raises:
            SystemExit: if the client fails.
        """
        empty_prefix_cache(self._server.port)
        folder = self._bench.folder
        result, log = folder / f"client-{number}.json", folder / f"client-{number}.log"
        words = self._client_words(prompts, count, number, result)
        job = self._bench.tools.start(words, self._bench.client_environment(), log, folder)
        if not job.wait(CLIENT_LIMIT_S) or job.exit_code != 0:
            job.cancel()
            raise SystemExit(f"vllm bench serve failed:\n{log.read_text()[-LOG_TAIL:]}")
        sent: Sequence[float] = json.loads(result.read_text())["start_times"]
        repeat = read_result(result, ClosedLoop(num_prompts=count), number, number)
        return repeat, [at - min(sent) for at in sent]

    def _client_words(self, prompts: Path, count: int, number: int, result: Path) -> list[str]:
        return [
            *("bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{self._server.port}"),
            *("--endpoint", "/v1/completions", "--model", self._bench.model.name, "--dataset-name", "custom"),
            *("--dataset-path", str(prompts), "--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle"),
            *("--num-prompts", str(count), "--request-rate", str(self._rate), "--ignore-eos", "--seed", str(number)),
            *("--save-result", "--save-detailed", "--result-dir", str(result.parent)),
            *("--result-filename", result.name),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"),
        ]


def slow_requests(port: int, bound_s: float) -> int:
    """Return the number of requests with a TTFT above a bound so far, by the server's histogram.

    Raises:
        SystemExit: if the histogram has no bucket with that bound.
    """
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=HTTP_LIMIT_S).text
    buckets = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{TTFT_HISTOGRAM}_bucket"
    }
    if str(bound_s) not in buckets:
        bounds = ", ".join(buckets)
        raise SystemExit(f"--slow-ms {1000 * bound_s:g}: not a bound of the server's TTFT histogram ({bounds} s)")
    return round(buckets["+Inf"] - buckets[str(bound_s)])


def empty_prefix_cache(port: int) -> None:
    """Empty the server's prefix cache.

    Raises:
        SystemExit: if the server refuses.
    """
    response = httpx.post(f"http://127.0.0.1:{port}/reset_prefix_cache", timeout=HTTP_LIMIT_S)
    if response.status_code != 200:
        raise SystemExit(f"the server does not empty its prefix cache: HTTP {response.status_code}")
