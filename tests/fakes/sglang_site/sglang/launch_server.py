"""A fake of `python -m sglang.launch_server`: SGLang's log lines, endpoints and metrics, and no model.

It ends as SGLang does: its scheduler logs a traceback, and the server kills itself by SIGKILL. A very small
`--mem-fraction-static` leaves no room for the KV cache, `--cuda-graph-max-bs-decode 4096` fails the capture,
`--schedule-conservativeness` below 0 is refused, and `--random-seed 9` is a death in silence. A request with
`--context-length` tokens or more is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from .srt.server_args import ServerArgs

sys.path.insert(0, str(Path(__file__).parents[2]))
import streaming_server as streams

KV_TOKENS = 4096
CONTEXT = 32768
_SIGQUIT = "Received sigquit from a child process. It usually means the child failed."
_NO_ROOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
_NO_GRAPH = (
    "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    "of 79.19 GiB of which 1.06 GiB is free.\nPossible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
)


def say(text: str, process: str = "") -> None:
    """Print a line of the log."""
    print(f"[{datetime.now():%Y-%m-%d %H:%M:%S}{process}] {text}", file=sys.stderr, flush=True)


def die(error: str | None) -> None:
    """End as a server whose scheduler failed; without an error, as one that was killed."""
    if error is not None:
        frames = 'Traceback (most recent call last):\n  File "scheduler.py", line 1, in run_scheduler_process'
        say(f"Scheduler hit an exception: {frames}\n    scheduler = Scheduler(server_args, port_args)\n{error}\n")
    say(_SIGQUIT)
    os.kill(os.getpid(), signal.SIGKILL)


class Server(streams.Server):  # type: ignore[misc]  # mypy cannot find modules beside the folder
    """Answers SGLang's endpoints."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        known = {"first_ms": 2.0, "token_ms": 1.0, "faults": "{}", "missing": [], "slots": 2**20}
        name = arguments.served_model_name or arguments.model_path
        super().__init__(argparse.Namespace(**known, model=name), None)
        self.context: int = arguments.context_length or CONTEXT
        self.prompt_tokens = self.requests = 0

    async def reply(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one request."""
        if path == "/health":
            await asyncio.sleep(1)  # SGLang checks once a second whether its token has come
            streams.send(writer, 200)
        elif path == "/metrics":
            streams.send(writer, 200, self.metrics())
        elif path == "/tokenize":
            streams.respond(writer, 200, {"tokens": [ord(letter) % 7 for letter in body["prompt"]]})
        elif path == "/v1/models":
            model = {"id": self.model, "object": "model", "owned_by": "sglang", "root": self.model}
            streams.respond(writer, 200, {"object": "list", "data": [model]})
        else:
            await self.answer(body, writer)
        return True

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer one completion, or refuse it for its length."""
        prompt = body["prompt"]
        length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        if length >= self.context:
            limit = f"The input ({length} tokens) is longer than the model's context length ({self.context} tokens)."
            streams.refuse(writer, limit)
            return
        self.requests += 1
        self.prompt_tokens += length
        await self.complete(body, writer)

    def metrics(self) -> str:
        """Return the page; counters that were never raised are not on it."""
        labels = f'engine_type="unified",model_name="{self.model}",pp_rank="0",tp_rank="0"'
        gauges = {"num_running_reqs": 0, "num_queue_reqs": 0, "token_usage": 0.25, "cache_hit_rate": 0.0}
        counters = {"prompt_tokens_total": self.prompt_tokens, "queue_time_seconds_sum": 0.5 * self.requests}
        counters["queue_time_seconds_count"] = self.requests
        values = {**gauges, **(counters if self.requests else {})}
        return "".join(f"sglang:{name}{{{labels}}} {float(value)}\n" for name, value in values.items())


def start(arguments: argparse.Namespace) -> None:
    """Log the start of a server, or end as one that cannot start."""
    say(f"server_args=ServerArgs(model_path={arguments.model_path!r}, port={arguments.port}, attention_backend=None)")
    if arguments.schedule_conservativeness < 0:
        raise AssertionError("schedule_conservativeness must be non-negative")
    say("Attention backend not specified. Use fa3 backend by default.")
    if arguments.random_seed == 9:
        die(None)
    say("Load weight end. elapsed=0.41 s, type=Qwen2ForCausalLM, avail mem=77.50 GB, mem usage=0.98 GB.")
    if arguments.mem_fraction_static is not None and arguments.mem_fraction_static < 0.05:
        die(f"{_NO_ROOM}mem_fraction_static={arguments.mem_fraction_static}")
    say(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {KV_TOKENS}, K size: 0.02 GB, V size: 0.02 GB")
    if arguments.cuda_graph_max_bs_decode == 4096:
        die(_NO_GRAPH)
    sizes = "bs=[1, 2, 4, 8], elapsed=1.25 s, mem usage=0.30 GB, avail mem=76.00 GB."
    say(f"Capture target decode CUDA graph end. {sizes}")
    tokens = f"max_total_num_tokens={KV_TOKENS}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    running = arguments.max_running_requests or 2048
    context = arguments.context_length or CONTEXT
    say(f"{tokens}max_running_requests={running}, context_len={context}, available_gpu_mem=76.00 GB")


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    server = Server(arguments)
    try:
        listening = await asyncio.start_server(server.connected, arguments.host, arguments.port, limit=2**22)
    except OSError as error:
        address = f"('{arguments.host}', {arguments.port})"
        print(f"ERROR:    [Errno 98] error while attempting to bind on address {address}: {error.strerror}", flush=True)
        die(None)
        return
    say("The server is fired up and ready to roll!")
    await listening.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    arguments = parser.parse_args()
    start(arguments)
    asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
