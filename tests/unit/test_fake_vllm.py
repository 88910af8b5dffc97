"""The fake has vLLM's formats and texts, a known landscape, and is always marked as fake."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.metrics import METRICS, OF_WHOLE_GPU, TRAFFIC_ONLY
from storage.records import Failure, FailureKind, Phase
from tests.fakes import install_fake_vllm
from tests.unit.processes.started import Starter, until
from tuner.processes.ports import lease_port
from tuner.processes.readiness import wait_ready

Serve = Callable[..., int]


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.close()


@pytest.fixture
def serve(starter: Starter) -> Iterator[Serve]:
    leases = []

    def run(*flags: str, **behaviour: object) -> int:
        lease = lease_port(starter.folder / "ports")
        leases.append(lease)
        program = str(install_fake_vllm(starter.folder / "bin", **behaviour))
        process = starter(program, "serve", "m", "--port", str(lease.port), *flags)
        wait_ready(process, "127.0.0.1", lease.port, "m", 20, threading.Event(), _failed)
        return lease.port

    yield run
    for lease in leases:
        lease.release()


def _failed(phase: Phase, exit_code: int | None) -> Failure:
    return Failure(FailureKind.ENGINE_CRASH, phase, "the fake did not start", exit_code=exit_code)


def _bench(starter: Starter, port: int, *flags: str, **behaviour: object) -> dict[str, Any]:
    program = str(install_fake_vllm(starter.folder / "client", **behaviour))
    command = [program, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}/v1"]
    command += ["--endpoint", "/completions", "--model", "m", "--max-concurrency", "50", "--num-prompts", "200"]
    command += ["--ignore-eos", "--random-input-len", "512", "--random-output-len", "512", "--save-result"]
    command += ["--result-dir", str(starter.folder), "--result-filename", "r.json", *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    result: dict[str, Any] = json.loads((starter.folder / "r.json").read_text())
    return result


def _ask(port: int, method: str, path: str, data: dict[str, Any] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, json.dumps(data) if data else None)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def _run(tmp_path: Path, *argv: str, **behaviour: object) -> subprocess.CompletedProcess[str]:
    program = str(install_fake_vllm(tmp_path, **behaviour))
    return subprocess.run([program, *argv], capture_output=True, text=True, timeout=30)


def test_the_version_is_marked_as_fake(tmp_path: Path) -> None:
    assert _run(tmp_path, "--version").stdout == "0.32.0+fake\n"


def test_a_landscape_value_worked_out_by_hand(starter: Starter, serve: Serve) -> None:
    # block size 32: step = 2.0 + 0.02·50 = 3 ms; 6400 batched tokens: prefill = 50·512/(10·80) = 32 ms;
    # decode = 512·3 = 1536 ms; throughput = 50/3 ms / (1 + 32/1536) = 16326.53 tok/s
    port = serve("--block-size", "32", "--max-num-batched-tokens", "6400")

    result = _bench(starter, port, "--percentile-metrics", "ttft,tpot,itl,e2el", noise=0)

    assert result["output_throughput"] == pytest.approx(16326.53, abs=0.01)
    assert result["completed"] == 200
    assert result["failed"] == 0
    assert result["total_output_tokens"] == 102_400
    assert result["duration"] == pytest.approx(102_400 / 16326.5306)
    assert 2.85 <= result["median_tpot_ms"] <= result["p99_tpot_ms"] <= 3.15
    assert 25.6 <= result["median_ttft_ms"] <= result["p99_ttft_ms"] <= 32
    assert result["fake"] == "0.32.0+fake"


def test_flags_move_the_figures_the_documented_way(starter: Starter, serve: Serve) -> None:
    best = _bench(starter, serve("--block-size", "32", "--quantization", "fp8"))
    eager = _bench(starter, serve("--block-size", "32", "--enforce-eager"))
    narrow = _bench(starter, serve("--block-size", "32", "--max-num-seqs", "8"))

    assert best["output_throughput"] > 2.5 * eager["output_throughput"] > 0
    assert best["output_throughput"] > 2.5 * narrow["output_throughput"] > 0
    assert narrow["mean_ttft_ms"] > 10 * best["mean_ttft_ms"]


def test_the_client_gives_every_metric_that_the_tuner_defines(starter: Starter, serve: Serve) -> None:
    flags = ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]

    computed = {"success_rate", "quality"}  # by the tuner
    assert set(METRICS) - TRAFFIC_ONLY - OF_WHOLE_GPU - computed <= set(_bench(starter, serve(), *flags))


def test_noise_is_seeded(starter: Starter, serve: Serve) -> None:
    port = serve()

    first, again, other = (_bench(starter, port, "--seed", seed)["output_throughput"] for seed in ("1", "1", "2"))

    assert first == again != other


def test_all_requests_failing_still_exits_with_0(starter: Starter) -> None:
    with lease_port(starter.folder) as lease:
        result = _bench(starter, lease.port)

    assert (result["completed"], result["failed"], result["output_throughput"]) == (0, 200, 0)


def test_counters_rise_with_the_load(starter: Starter, serve: Serve) -> None:
    port = serve()
    _bench(starter, port)

    _, text = _ask(port, "GET", "/metrics")

    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 102400.0\n' in text
    assert 'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 200.0\n' in text
    assert 'vllm:num_preemptions_total{engine="0",model_name="m"} 2.0\n' in text
    assert text.startswith("# a fake vLLM, 0.32.0+fake\n")


def test_a_completion_streams_its_tokens_and_usage(serve: Serve) -> None:
    request = {"model": "m", "prompt": "a b c", "max_tokens": 3, "stream": True}
    request["stream_options"] = {"include_usage": True}

    _, text = _ask(serve(), "POST", "/v1/completions", request)

    *chunks, usage = [json.loads(line[6:]) for line in text.strip().split("\n\n")[:-1]]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [" fake"] * 3
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert text.endswith("data: [DONE]\n\n")


def test_a_completion_in_one_piece(serve: Serve) -> None:
    port = serve(fail_every=2)
    request = {"model": "m", "prompt": "a", "max_tokens": 2}

    status, text = _ask(port, "POST", "/v1/completions", request)

    assert (status, json.loads(text)["choices"][0]["text"]) == (200, " fake fake")
    assert _ask(port, "POST", "/v1/completions", request)[0] == 500
    assert _ask(port, "POST", "/v1/completions", {**request, "model": "x"})[0] == 404


def test_the_log_has_the_lines_that_the_tuner_reads(starter: Starter, serve: Serve) -> None:
    serve("--gpu-memory-utilization", "0.5", "--max-model-len", "1000")

    # (16·0.5 - 2.5)·80000 = 440000
    assert "GPU KV cache size: 440,000 tokens, Maximum concurrency for 1,000 tokens per request: 440.00x" in (
        starter.output()
    )
    assert "Starting vLLM server on http://127.0.0.1:" in starter.output()


@pytest.mark.parametrize(
    ("flags", "behaviour", "code", "text"),
    [
        (["--swap-space", "4"], {}, 2, "vllm: error: unrecognized arguments: --swap-space 4"),
        (["--dtype", "int3"], {}, 2, "vllm serve: error: argument --dtype: invalid choice: 'int3'"),
        (["--max-num-seqs", "x"], {}, 2, "argument --max-num-seqs: invalid int value: 'x'"),
        (
            ["--max-num-seqs", "512", "--max_num_batched_tokens=128"],
            {},
            1,
            "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (512).",
        ),
        (["--gpu-memory-utilization", "0.98"], {}, 1, "torch.OutOfMemoryError: CUDA out of memory."),
        (["--gpu-memory-utilization", "0.18"], {}, 1, "To serve at least one request with the model's max seq len"),
        ([], {"fail": "kv"}, 1, "To serve at least one request with the model's max seq len (32768)"),
        ([], {"fail": "crash"}, 1, "Engine core initialization failed. See root cause above."),
        (
            ["--block-size", "64"],
            {"fail_when": [{"when": {"block_size": "64"}, "fail": "oom"}]},
            1,
            "torch.OutOfMemoryError",
        ),
    ],
)
def test_starts_fail_as_vllms_do(
    tmp_path: Path, flags: list[str], behaviour: dict[str, object], code: int, text: str
) -> None:
    done = _run(tmp_path, "serve", "m", *flags, **behaviour)

    assert done.returncode == code
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize(("crash", "text"), [(None, "encountered a fatal error"), ("oom", "CUDA out of memory")])
def test_the_engine_dies_under_load(starter: Starter, serve: Serve, crash: str | None, text: str) -> None:
    port = serve(crash_after=100, crash=crash)

    result = _bench(starter, port)

    assert (result["completed"], result["failed"]) == (0, 200)
    until(lambda: text in starter.output())


def test_a_client_that_fails(tmp_path: Path) -> None:
    done = _run(tmp_path, "bench", "serve", "--save-result", "--result-dir", str(tmp_path / "r"), bench="exit")

    assert done.returncode == 1
    assert not (tmp_path / "r").exists()


def test_a_client_that_hangs(tmp_path: Path) -> None:
    program = str(install_fake_vllm(tmp_path, bench="hang"))
    with subprocess.Popen([program, "bench", "serve"], stdout=subprocess.DEVNULL) as client:
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.3)
        client.kill()
    assert client.returncode == -signal.SIGKILL
