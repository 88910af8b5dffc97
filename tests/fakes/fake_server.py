"""The fake's HTTP server: health, models, completions, metrics, and the landscape for its own benchmark client."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fake_landscape import kv_tokens, landscape, number
from fake_vllm import VERSION, say

LABELS = 'engine="0",model_name="{model}"'


class State:
    """The server's flags, behaviour and counters."""

    def __init__(self, flags: dict[str, Any], does: dict[str, Any]) -> None:
        self.flags = flags
        self.does = does
        self.model = str(does.get("serves") or flags.get("served_model_name") or flags.get("model_tag"))
        self.lock = threading.Lock()
        self.requests = 0
        self.succeeded = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.running = 0

    def admit(self, count: int, prompt_tokens: int, generated_tokens: int) -> int:
        """Count requests and return how many of them fail; the engine dies here if the behaviour says so."""
        with self.lock:
            before, self.requests = self.requests, self.requests + count
            crash_after = self.does.get("crash_after")
            if crash_after is not None and self.requests >= crash_after:
                crash(self.does.get("crash"))
            every = self.does.get("fail_every")
            failed = self.requests // every - before // every if every else 0
            self.succeeded += count - failed
            self.prompt_tokens += prompt_tokens * (count - failed)
            self.generated_tokens += generated_tokens * (count - failed)
            return failed

    def compile(self, requests: int) -> float:
        """Return the seconds that the kernel of a run with so many requests takes to compile; 0 if a cache has it."""
        seconds: float | None = self.does.get("compile_s")
        if seconds is None:
            return 0.0
        kernel = Path(os.environ["TRITON_CACHE_DIR"], f"batch-{requests}")
        if kernel.exists():
            return 0.0
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.touch()
        return seconds

    def metrics(self) -> str:
        """Return the counters under vLLM's names."""
        labels = LABELS.format(model=self.model)
        values: dict[str, float] = {
            "vllm:num_requests_running": self.running,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0.25,
            "vllm:num_preemptions_total": self.requests // 100,
            "vllm:prefix_cache_queries_total": self.prompt_tokens,
            "vllm:prefix_cache_hits_total": self.prompt_tokens // 8,
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.generated_tokens,
            "vllm:request_queue_time_seconds_sum": self.succeeded * 0.002,
            "vllm:request_queue_time_seconds_count": self.succeeded,
            "vllm:iteration_tokens_total_count": self.generated_tokens,
        }
        if self.flags.get("speculative_config"):
            values["vllm:spec_decode_num_drafts_total"] = self.generated_tokens // 4
            values["vllm:spec_decode_num_draft_tokens_total"] = self.generated_tokens
            values["vllm:spec_decode_num_accepted_tokens_total"] = self.generated_tokens * 3 // 4
        lines = [f"{name}{{{labels}}} {float(value)}" for name, value in values.items()]
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(self.succeeded)}')
        block = int(number(self.flags, "block_size"))
        blocks = kv_tokens(self.flags) // block
        lines.append(f'vllm:cache_config_info{{block_size="{block}",engine="0",num_gpu_blocks="{blocks}"}} 1.0')
        return f"# a fake vLLM, {VERSION}\n" + "\n".join(lines) + "\n"


def slowed(shape: dict[str, float], factor: float) -> dict[str, float]:
    """Return the landscape of a server that takes `factor` times as long for everything."""
    return {name: value / factor if name == "output_throughput" else value * factor for name, value in shape.items()}


def crash(kind: str | None) -> None:
    """Die as vLLM does when its engine dies under load."""
    say("EngineCore", "core.py:1512", "EngineCore encountered a fatal error.", "ERROR")
    cause = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
        if kind == "oom"
        else ("RuntimeError: the fake engine is set to die under load")
    )
    say("EngineCore", "core.py:1512", f"Traceback (most recent call last):\n{cause}", "ERROR")
    say(
        "APIServer",
        "async_llm.py:906",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
        "See stack trace (above) for the root cause.",
        "ERROR",
    )
    os._exit(1)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    state: State
    server_version = f"vllm/{VERSION}"
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        print(f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {format % args}", flush=True)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self._refuses(url.path):
            self._json({"error": "Unauthorized"}, 401)
        elif url.path == "/health":
            self._answer(200, b"")
        elif url.path == "/version":
            self._json({"version": VERSION})
        elif url.path == "/v1/models":
            self._json({"object": "list", "data": [{"id": self.state.model, "object": "model", "owned_by": "fake"}]})
        elif url.path == "/metrics":
            self._answer(200, self.state.metrics().encode(), "text/plain; version=0.0.4")
        elif url.path == "/fake/landscape":
            numbers = {name: int(value) for name, value in parse_qsl(url.query)}
            self._json(slowed(landscape(self.state.flags, **numbers), self.state.does.get("slower", 1.0)))
        else:
            self._json({"detail": "Not Found"}, 404)

    def _refuses(self, path: str) -> bool:
        """Return whether a request lacks the server's key."""
        required = self.state.does.get("requires_key")
        if not required or not (path.startswith("/v1") or (required == "health" and path == "/health")):
            return False
        return self.headers.get("Authorization") != f"Bearer {os.environ.get('VLLM_API_KEY', '')}"

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self._refuses(self.path):
            self._json({"error": "Unauthorized"}, 401)
        elif self.path == "/fake/load":
            failed = self.state.admit(data["requests"], data["input_len"], data["output_len"])
            self._json({"failed": failed, "stopped_s": self.state.compile(data["requests"])})
        elif self.path == "/v1/completions":
            self._complete(data)
        else:
            self._json({"detail": "Not Found"}, 404)

    def _complete(self, data: dict[str, Any]) -> None:
        if data.get("model") not in (None, self.state.model):
            self._json({"error": {"message": f"The model `{data['model']}` does not exist.", "code": 404}}, 404)
            return
        tokens = int(data.get("max_tokens") or 16)
        prompt = len(str(data.get("prompt", "")).split())
        if self.state.admit(1, prompt, tokens):
            self._json({"error": {"message": "the fake is set to fail this request", "code": 500}}, 500)
            return
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if data.get("stream"):
            self._stream(data, tokens, usage)
            return
        time.sleep(tokens * self.state.does.get("token_s", 0.0))
        self._json({**self._chunk(" fake" * tokens, "length"), "usage": usage})

    def _stream(self, data: dict[str, Any], tokens: int, usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for index in range(tokens):
            time.sleep(self.state.does.get("token_s", 0.0))
            self._event(self._chunk(" fake", "length" if index == tokens - 1 else None))
        if (data.get("stream_options") or {}).get("include_usage"):
            self._event({**self._chunk("", None), "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {
            "id": "cmpl-fake",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.state.model,
            "system_fingerprint": VERSION,
            "choices": [choice],
        }

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _json(self, data: dict[str, Any], status: int = 200) -> None:
        self._answer(status, json.dumps(data).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """One thread for each connection; the threads do not delay the end."""

    daemon_threads = True
    request_queue_size = 256

    def server_bind(self) -> None:
        """Bind without the name look-up of `HTTPServer`, and with SO_REUSEADDR, as vLLM does."""
        TCPServer.server_bind(self)


def die_with(core: int) -> None:
    """End the server if its engine is killed, in vLLM's words and with its exit code, 0."""
    _, status = os.waitpid(core, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        text = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)."
        say("APIServer", "core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly", "WARNING")
        say("APIServer", "async_llm.py:906", text, "ERROR")
        os._exit(0)


def run(flags: dict[str, Any], does: dict[str, Any], core: int) -> None:
    """Serve until SIGTERM or SIGINT; the child is left behind, as a crashed vLLM leaves it."""
    host, port = flags.get("host") or "127.0.0.1", int(flags.get("port") or 8000)
    Handler.state = State(flags, does)
    server = Server((host, port), Handler)

    def leave(number: int, frame: object) -> None:
        say("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        time.sleep(does.get("sigterm_s", 1.0) if does.get("sigterm") == "slow" else 0)
        sys.stdout.flush()
        os._exit(0)

    if does.get("sigterm") != "ignore":
        signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    threading.Thread(target=die_with, args=(core,), daemon=True).start()
    say("APIServer", "entry.py:140", f"Starting vLLM server on http://{host}:{port}")
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever(poll_interval=0.05)
