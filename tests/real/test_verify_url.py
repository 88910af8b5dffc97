"""`tuner verify --url` on a real vLLM: a deployed server holds its figures, a slowed one does not; none is one line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.studies import environment
from tests.real.test_formats import READY_S, free_port, running

VERIFY_S = 300.0


@pytest.fixture
def folder(study_folder: Path, result: dict[str, Any]) -> Path:
    """The folder of a study whose defaults have three benchmarks."""
    assert result["script"] == "best_serve.sh"
    return study_folder


@contextmanager
def deployed(folder: Path, home: Path, vllm: Path, *words: str) -> Iterator[str]:
    """Start the study's script, with more arguments of the server, and yield its URL once it is healthy."""
    port = free_port()
    variables = {**environment(home), "PORT": str(port), "VLLM": str(vllm)}
    with running([str(folder / "best_serve.sh"), *words], folder, variables):
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_S
        while not healthy(url):
            assert time.monotonic() < deadline, (folder / "server.log").read_text(errors="replace")[-3000:]
            time.sleep(0.5)
        yield url


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def verify(folder: Path, home: Path, vllm: Path, url: str) -> subprocess.CompletedProcess[str]:
    words = ("verify", "--url", url, "--study", "faults", "--vllm", str(vllm))
    return subprocess.run(
        [sys.executable, "-m", "tuner.cli.main", *words],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=VERIFY_S,
        check=False,
    )


@pytest.mark.release
def test_the_figures_of_a_deployed_server_hold(folder: Path, home: Path, vllm: Path) -> None:
    with deployed(folder, home, vllm) as url:
        done = verify(folder, home, vllm, url)
        for _ in range(2):  # a busy machine may be slower than the recorded intervals
            if done.returncode == 0:
                break
            done = verify(folder, home, vllm, f"{url}/v1/")
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("output_throughput: measured ")] != []
    assert [line for line in lines if not line.endswith((": within", ": better", ": holds"))] == []
    assert "SLO success_rate>=1: measured 1: holds" in lines


@pytest.mark.release
def test_a_slowed_server_is_worse(folder: Path, home: Path, vllm: Path) -> None:
    with deployed(folder, home, vllm, "--max-num-seqs", "1") as url:
        done = verify(folder, home, vllm, url)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    worse = {line.partition(":")[0] for line in done.stdout.splitlines() if line.endswith(": WORSE")}
    assert {"output_throughput", "p99_ttft_ms"} <= worse


def test_where_nothing_listens_it_is_one_line(folder: Path, home: Path, vllm: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = verify(folder, home, vllm, url)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"tuner: --url {url!r}: no OpenAI-compatible server answers there (")
    assert done.stderr.endswith("start one\n")
