"""Does the tuner's load generator measure the same as `vllm bench serve`?

    python -m benchmarks.client_agreement --vllm VENV/bin/vllm MODEL_FOLDER [--blocks 4] [--prompts 100]
        [--env VLLM_CPU_KVCACHE_SPACE=1] [--json FILE]

One server; `tuner server load` and `vllm bench serve` send a closed loop of ten users with random prompts of 128 tokens
and 64 tokens of output. A block has two runs of each client, in an order that favors neither (ABBA, then BAAB). Each
run has a seed of its own, so that no run hits another's prefix cache. A first run of each client is left out.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.command_line import documented_parser, environment_variables, write_json
from benchmarks.text_table import number_text, print_table

METRICS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
USERS, INPUT_TOKENS, OUTPUT_TOKENS = 10, 128, 64
TUNER, VLLM = "tuner server load", "vllm bench serve"
FIRST_SEED = 2000
READY_S = 600.0
CAPTION = (
    "tuner server load relative to vllm bench serve: the geometric mean over the blocks and its range (1: they agree), "
    "and the median of each client's runs, in tokens/s and ms"
)

Figures = Mapping[str, float]
"""Values by metric."""


class Clients:
    """Both clients, and the server that they send their requests to."""

    def __init__(self, vllm: str, model: Path, url: str, prompts: int, folder: Path) -> None:
        self._vllm, self._model, self._url = vllm, str(model), url
        self._prompts, self._folder = str(prompts), folder
        self._runs = 0
        self._workload = folder / "closed.yaml"
        load = {
            "arrivals": {"process": "closed", "users": USERS},
            "requests": prompts,
            "classes": {"all": {"input": INPUT_TOKENS, "output": OUTPUT_TOKENS}},
        }
        self._workload.write_text(json.dumps(load))

    def run(self, client: str) -> Figures:
        """Return the figures of one run of a client.

        Raises:
            SystemExit: if the client fails.
        """
        self._runs += 1
        figures = self._run_tuner() if client == TUNER else self._run_vllm()
        return {metric: figures[metric] for metric in METRICS}

    def _run_tuner(self) -> Figures:
        words = [
            sys.executable,
            "-m",
            "tuner",
            "server",
            "load",
            "--url",
            self._url,
            "--workload",
            str(self._workload),
            "--json",
        ]
        words += ["--model", self._model, "--tokenizer", self._model, "--vllm", self._vllm, "--slo", "success_rate>=0"]
        found = json.loads(_output([*words, "--seed", str(FIRST_SEED + self._runs)], self._folder))
        metrics: Figures = found["metrics"]
        return metrics

    def _run_vllm(self) -> Figures:
        words = [self._vllm, "bench", "serve", "--base-url", self._url, "--model", self._model, "--ignore-eos"]
        words += ["--dataset-name", "random", "--num-prompts", self._prompts, "--max-concurrency", str(USERS)]
        words += ["--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)]
        words += ["--seed", str(FIRST_SEED + self._runs), "--save-result", "--result-filename", "result.json"]
        _output(words, self._folder)
        figures: Figures = json.loads((self._folder / "result.json").read_text())
        return figures


def _output(words: Sequence[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def server(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Run `vllm serve` with dummy weights; yield its URL.

    Raises:
        SystemExit: if the server ends, or is not ready within `READY_S`.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [arguments.vllm, "serve", str(arguments.model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--load-format", "dummy", "--max-model-len", "1024", "--max-num-seqs", "32"]
    log, variables = folder / "server.log", {**os.environ, **environment_variables(arguments.env)}
    with log.open("wb") as file:
        process = subprocess.Popen(words, env=variables, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
        while not _is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server is not ready:\n{log.read_text()[-2000:]}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def print_agreement(blocks: Sequence[Mapping[str, Sequence[Figures]]]) -> None:
    """Print how far the clients agree."""
    rows = []
    for metric in METRICS:
        logs = {
            client: np.log([[run[metric] for run in block[client]] for block in blocks]) for client in (TUNER, VLLM)
        }
        ratios = np.exp(np.mean(logs[TUNER] - logs[VLLM], axis=1))
        spread = [np.exp(np.mean(np.log(ratios))), ratios.min(), ratios.max()]
        medians = [np.exp(np.median(logs[client])) for client in (TUNER, VLLM)]
        rows.append([metric, *(number_text(value, 3) for value in spread), *(number_text(each, 1) for each in medians)])
    print_table(f"{CAPTION}; n = {len(blocks)} blocks", ["metric", "ratio", "least", "most", TUNER, VLLM], rows)


def compare_clients() -> None:
    """Run both clients and print how far they agree."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", type=Path, help="a model folder, served with dummy weights")
    parser.add_argument("--vllm", default="vllm", help="the vllm executable [the one on PATH]")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the server")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of two runs of each client [4]")
    parser.add_argument("--prompts", type=int, default=100, help="prompts of each run [100]")
    parser.add_argument("--json", type=Path, help="a file for every run's figures")
    arguments = parser.parse_args()
    arguments.model = arguments.model.resolve()
    blocks = []
    with tempfile.TemporaryDirectory(prefix="tuner-agreement-") as name, server(arguments, Path(name)) as url:
        clients = Clients(arguments.vllm, arguments.model, url, arguments.prompts, Path(name))
        for client in (TUNER, VLLM):
            clients.run(client)
        for number in range(arguments.blocks):
            runs: dict[str, list[Figures]] = {TUNER: [], VLLM: []}
            for client in ((TUNER, VLLM, VLLM, TUNER), (VLLM, TUNER, TUNER, VLLM))[number % 2]:
                runs[client].append(clients.run(client))
            blocks.append(runs)
    print_agreement(blocks)
    write_json(arguments.json, blocks)


if __name__ == "__main__":
    compare_clients()
