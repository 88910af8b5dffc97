"""A fake of `trtllm-serve serve`: texts, endpoints and metrics of TensorRT-LLM's sources, and no model.

It ends as the sources say: an error of the command line is click's, the process that holds the model logs its
traceback, and the server then raises an error of its own. A share of memory of 0.01 has no room for the KV cache, and
`--max_beam_width 9` is a death in silence. A prompt of more than `--max_num_tokens` tokens is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import yaml

from ..llmapi.llm_args import TorchLlmArgs

sys.path.insert(0, str(Path(__file__).parents[3]))
import streaming_server as streams

KV_TOKENS = 4096
_NO_CACHE = "AssertionError: Impossible to fit in any sequence in kvCache"


def say(text: str, level: str = "I") -> None:
    """Print a line of the log."""
    print(f"[{datetime.now():%m/%d/%Y-%H:%M:%S}] [TRT-LLM] [{level}] {text}", file=sys.stderr, flush=True)


def die(error: str) -> None:
    """End as a server whose worker failed."""
    frames = 'Traceback (most recent call last):\n  File "worker.py", line 1, in worker_main\n    worker = worker_cls('
    say(f"Executor worker initialization error: {frames}\n{error}\n", "E")
    raise RuntimeError("Executor worker returned error")


class Server(streams.Server):  # type: ignore[misc]  # mypy cannot find modules beside the folder
    """Answers TensorRT-LLM's endpoints."""

    def __init__(self, model: str, max_num_tokens: int) -> None:
        known = {"first_ms": 2.0, "token_ms": 1.0, "faults": "{}", "missing": [], "slots": 2**20}
        folder = Path(model)
        super().__init__(argparse.Namespace(**known, model=folder.name if folder.is_dir() else model), None)
        self.max_num_tokens = max_num_tokens
        self.requests = 0

    async def reply(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one request."""
        if path == "/health":
            streams.send(writer, 200)
        elif path == "/prometheus/metrics":
            streams.send(writer, 200, self.metrics())
        elif path == "/v1/models":
            model = {"id": self.model, "object": "model", "owned_by": "tensorrt_llm"}
            streams.respond(writer, 200, {"object": "list", "data": [model]})
        elif path == "/v1/completions":
            await self.answer(body, writer)
        else:
            streams.respond(writer, 404, {"detail": "Not Found"})
        return True

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer one completion, or refuse it for its length."""
        length = len(body["prompt"])
        if length > self.max_num_tokens:
            limit = (
                f"The sum of prompt length ({length}.0), query length (0) should not exceed max_num_tokens "
                f"({self.max_num_tokens})"
            )
            streams.refuse(writer, limit)
            return
        self.requests += 1
        await self.complete(body, writer)

    def metrics(self) -> str:
        """Return the page; what was never set is not on it."""
        if not self.requests:
            return ""
        labels = 'engine_type="undefined",model_name="undefined"'
        gauges = {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_utilization": 0.25}
        counters = {"request_queue_time_seconds_sum": 0.5 * self.requests}
        counters["request_queue_time_seconds_count"] = self.requests
        counters["kv_cache_missed_blocks_total"] = 2 * self.requests
        values = {**gauges, **counters}
        return "".join(f"trtllm_{name}{{{labels}}} {float(value)}\n" for name, value in values.items())


@click.group()
def main() -> None:
    """Run one of the commands."""


@main.command("serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=click.Choice(["pytorch", "tensorrt", "_autodeploy"]), default="pytorch")
@click.option("--max_beam_width", type=int, default=1)
@click.option("--max_batch_size", type=int, default=2048)
@click.option("--max_num_tokens", type=int, default=8192)
@click.option("--max_seq_len", type=int, default=None)
@click.option("--num_postprocess_workers", type=int, default=0)
@click.option("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction", type=float, default=0.9)
@click.option("--enable_chunked_prefill", is_flag=True, default=False)
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str, default=None)
def serve(model: str, host: str, port: int, extra_llm_api_options: str, **flags: Any) -> None:
    """Serve a model."""
    options = TorchLlmArgs(**yaml.safe_load(Path(extra_llm_api_options).read_text(encoding="utf-8")))
    assert options.return_perf_metrics, "the fake needs a page of metrics"
    with socket.socket() as taken:
        try:
            taken.bind((host, port))
        except OSError as error:
            raise RuntimeError(f"Failed to bind socket to {host}:{port}: {error}") from None
    start(options, flags["max_beam_width"])
    asyncio.run(listen(host, port, Server(model, flags["max_num_tokens"])))


def start(options: TorchLlmArgs, beams: int) -> None:
    """Log the start of a server, or end as one that cannot start."""
    if beams == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    fraction = options.kv_cache_config.free_gpu_memory_fraction
    loaded = "Memory used after loading model weights (inside torch) in memory usage profiling"
    say(f"{loaded}: 0.98 GiB")
    if fraction <= 0.01:
        die(_NO_CACHE)
    for size, tokens in ((0.01, 1024), (0.04, KV_TOKENS)):
        text = f"[MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache ({tokens})."
        print(f"[TensorRT-LLM][INFO] {text}", flush=True)


async def listen(host: str, port: int, server: Server) -> None:
    """Serve until the process is ended."""
    listening = await asyncio.start_server(server.connected, host, port, limit=2**22)
    print("INFO:     Application startup complete.", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    main()
