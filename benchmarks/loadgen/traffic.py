"""Traffic against a real vLLM: a mix that it can hold and one that it cannot, and do our figures agree with vLLM's?

    python -m benchmarks.loadgen.traffic --vllm VENV/bin/vllm MODEL_FOLDER [--low 8] [--high 120] [--blocks 5]
        [--env VLLM_CPU_KVCACHE_SPACE=1] [--agreement-only]

Two servers, prefix caching on and off, get the mix at both rates: share within SLO by class, completion, corrected and
client's TTFT, prefix hits. On the first, `vllm bench serve` and our generator then send the same prompts at the same
times (the client's own, replayed), the prefix cache emptied before each: blocks of two runs each, in an order that
favours neither, after one that is thrown away. Printed are the blocks' ratios with their interval of two standard
errors, and what two runs of one client differ by.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from storage.records import Repeat, TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.vllm.bench import read_result
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.environment import base_environment, own_environment
from tuner.engines.vllm.executable import find_executable, installation
from tuner.engines.vllm.server import VllmServer
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.traffic_load import LoadFiles, make_requests, read_load, start_plan
from tuner.loadgen.plan import LoadPlan, PlannedRequest
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic

CLASSES = {
    "siso": {"input": {"lognormal": {"mean": 40, "cv": 0.4, "max": 128}}, "output": 16},
    "silo": {"input": 40, "output": {"lognormal": {"mean": 64, "cv": 0.4, "max": 128}}},
    "liso": {"input": 64, "output": 16, "prefix": {"tokens": 512, "documents": 4}},
    "lilo": {"input": 64, "output": 64, "prefix": {"tokens": 512, "documents": 4}},
}
SLO = {
    "siso": {"p95_ttft_ms": 1000},
    "silo": {"p95_itl_ms": 250},
    "liso": {"p95_ttft_ms": 1000},
    "lilo": {"p95_itl_ms": 250},
}
AGREE = (
    "output_throughput",
    "mean_ttft_ms",
    "p50_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "p50_e2el_ms",
)
ORDERS = (("theirs", "ours", "ours", "theirs"), ("ours", "theirs", "theirs", "ours"))
CLIENT_S = 600.0
NEVER = threading.Event()


def mix(rate: float, requests: int) -> Traffic:
    """Return the mix at a rate; a request is given up 5 s after it was due."""
    return Traffic.model_validate(
        {
            "arrivals": {"process": "poisson", "rate": rate},
            "requests": requests,
            "max_in_flight": 32,
            "timeout_s": 5,
            "classes": CLASSES,
            "slo": SLO,
        }
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder, served with dummy weights")
    parser.add_argument("--vllm", help="the vllm executable")
    parser.add_argument("--low", type=float, default=8.0, help="requests/s that the server can hold")
    parser.add_argument("--high", type=float, default=120.0, help="requests/s that it cannot hold")
    parser.add_argument("--seconds", type=float, default=25.0, help="duration of each load")
    parser.add_argument("--blocks", type=int, default=5, help="of two runs of each client")
    parser.add_argument(
        "--slow-ms", default="40", help="a bound of the server's TTFT histogram; requests above it are told"
    )
    parser.add_argument("--agreement-only", action="store_true", help="only the comparison with vLLM's client")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the server")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    return parser.parse_args()


class Bench:
    """The engine, the tools and the folder of one run of this benchmark."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.model = ModelRef(*[str(arguments.model.resolve())] * 3)
        home = Path(os.environ.get("TUNER_HOME", folder / "home"))
        executable = find_executable(arguments.vllm)
        self.engine = VllmEngine(EngineSettings("vllm", str(executable), home))
        self.tools = Toolbox(installation(executable, home), home, base_environment(os.environ))

    def server(self, name: str, *flags: str) -> VllmServer:
        """Start a server and wait until it is warm."""
        environment = {"VLLM_SERVER_DEV_MODE": "1", **dict(pair.split("=", 1) for pair in self.arguments.env)}
        base = ("--load-format", "dummy", "--max-model-len", "1024", "--generation-config", "vllm")
        launch = LaunchSpec(self.model, flags, base, environment)
        load = mix(self.arguments.low, 20)
        spec = TrialSpec(name, 0, 0, 1, TrialKind.SEARCH, {}, launch, load, 1, self.folder / name, Limits())
        server = self.engine.launch(spec, spec.limits)
        server.wait_ready(NEVER)
        server.warm_up(load, NEVER)
        return server

    def close(self) -> None:
        """End what runs."""
        self.tools.close()
        self.engine.close()

    def block(self, server: VllmServer, number: int) -> dict[str, list[Repeat]]:
        """Have both clients send the same prompts at the same times, twice each, in an order that favours neither.

        A first run, which is slower whoever sends it, is thrown away.
        """
        traffic = mix(self.arguments.low, round(self.arguments.low * self.arguments.seconds))
        files = LoadFiles(self.folder, f"block-{number}")
        requests = make_requests(self.tools, traffic, 5000 + number, files, self.model.tokenizer)
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text(
            "".join(json.dumps({"prompt": r.prompt, "output_tokens": r.max_tokens}) + "\n" for r in requests)
        )
        times = self.client(server, prompts, len(requests), number)[1]
        timed = [replace(request, at_s=at) for request, at in zip(requests, times, strict=True)]
        found: dict[str, list[Repeat]] = {"theirs": [], "ours": []}
        for who in ORDERS[number % 2]:
            slow = slow_starts(server.port, float(self.arguments.slow_ms) / 1000)
            if who == "theirs":
                repeat = self.client(server, prompts, len(requests), number)[0]
            else:
                repeat = self.ours(server, traffic, timed, number, files)
            slow = slow_starts(server.port, float(self.arguments.slow_ms) / 1000) - slow
            found[who].append(repeat)
            figures = ", ".join(f"{name} {shown(repeat.metrics[name])}" for name in AGREE)
            print(f"block {number}, {who}: {figures}; slow by the server's histogram {slow}", flush=True)
        return found

    def ours(
        self, server: VllmServer, traffic: Traffic, timed: list[PlannedRequest], number: int, files: LoadFiles
    ) -> Repeat:
        """Have our generator send the prompts at the given times; return its figures."""
        empty_cache(server.port)
        plan = LoadPlan(f"http://127.0.0.1:{server.port}/v1/completions", self.model.name, None, None, 300, CLIENT_S)
        job = start_plan(plan, timed, files)
        if not job.wait(CLIENT_S):
            job.cancel()
        return read_load(traffic, number, files)[0]

    def client(self, server: VllmServer, prompts: Path, count: int, number: int) -> tuple[Repeat, list[float]]:
        """Run `vllm bench serve` on the prompts; return its figures and when it sent each request."""
        empty_cache(server.port)
        result = self.folder / f"client-{number}.json"
        words = [
            *("bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{server.port}"),
            *("--endpoint", "/v1/completions", "--model", self.model.name, "--dataset-name", "custom"),
            *("--dataset-path", str(prompts), "--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle"),
            *("--num-prompts", str(count), "--request-rate", str(self.arguments.low), "--ignore-eos", "--seed"),
            *(str(number), "--save-result", "--save-detailed", "--result-dir", str(self.folder), "--result-filename"),
            *(result.name, "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"),
        ]
        environment = {**base_environment(os.environ), **own_environment(self.folder, None)}
        job = self.tools.start(words, environment, self.folder / f"client-{number}.log", self.folder)
        if not job.wait(CLIENT_S) or job.exit_code != 0:
            job.cancel()
            raise SystemExit((self.folder / f"client-{number}.log").read_text()[-2000:])
        sent = json.loads(result.read_text())["start_times"]
        load = ClosedLoop(num_prompts=count)
        return read_result(result, load, number, number), [at - min(sent) for at in sent]


def slow_starts(port: int, bound_s: float) -> int:
    """Return how many requests had a TTFT above a bound so far, by the server's own histogram."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    counts = dict(re.findall(r'vllm:time_to_first_token_seconds_bucket{[^}]*le="([^"]+)"[^}]*} ([\d.e+]+)', text))
    if str(bound_s) not in counts:
        raise SystemExit(f"--slow-ms {1000 * bound_s:g} is no bound of the server's histogram ({', '.join(counts)} s)")
    return round(float(counts["+Inf"]) - float(counts[str(bound_s)]))


def empty_cache(port: int) -> None:
    """Empty the server's prefix cache."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/reset_prefix_cache")
    if connection.getresponse().status != 200:
        raise SystemExit("the server does not empty its prefix cache")
    connection.close()


def shown(value: float | None) -> str:
    """Return a figure, or a dash."""
    return "–" if value is None else f"{value:.4g}"


def both_rates(bench: Bench, server: VllmServer, name: str) -> dict[str, object]:
    """Send the mix at both rates and print what came of it."""
    found: dict[str, object] = {}
    for index, rate in enumerate((bench.arguments.low, bench.arguments.high)):
        repeat = server.benchmark(mix(rate, round(rate * bench.arguments.seconds)), index, NEVER)
        m = repeat.metrics
        hits = server.facts().prefix_hit_rate if index == 0 else None
        print(f"{name}, {rate:g} requests/s: {repeat.completed} of {repeat.offered} completed; within SLO: ", end="")
        print(", ".join(f"{kind} {shown(m[f'{kind}.goodput_share'])}" for kind in CLASSES))
        print(
            f"  TTFT p50 {shown(m['p50_ttft_ms'])} ms, p99 {shown(m['p99_ttft_ms'])} ms; from sending p50 "
            f"{shown(m['client.p50_ttft_ms'])} ms, p99 {shown(m['client.p99_ttft_ms'])} ms; "
            f"liso p50 {shown(m['liso.p50_ttft_ms'])} ms; prefix hits {shown(hits)}"
        )
        found[f"{rate:g}"] = {"offered": repeat.offered, "completed": repeat.completed, "prefix_hits": hits, **m}
    return found


def agreement(blocks: list[dict[str, list[Repeat]]]) -> dict[str, dict[str, list[float]]]:
    """Print and return the ratios of ours to theirs, and of two runs of one client as a control."""
    ratios: dict[str, dict[str, list[float]]] = {}
    print(f"{len(blocks)} blocks; ours / vllm bench serve (geometric means of two), one client's larger / smaller run")
    for name in AGREE:
        theirs, ours = (
            np.array([[r.metrics[name] for r in b[who]] for b in blocks], float) for who in ("theirs", "ours")
        )
        logs = np.log(ours).mean(axis=1) - np.log(theirs).mean(axis=1)
        again = np.abs(np.diff(np.log(np.concatenate([theirs, ours])), axis=1))[:, 0]
        ratios[name] = {"ours": list(np.exp(logs)), "same": list(np.exp(again))}
        half = 2 * float(np.std(logs, ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else float("nan")
        middle = float(np.mean(logs))
        interval = f"[{np.exp(middle - half):.3f}, {np.exp(middle + half):.3f}]"
        each = " ".join(f"{ratio:.3f}" for ratio in np.exp(logs))
        print(f"  {name:<18}{np.exp(middle):.3f} {interval} each {each}; same client x{np.exp(np.median(again)):.3f}")
    return ratios


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure and print."""
    bench = Bench(arguments, folder)
    try:
        server = bench.server("on")
        found: dict[str, object] = {}
        if not arguments.agreement_only:
            found["prefix caching on"] = both_rates(bench, server, "prefix caching on")
            empty_cache(server.port)
        found["ratios"] = agreement([bench.block(server, number) for number in range(arguments.blocks)])
        server.stop()
        if arguments.agreement_only:
            return found
        server = bench.server("off", "--no-enable-prefix-caching")
        found["prefix caching off"] = both_rates(bench, server, "prefix caching off")
        server.stop()
        return found
    finally:
        bench.close()


def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="tuner-traffic-") as name:
        found = measure(arguments, Path(name))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
