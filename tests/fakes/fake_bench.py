"""The fake's `bench serve`: no load, but figures under vLLM's names from the server's landscape, with seeded noise."""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fake_vllm import VERSION

VALUES = (
    "backend base-url host port endpoint model tokenizer served-model-name dataset-name request-rate burstiness "
    "result-dir result-filename percentile-metrics metric-percentiles metadata label temperature goodput "
    "random-range-ratio random-prefix-len extra-body ready-check-timeout-sec tokenizer-mode"
)
NUMBERS = {
    "seed": 0,
    "num-prompts": 1000,
    "max-concurrency": None,
    "num-warmups": 0,
    "random-input-len": 1024,
    "random-output-len": 128,
}
SWITCHES = "save-result save-detailed ignore-eos disable-tqdm trust-remote-code append-result no-stream"


def bench(argv: list[str], does: dict[str, Any]) -> None:
    """Run the benchmark; exit 0 even if every request failed, as vLLM does."""
    parser = argparse.ArgumentParser("vllm bench serve", usage="vllm bench serve [options]", allow_abbrev=False)
    for name in VALUES.split():
        parser.add_argument(f"--{name}")
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in SWITCHES.split():
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args(argv)
    if does.get("bench") == "exit":
        print(f"Traceback (most recent call last):\nRuntimeError: the fake client is set to fail ({VERSION})")
        raise SystemExit(1)
    while does.get("bench") == "hang":
        signal.pause()
    _wait(args)
    if not str(args.result_filename).startswith("warmup"):
        hold(Path(args.result_dir or "."))
        time.sleep(does.get("bench_s", 0.05))
    figures = {**measure(args, does), **does.get("figures", {})}
    print("============ Serving Benchmark Result ============")
    print(f"Successful requests: {figures['completed']}\nFailed requests: {figures['failed']}\nFake: {VERSION}")
    if args.save_result:
        folder = Path(args.result_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / (args.result_filename or f"fake-{args.seed}.json")).write_text(json.dumps(figures))


def hold(folder: Path) -> None:
    """Wait as long as the folder of the results has a file `hold`; exit if the process that started the client ends."""
    parent = os.getppid()
    while (folder / "hold").exists():
        if os.getppid() != parent:
            raise SystemExit(1)
        time.sleep(0.02)


def measure(args: argparse.Namespace, does: dict[str, Any]) -> dict[str, Any]:
    """Return the result file's content."""
    users = args.max_concurrency or args.num_prompts
    load = {"requests": args.num_prompts, "input_len": args.random_input_len, "output_len": args.random_output_len}
    query = f"users={users}&input_len={args.random_input_len}&output_len={args.random_output_len}"
    try:
        shape = _ask(args, "GET", f"/fake/landscape?{query}")
        sent = _ask(args, "POST", "/fake/load", load)
        failed, stopped_s = sent["failed"] + does.get("requests_failed", 0), sent["stopped_s"]
    except (OSError, http.client.HTTPException) as error:
        print(f"the requests failed: {error}", file=sys.stderr)
        shape, failed, stopped_s = {}, args.num_prompts, 0.0
    completed = args.num_prompts - failed
    generator = random.Random(f"{args.seed}|{sorted(shape.items())}")
    if stopped_s:
        shape = {**shape, "stopped_s": stopped_s, "ttft_ms": shape["ttft_ms"] + 1000 * stopped_s}
    head = {
        "fake": VERSION,
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend or "openai",
        "backend": args.backend or "openai",
        "label": args.label,
        "model_id": args.model,
        "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": args.num_prompts,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": args.max_concurrency,
        "completed": completed,
        "failed": failed,
        "total_input_tokens": completed * args.random_input_len,
        "total_output_tokens": completed * args.random_output_len,
        "request_goodput": None,
    }
    return {**head, **_rates(args, completed, shape, generator, does), **_latencies(args, completed, shape, generator)}


def _rates(
    args: argparse.Namespace, completed: int, shape: dict[str, float], generator: random.Random, does: dict[str, Any]
) -> dict[str, float]:
    tokens = completed * args.random_output_len
    rate = shape.get("output_throughput", 0.0) * (1 + does.get("noise", 0.01) * generator.gauss(0, 1))
    duration = shape.get("stopped_s", 0.0) + tokens / rate if completed else 0.1
    return {
        "duration": duration,
        "request_throughput": completed / duration,
        "output_throughput": tokens / duration,
        "total_token_throughput": completed * (args.random_input_len + args.random_output_len) / duration,
    }


def _latencies(
    args: argparse.Namespace, completed: int, shape: dict[str, float], generator: random.Random
) -> dict[str, float]:
    wanted = (args.percentile_metrics or "ttft,tpot,itl").split(",")
    percentiles = [float(p) for p in (args.metric_percentiles or "99").split(",")]
    ttft = [shape["ttft_ms"] * generator.uniform(0.8, 1.0) for _ in range(completed)] or [0.0]
    tpot = [shape["tpot_ms"] * generator.uniform(0.95, 1.05) for _ in range(completed)] or [0.0]
    e2el = [first + each * (args.random_output_len - 1) for first, each in zip(ttft, tpot, strict=True)]
    result: dict[str, float] = {}
    for name, values in {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2el": e2el}.items():
        if name in wanted:
            result[f"mean_{name}_ms"] = statistics.fmean(values)
            result[f"median_{name}_ms"] = statistics.median(values)
            result[f"std_{name}_ms"] = statistics.pstdev(values)
            result.update({f"p{p:g}_{name}_ms": percentile(values, p) for p in percentiles})
    return result


def percentile(values: list[float], p: float) -> float:
    """Return the p-th percentile by linear interpolation, as numpy does."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _wait(args: argparse.Namespace) -> None:
    deadline = time.monotonic() + float(args.ready_check_timeout_sec or 0)
    while time.monotonic() < deadline:
        try:
            _ask(args, "GET", "/version")
            return
        except OSError:
            time.sleep(0.02)


def _ask(args: argparse.Namespace, method: str, path: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    url = urlsplit(args.base_url or f"http://{args.host or '127.0.0.1'}:{args.port or 8000}")
    connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=30)
    try:
        connection.request(method, path, json.dumps(data) if data is not None else None)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()
