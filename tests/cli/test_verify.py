"""`tuner verify` on the fake vLLM for a closed loop, and on a fake streaming server for traffic."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from records.trials import Provenance, Repeat, StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage import open_store
from tests.cli.command import run_here
from tests.cli.conftest import inline
from tests.fakes import install_fake_vllm
from tests.real.tiny_model import make_tokenizer
from tests.unit.loadgen.loads import Fake
from tuner.errors import SettingError
from tuner.processes.ports import port_answers
from tuner.use_cases import load as load_run
from tuner.use_cases import optimize as optimize_run
from tuner.workloads.traffic import load_traffic

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY_S = 60.0
TRAFFIC = """
arrivals: {process: constant, rate: 20}
requests: 12
classes:
  short: {input: 20, output: 4}
slo:
  short: {p95_ttft_ms: 60000}
"""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_fake_vllm(tmp_path_factory.mktemp("bin"), noise=0.001)


@pytest.fixture(scope="module")
def study(home: Path, model: Path, fake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that ended."""
    folder = tmp_path_factory.mktemp("study")
    load = ("--users", "10", "--prompts", "20", "--input-len", "128", "--output-len", "64", "--confirm-rounds", "0")
    start = ("optimize", "--vllm", str(fake), "--model", str(model), "--space", "speculation-cpu", "--trials", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "_executor", inline)
        printed = run_here(folder, *start, *load, "--plain", "--", "--max-model-len", "1024")
    assert printed.code == 0, printed.err
    return folder


@pytest.fixture(scope="module")
def deployed(study: Path, fake: Path) -> Iterator[str]:
    """The URL of the winner's server, which the script started."""
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "VLLM": str(fake)}
    with (study / "server.log").open("wb") as log:
        script = study / "best_serve.sh"
        process = subprocess.Popen([script], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S
        while not port_answers("127.0.0.1", port):
            assert time.monotonic() < deadline, (study / "server.log").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_figures_of_a_deployed_server_hold(study: Path, deployed: str, fake: Path) -> None:
    printed = run_here(study, "verify", "--url", deployed, "--vllm", str(fake))
    assert (printed.code, printed.err) == (0, ""), printed.out
    lines = printed.out.splitlines()
    assert "output_throughput: measured " in printed.out
    assert [line for line in lines if not line.endswith((": within", ": better", ": holds"))] == []
    assert "SLO success_rate>=1: measured 1: holds" in lines


def test_a_server_that_is_worse_is_found(study: Path, deployed: str, tmp_path: Path) -> None:
    slow = install_fake_vllm(tmp_path / "bin", figures={"output_throughput": 1.0})
    printed = run_here(study, "verify", "--url", deployed, "--vllm", str(slow))
    assert printed.code == 1, printed.err
    line = next(line for line in printed.out.splitlines() if line.startswith("output_throughput: measured 1, "))
    assert line.endswith(": WORSE")


def test_it_says_why_it_could_not_run(study: Path, deployed: str, tmp_path: Path) -> None:
    broken = install_fake_vllm(tmp_path / "bin", bench="exit")
    for argv, part in (
        (["--url", deployed, "--vllm", str(broken)], "the benchmark ended with 1: RuntimeError: the fake client"),
        (["--url", deployed, "--model", "other"], "--model 'other': the server at "),
        (["--url", f"http://127.0.0.1:{free_port()}"], "no OpenAI-compatible server answers there"),
        (["--trial", "99"], "--trial 99"),
    ):
        printed = run_here(study, "verify", *argv)
        assert (printed.code, printed.out, len(printed.err.splitlines())) == (2, "", 1), printed.err
        assert part in printed.err


def no_vllm(given: str | None) -> Path:
    raise SettingError("vllm", given, "no vLLM found")


def stored(folder: Path, model: str, tokenizer: Path, ttft_ms: float) -> None:
    """Write a study of traffic whose only trial measured this p99 TTFT."""
    (folder / "traffic.yaml").write_text(TRAFFIC)
    workload = load_traffic(folder / "traffic.yaml").model_dump(mode="json")
    premise = {
        "model": {"name": model, "tokenizer": str(tokenizer)},
        "workload": workload,
        "objectives": ["p99_ttft_ms"],
        "slos": ["short.p95_ttft_ms<60000", "success_rate>=1"],
        "engine": {"name": "vllm", "version": "0.32.0"},
    }
    metrics = {"p99_ttft_ms": ttft_ms, "success_rate": 1.0}
    repeats = (Repeat(0, 0, 12, 12, 0, 1.0, metrics),)
    argv = ("vllm", "serve", model)
    outcome = TrialOutcome(NOW, NOW, Provenance.SIMULATED, "w", "cpu", {}, "", argv=argv, repeats=repeats)
    (folder / "tuner_study").mkdir()
    with closing(open_store(str(folder / "tuner_study" / "tuner.db"))) as store:
        store.create_study(StudyRecord("made", NOW, Provenance.SIMULATED, premise, {}, {"winner": 0, "reason": "r"}))
        store.add_trial(TrialRecord("made", 0, 0, TrialKind.BASELINE, None, {}, {}, 0, NOW))
        store.begin_attempt("made", 0)
        store.finish_trial("made", 0, 0, outcome, Verdict({"p99_ttft_ms": ttft_ms}, {}, 1.0))


@pytest.mark.parametrize(("ttft_ms", "code", "verdict"), [(1e5, 0, "better"), (0.001, 1, "WORSE")])
def test_traffic_is_sent_by_the_load_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ttft_ms: float, code: int, verdict: str
) -> None:
    monkeypatch.setattr(load_run, "find_executable", no_vllm)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    make_tokenizer(tokenizer)
    server = Fake(tmp_path, 5, 2, {})
    try:
        url = server.url.removesuffix("/v1/completions")
        listed, _ = load_run.served_model(url, None)
        stored(tmp_path, listed, tokenizer, ttft_ms)
        printed = run_here(tmp_path, "verify", "--url", url)
    finally:
        server.close()
    assert printed.code == code, printed.err
    first, *lines = printed.out.splitlines()
    assert first == "the numbers of study made are simulated: the server is compared with predictions"
    assert lines[0].startswith("p99_ttft_ms: measured ")
    assert lines[0].endswith(f": {verdict}")
    assert "SLO success_rate>=1: measured 1: holds" in lines
