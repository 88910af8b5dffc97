"""`tuner server load` and `tuner server verify`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from records.trials import Provenance, Repeat, StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage import open_store
from tests.cli.command import one_line, refused, run_here
from tests.cli.conftest import inline
from tests.fakes import install_fake_vllm
from tests.fakes.http_server import Answer, Asked, http_server
from tests.fakes.raw_server import answering
from tests.ports import free_port
from tests.unit.loadgen.loads import Fake
from tuner.engines.server import traffic
from tuner.engines.server.prompts.prompts import make_prompts
from tuner.engines.server.token_prompts import find_tokenizer
from tuner.engines.vllm.toolbox import check_prompts
from tuner.errors import SettingError
from tuner.loadgen.result import read_records
from tuner.processes.ports import port_answers
from tuner.use_cases import load as load_run
from tuner.use_cases import optimize as optimize_run
from tuner.use_cases.tiny_model import make_tokenizer
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import load_traffic

TRAFFIC = """
arrivals: {process: constant, rate: 50}
requests: 12
system_prompt: 8
classes:
  short: {input: 20, output: 4}
  shared: {input: 10, output: 4, prefix: {tokens: 30, documents: 2}}
slo:
  short: {p95_ttft_ms: 60000}
  shared: {p95_ttft_ms: 60000}
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    fake = Fake(tmp_path, 5, 2, {})
    yield fake.url.removesuffix("/v1/completions")
    fake.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with traffic, on a machine without a vLLM."""
    monkeypatch.setattr(load_run, "find_executable", no_vllm)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    made = tmp_path / "here"
    made.mkdir()
    return made


def no_vllm(given: str | None) -> Path:
    raise SettingError("vllm", given, "no vLLM found")


def test_the_load_is_sent(folder: Path, server: str, tokenizer: Path) -> None:
    argv = ["server", "load", "--url", server, "--workload", "../traffic.yaml", "--tokenizer", str(tokenizer), "--json"]
    printed = run_here(folder, *argv)
    assert printed.code in (0, 1), printed.err  # a busy machine may be late; then the run is invalid
    found = json.loads(printed.out)
    assert (found["offered"], found["completed"]) == (12, 12)
    lengths = {(r.name, r.planned_input) for r in read_records(folder / "tuner_load" / "requests-0.jsonl.gz")}
    assert lengths == {("short", 28), ("shared", 48)}


def test_sessions_are_sent_turn_by_turn(folder: Path, server: str, tokenizer: Path) -> None:
    text = TRAFFIC.replace("output: 4}", "output: 4, session: {turns: 3, pause_ms: 50}}", 1)
    (folder / "sessions.yaml").write_text(text)
    printed = run_here(
        folder, "server", "load", "--url", server, "--workload", "sessions.yaml", "--tokenizer", str(tokenizer)
    )
    assert printed.code in (0, 1), printed.err
    assert "sessions: 2 requests for each arrival" in printed.out
    assert "session_goodput_share" in printed.out
    records = read_records(folder / "tuner_load" / "requests-0.jsonl.gz")
    assert all(record.completed for record in records)
    # system prompt and own tokens, and 24 more for each turn before
    assert {(r.turn, r.planned_input) for r in records if r.name == "short"} == {(0, 28), (1, 52), (2, 76)}


def test_several_files_are_sent_in_turn(folder: Path, server: str, tokenizer: Path) -> None:
    (folder / "day.yaml").write_text(TRAFFIC)
    (folder / "night.yaml").write_text(TRAFFIC)
    files = ["--workload", "day.yaml", "--workload", "night.yaml"]
    printed = run_here(folder, "server", "load", "--url", server, *files, "--tokenizer", str(tokenizer), "--json")
    assert printed.code in (0, 1), printed.err
    found = json.loads(printed.out)
    assert (found["offered"], found["completed"]) == (24, 24)
    assert {"day.p99_itl_ms", "night.short.p95_ttft_ms", "success_rate"} <= found["metrics"].keys()


def test_a_wrapper_of_vllm_leaves_the_prompts_to_the_library(
    tmp_path: Path, server: str, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text("#!/bin/sh\necho 0.32.0\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    argv = ["server", "load", "--url", server, "--workload", "traffic.yaml", "--tokenizer", str(tokenizer), "--json"]
    printed = run_here(tmp_path, *argv, "--vllm", str(wrapper))
    assert printed.code in (0, 1), printed.err
    assert json.loads(printed.out)["completed"] == 12


def test_prompts_have_the_requested_lengths(tokenizer: Path) -> None:
    found = find_tokenizer(str(tokenizer))
    requests = [{"shared": [["doc", 16]], "tokens": tokens, "seed": 3, "text": "random"} for tokens in (1, 7, 200)]
    made = make_prompts({"requests": requests}, found)
    assert [len(tokens) for tokens in found([text for text, _, _ in made])["input_ids"]] == [17, 23, 216]
    assert "<|endoftext|>" not in "".join(text for text, _, _ in made)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--tokenizer", "nowhere"], "--tokenizer 'nowhere': there is no tokenizer.json"),
        (["--tokenizer", "./missing"], "missing': there is no such folder; give a folder"),
        (["--vllm", "/nowhere/vllm"], "--vllm '/nowhere/vllm': no vLLM found"),
    ],
)
def test_what_is_missing_is_said_before_the_first_request(
    folder: Path, server: str, argv: list[str], part: str
) -> None:
    (folder / "nowhere").mkdir()
    one_line(run_here(folder, "server", "load", "--url", server, "--workload", "../traffic.yaml", *argv), part)
    assert not (folder / "tuner_load").exists()


def test_without_either_library_the_message_names_both(
    folder: Path, server: str, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    printed = run_here(
        folder, "server", "load", "--url", server, "--workload", "../traffic.yaml", "--tokenizer", str(tokenizer)
    )
    refused(printed, folder, "no vLLM found", "`pip install tokenizers`", "--vllm PATH")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"data": []}', "--url 'URL': the server lists no model; load one there"),
        (b'{"object": "list", "data": null}', "--url 'URL': the server lists no model; load one there"),
        (b'[{"id": "m"}]', "--model 'a': the server at URL serves m"),
        (b'{"data": [{"id": 5}, {"id": "b"}]}', "--model 'a': the server at URL serves 5, b"),
        (b'{"data": [5]}', "--url 'URL': no OpenAI-compatible server answers there"),
        (b'{"data": 5}', "--url 'URL': no OpenAI-compatible server answers there"),
        (b"[" * 100_000, "--url 'URL': no OpenAI-compatible server answers there"),
    ],
)
def test_a_list_of_models_that_is_none_is_refused(folder: Path, body: bytes, part: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with answering(head + body) as port:
        url = f"http://127.0.0.1:{port}"
        printed = run_here(folder, "server", "load", "--url", url, "--workload", "../traffic.yaml", "--model", "a")
    refused(printed, folder, part.replace("URL", url))


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (
            "404 Not Found\r\nContent-Type: text/html",
            "answers there (it answers 404 to /v1/models: no); give the address",
        ),
        ("200 OK\r\nContent-Type: text/html", "its type is text/html, not application/json); give the address of one"),
        (
            "308 Moved\r\nLocation: https://b/v1/models",
            "the server answers 308 and refers to https://b/v1/models; give",
        ),
        ("503 Busy", "the server cannot answer now: 503 to /v1/models: no; see its log, and try again"),
        ("429 Slow", "the server cannot answer now: 429 to /v1/models: no; see its log, and try again"),
        ("500 Oops\r\nContent-Type: application/json", "the server cannot answer now: 500 to /v1/models: no; see its"),
    ],
)
def test_a_server_that_is_another_or_not_ready_is_named(folder: Path, head: str, part: str) -> None:
    with answering(f"HTTP/1.1 {head}\r\nContent-Length: 2\r\n\r\nno".encode()) as port:
        printed = run_here(
            folder, "server", "load", "--url", f"http://127.0.0.1:{port}", "--workload", "../traffic.yaml"
        )
    refused(printed, folder, part)


def keyed_models(asked: Asked) -> Answer:
    """Lists its models to those who send the key `right`."""
    if asked.headers["Authorization"] == "Bearer right":
        return Answer('{"data": [{"id": "b"}]}', headers={"Content-Type": "application/json"})
    return Answer('{"error": "Unauthorized"}', 401, {"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("variable", "key", "part"),
    [
        ("TUNER_API_KEY", "right", "--model 'a': the server at URL serves b"),
        ("VLLM_API_KEY", "right", "--model 'a': the server at URL serves b"),
        (
            "VLLM_API_KEY",
            "wrong",
            "the server answers 401: it needs another API key; set TUNER_API_KEY or VLLM_API_KEY",
        ),
        ("VLLM_API_KEY", "", "the server answers 401: it needs an API key; set TUNER_API_KEY or VLLM_API_KEY"),
    ],
)
def test_the_key_of_the_environment_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, key: str, part: str
) -> None:
    for name in load_run.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, key)
    with http_server(keyed_models) as url:
        printed = run_here(folder, "server", "load", "--url", url, "--workload", "../traffic.yaml", "--model", "a")
    refused(printed, folder, part.replace("URL", url))


def test_a_wrapper_of_vllm_needs_the_package_for_the_prompts_of_traffic(
    folder: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = folder / "vllm"
    wrapper.write_text('#!/bin/sh\nexec python3 -m vllm.entrypoints.cli.main "$@"\n')
    traffic = load_traffic(folder.parent / "traffic.yaml")
    check_prompts(traffic, wrapper, str(tokenizer))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    check_prompts(ClosedLoop(), wrapper, str(tokenizer))
    with pytest.raises(SettingError, match=r"this wrapper's Python is not known, .*; `pip install tokenizers`"):
        check_prompts(traffic, wrapper, str(tokenizer))


def test_the_first_reason_of_failed_requests_is_printed(folder: Path, tokenizer: Path) -> None:
    def failing(asked: Asked) -> Answer:
        return Answer('{"data": [{"id": "m"}]}') if asked.method == "GET" else Answer("model overloaded", 503)

    (folder / "three.yaml").write_text(
        "arrivals: {process: constant, rate: 50}\nrequests: 3\nwarmup_requests: 0\nclasses: {c: {input: 4, output: 2}}"
    )
    with http_server(failing) as url:
        argv = ["server", "load", "--url", url, "--workload", "three.yaml"]
        printed = run_here(folder, *argv, "--tokenizer", str(tokenizer))
    assert printed.code == 1, printed.err
    line = next(line for line in printed.out.splitlines() if " failed: " in line)
    assert line.startswith("3 failed: 3 refused; the first: HTTP 503: model overloaded")


NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY_S = 60.0
VERIFIED_TRAFFIC = """
arrivals: {process: constant, rate: 20}
requests: 12
classes:
  short: {input: 20, output: 4}
slo:
  short: {p95_ttft_ms: 60000}
"""


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
    printed = run_here(study, "server", "verify", "--url", deployed, "--vllm", str(fake))
    assert (printed.code, printed.err) == (0, ""), printed.out
    lines = printed.out.splitlines()
    assert "output_throughput: measured " in printed.out
    assert [line for line in lines if not line.endswith((": within", ": better", ": holds"))] == []
    assert "SLO success_rate>=1: measured 1: holds" in lines


def test_a_server_that_is_worse_is_found(study: Path, deployed: str, tmp_path: Path) -> None:
    slow = install_fake_vllm(tmp_path / "bin", figures={"output_throughput": 1.0})
    printed = run_here(study, "server", "verify", "--url", deployed, "--vllm", str(slow))
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
        one_line(run_here(study, "server", "verify", *argv), part)


def stored(folder: Path, model: str, tokenizer: Path, ttft_ms: float) -> None:
    """Write a study of traffic whose only trial measured this p99 TTFT."""
    (folder / "traffic.yaml").write_text(VERIFIED_TRAFFIC)
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
    monkeypatch.setattr(traffic, "TOLERABLE_DELAY_S", 10.0)  # other tests run beside this one
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    make_tokenizer(tokenizer)
    server = Fake(tmp_path, 5, 2, {})
    try:
        url = server.url.removesuffix("/v1/completions")
        listed, _ = load_run.served_model(url, None)
        stored(tmp_path, listed, tokenizer, ttft_ms)
        printed = run_here(tmp_path, "server", "verify", "--url", url)
    finally:
        server.close()
    assert printed.code == code, printed.err
    first, *lines = printed.out.splitlines()
    assert first == "the numbers of study made are simulated: the server is compared with predictions"
    assert lines[0].startswith("p99_ttft_ms: measured ")
    assert lines[0].endswith(f": {verdict}")
    assert "SLO success_rate>=1: measured 1: holds" in lines
