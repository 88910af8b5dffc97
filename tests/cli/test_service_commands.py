"""The commands that ask a service: submit, watch, status, logs, stop, cancel, resume, token."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.service.records import SubmissionState
from tests import store_samples as samples
from tests.cli.command import CommandOutput, refused, run_here
from tests.served import DRIVER, Served, serving
from tests.some import some
from tuner.client.client import Client

CONFIG = {"max_num_seqs": 64}
OPENED = {
    **{"study": "s", "trials": 2, "workers": 1, "engine": "simulated vllm", "version": "0.25.1"},
    **{"provenance": "simulated", "objectives": ["output_throughput"], "slos": ["p99_ttft_ms<500"]},
}
TRIAL = {
    **{"number": 0, "round": 0, "kind": "search", "label": None, "state": "ok", "score": 1.0, "failure": None},
    **{"values": {"output_throughput": 3332.25}, "constraints": {"p99_ttft_ms<500": -10.0}, "config": {}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(autouse=True)
def environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_SERVER", served.url)
    monkeypatch.setenv("TUNER_TOKEN", served.tokens["ada"])


def test_submit_sends_what_is_given_and_nothing_else(served: Served, folder: Path) -> None:
    (folder / "q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}')
    words = ["service", "submit", "--id", "given", "--engine", "simulated", "--trials", "60", "--users", "8"]
    words += ["--no-reduce", "--timeout", "2h", "--quality-task", "q.jsonl"]
    words += ["--slo", "p99_ttft_ms<500", "--slo", "p99_tpot_ms<90"]
    printed = run_here(folder, *words, "--priority", "-5", "--share")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == "given is QUEUED; see it with `tuner service watch given`\n"
    found = some(served.service.submission("given"))
    assert dict(found.settings) == {
        "engine": "simulated",
        "trials": 60,
        "max_concurrency": 8,
        "reduce": False,
        "slo": ["p99_ttft_ms<500", "p99_tpot_ms<90"],
        "quality_task": '{"prompt": "1+1=", "answer": "2"}\n',
        "timeout": "2h",
    }
    assert (found.priority, found.shared, found.gpus, found.kind) == (-5, True, 1, "simulated")
    again = run_here(folder, *words, "--json")
    assert json.loads(again.out)["id"] == "given"


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["service", "submit", "--trials", "0"], ["--trials 0: a service takes 1 to 10,000"]),
        (["service", "submit", "--engine", "simulated", "--slo", "fast"], ["--slo 'fast'", "METRIC<VALUE"]),
        (["service", "submit", "--engine", "simulated", "--users", "0"], ["--users 0"]),
        (["service", "submit", "--workload", "no.yaml"], ["--workload 'no.yaml'", "No such file", "give another one"]),
        (["service", "submit", "--space", "./no.yaml"], ["--space 'no.yaml'", "No such file"]),
        (["service", "submit", "--env", "A"], ["--env 'A'", "the form is NAME=VALUE"]),
        (["service", "submit", "--env", "HF_TOKEN=abc"], ["--env 'HF_TOKEN'", "would store the value", "'${NAME}'"]),
        (["service", "submit", "--env", "LD_PRELOAD=x"], ["--env 'LD_PRELOAD'", "ask the operator"]),
        (["service", "submit", "--id", "No"], ["--id 'No'", "lower-case letters"]),
        (["service", "submit", "--kind", "h200"], ["--kind 'h200'", "cpu, simulated"]),
        (["service", "submit", "--gpus", "9", "--kind", "cpu"], ["--gpus 9", "this server has 1 of cpu"]),
        (["service", "submit", "--workers", "2"], ["there is no option --workers"]),
        (["service", "submit", "stray"], ["'stray' is not an option of `tuner service submit`"]),
        (
            ["service", "submit", "--", "--chat-template", "x"],
            ["server argument '--chat-template'", "does not allow the flag"],
        ),
        (
            ["service", "submit", "--engine", "vllm", "--engine", "llama.cpp"],
            ["--engine 'llama.cpp'", "has one engine"],
        ),
        (["service", "watch"], ["missing argument 'ID'"]),
        (["service", "watch", "nope"], ["no study 'nope' that you may read", "list the studies"]),
        (["service", "status", "nope"], ["no study 'nope'"]),
        (["service", "list", "--state", "odd"], ["--state 'odd'", "QUEUED, RUNNING"]),
        (["service", "status", "x", "--running"], ["there is no option --running"]),
        (["service", "logs", "nope"], ["no study 'nope'"]),
        (["service", "stop", "nope"], ["no study 'nope'"]),
        (["service", "cancel", "nope"], ["no study 'nope'"]),
        (["service", "resume", "nope"], ["no study 'nope'"]),
        (["service", "token", "add"], ["missing argument 'NAME'"]),
        (["service", "token", "list"], ["the token 'ada' is not an admin's"]),
        (["service", "token", "list", "--storage", "no.db"], ["there is no database at no.db"]),
        (
            ["service", "token", "list", "--storage", "a", "--server", "b"],
            ["--server and --storage exclude each other"],
        ),
        (["service", "list", "--server", "nope"], ["--server 'nope'", "such as http://127.0.0.1:8600"]),
        (["service", "list", "--server", "http://b.example"], ["without TLS", "or --insecure"]),
        (["study", "trials", "--server", "nope"], ["--server 'nope'"]),
    ],
)
def test_mistakes_are_one_line(folder: Path, argv: list[str], parts: list[str]) -> None:
    refused(run_here(folder, *argv), folder, *parts)


REQUESTS = [f"service {words}" for words in ("submit", "watch x", "list", "status x", "logs x", "stop x", "cancel x")]


@pytest.mark.parametrize("command", REQUESTS)
def test_without_a_server_or_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.delenv("TUNER_TOKEN")
    refused(run_here(folder, *command.split()), folder, "needs a token", "set TUNER_TOKEN")
    monkeypatch.delenv("TUNER_SERVER")
    refused(run_here(folder, *command.split()), folder, "no server is given; give --server URL, or set TUNER_SERVER")


@pytest.mark.parametrize("command", [*REQUESTS, "service token list", "study show", "study report"])
def test_a_refused_connection_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("tuner.client.calls.WAITS_S", ())
    printed = run_here(folder, *command.split(), "--server", "http://127.0.0.1:1")
    assert (printed.code, printed.out, len(printed.err.splitlines())) == (1, "", 1)
    assert "no server answers at http://127.0.0.1:1" in printed.err
    assert "start `tuner serve`, or check the address" in printed.err


def prepare(served: Served, id: str, events: list[tuple[str, dict[str, Any]]]) -> None:
    """Submit and start a study whose driver writes these events."""
    served.submit(id)
    served.start(id)
    for kind, data in events:
        served.service.event(id, kind, data, served.now())


def watch(folder: Path, id: str) -> CommandOutput:
    return run_here(folder, "service", "watch", id)


def test_watch_prints_a_line_for_each_stage_and_trial(served: Served, folder: Path) -> None:
    failure = {"kind": "out_of_memory", "message": "CUDA out\nof memory"}
    stage = {"stage": "search", "trials": 2, "subjects": [], "rounds": []}
    rounds = {"stage": "confirmation", "trials": 4, "subjects": ["#0", "#1"], "rounds": [1, 2]}
    missing = {"number": 1, "state": "infeasible", "score": 0.75, "constraints": {"p99_ttft_ms<500": 3.0}}
    events: list[tuple[str, dict[str, Any]]] = [
        ("opened", {**OPENED, "price": {"per_gpu_hour": 0.5, "currency": "USD", "list_price": "a list"}}),
        ("stage", stage),
        ("trial_started", {"number": 0}),
        ("trial", TRIAL),
        ("trial_retried", {"number": 1, "round": 0, "attempt": 1, "kind": "port_taken", "message": "taken"}),
        ("trial", {**TRIAL, **missing, "label": "big", "config": CONFIG}),
        ("trial", {**TRIAL, "number": 2, "state": "failed", "failure": failure, "values": {}, "config": CONFIG}),
        ("stage", rounds),
        ("trial", {**TRIAL, "round": 2, "values": {"cost_per_million_output_tokens": 0.04}}),
        ("note", {"text": "a note"}),
        ("of_a_newer_server", {}),
    ]
    prepare(served, "lines", events)
    served.end("lines", SubmissionState.FAILED, "no winner")
    printed = watch(folder, "lines")
    assert printed.err.splitlines() == [
        "queued",
        "runs on simulated:0",
        "SIMULATED: predicted, not measured: simulated vllm 0.25.1",
        "study s: 2 trials, 1 worker, simulated vllm 0.25.1",
        "[1/2] #0 ok, score 1.000: output_throughput 3,332 tok/s; the defaults",
        "#1 runs again: attempt 1 failed, port_taken: taken",
        "[2/2] #1 infeasible, misses p99_ttft_ms<500, score 0.750: output_throughput 3,332 tok/s; "
        "big = max_num_seqs=64",
        "[3/3] #2 failed, out_of_memory: CUDA out of memory; max_num_seqs=64",
        "confirmation: #0, #1 in 2 rounds, 4 measurements",
        "[round 2 of 2] #0 ok, score 1.000: cost_per_million_output_tokens 0.04 USD per Mtok; the defaults",
        "a note",
    ]
    assert printed.out == "lines is FAILED: no winner\nsee why: tuner service logs lines\n"
    assert printed.code == 1


@pytest.mark.parametrize(
    ("id", "state", "conclusion", "code"),
    [
        ("won", SubmissionState.DONE, {"winner": 0}, 0),
        ("stopped-won", SubmissionState.STOPPED, {"winner": 0, "confirmed": True}, 0),
        ("stopped-unconfirmed", SubmissionState.STOPPED, {"winner": 0, "confirmed": False}, 4),
        ("near", SubmissionState.DONE, {"winner": None, "nearest": {"number": 0}}, 3),
        ("none-fits", SubmissionState.DONE, {"winner": None}, 3),
        ("timeout", SubmissionState.STOPPED, None, 4),
        ("cancelled", SubmissionState.CANCELLED, None, 130),
        ("failed", SubmissionState.FAILED, None, 1),
    ],
)
def test_watch_exits_as_optimize_does(
    served: Served, folder: Path, id: str, state: SubmissionState, conclusion: dict[str, Any] | None, code: int
) -> None:
    prepare(served, id, [("opened", OPENED)])
    served.store.create_study(samples.study(id))
    if conclusion is not None:
        served.store.add_trial(samples.pending(0, study=id))
        served.store.begin_attempt(id, 0)
        served.store.finish_trial(id, 0, 0, samples.success(), samples.verdict(1.0, 5.0))
        served.store.update_study(id, conclusion={"keeps": None, "keep_defaults": False, **conclusion})
    served.end(id, state, "why")
    printed = watch(folder, id)
    assert (printed.code, printed.out.splitlines()[0]) == (code, f"{id} is {state.value}: why")
    assert ("all figures are predicted, not measured" in printed.out) is (conclusion is not None)


def test_ctrl_c_only_stops_watching(served: Served, folder: Path) -> None:
    served.submit("goes-on")
    words = [sys.executable, "-m", "tuner", "service", "watch", "goes-on"]
    watching = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert some(watching.stderr).readline() == "queued\n"
        watching.send_signal(signal.SIGINT)
        printed = watching.communicate()
    finally:
        watching.kill()
    last = "stopped watching; the study goes on, `tuner service watch goes-on` watches it again\n"
    assert (watching.returncode, *printed) == (130, "", last)
    found = some(served.service.submission("goes-on"))
    assert found.state is SubmissionState.QUEUED


def test_status_lists_and_shows(served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_TOKEN", served.tokens["ben"])
    assert run_here(folder, "service", "list", "--owner", "ben").out == "no study; `tuner service submit` submits one\n"
    served.submit("bens-first", "ben")
    served.submit("bens-last", "ben")
    served.start("bens-last")
    table = run_here(folder, "service", "list", "--owner", "ben").out.splitlines()
    assert [line.split()[0:3] for line in table[2:]] == [
        ["bens-last", "ben", "RUNNING"],
        ["bens-first", "ben", "QUEUED"],
    ]
    assert "bens-first" not in run_here(folder, "service", "list", "--state", "running").out
    assert [each["id"] for each in json.loads(run_here(folder, "service", "list", "--top", "1", "--json").out)] == [
        "bens-last"
    ]
    shown = run_here(folder, "service", "status", "bens-last")
    assert (shown.code, shown.err) == (0, "")
    assert "  devices      1 simulated: simulated:0\n" in shown.out
    assert "  trials       4\n" in shown.out


def test_logs_are_printed_and_followed_to_the_end(served: Served, folder: Path) -> None:
    prepare(served, "logged", [])
    refused(run_here(folder, "service", "logs", "logged"), folder, "there is no log of the study 'logged'")
    path = served.folder / "submissions" / "logged" / "driver.log"
    path.parent.mkdir(parents=True)
    path.write_bytes("größe\n".encode() * 60_000)
    assert run_here(folder, "service", "logs", "logged").out == "größe\n" * 60_000
    served.service.end("logged", DRIVER, SubmissionState.DONE, None, None, served.now())
    assert run_here(folder, "service", "logs", "logged", "--follow").out == "größe\n" * 60_000


def test_a_study_is_cancelled_resumed_and_stopped(served: Served, folder: Path) -> None:
    served.submit("verbs")
    for verb, state in (("cancel", "CANCELLED"), ("resume", "QUEUED"), ("stop", "CANCELLED")):
        printed = run_here(folder, "service", verb, "verbs")
        assert (printed.code, printed.out) == (0, f"verbs is {state}; see it with `tuner service watch verbs`\n")
    refused(run_here(folder, "service", "stop", "verbs"), folder, "it has ended, so stop has no effect")


def test_an_ended_study_is_deleted(served: Served, folder: Path) -> None:
    served.submit("unwanted")
    refused(
        run_here(folder, "service", "delete", "unwanted"), folder, "only an ended study can be deleted; cancel it first"
    )
    run_here(folder, "service", "cancel", "unwanted")
    printed = run_here(folder, "service", "delete", "unwanted")
    assert (printed.code, printed.out) == (0, "unwanted is deleted\n")
    refused(run_here(folder, "service", "delete", "unwanted"), folder, "unwanted")


@pytest.mark.parametrize("place", ["database", "server"])
def test_tokens_are_made_listed_and_revoked(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("TUNER_TOKEN", served.tokens["root"])
    where = ["--storage", served.storage] if place == "database" else []
    name = f"zoe-{place}"
    made = run_here(
        folder, "service", "token", "add", name, "--owner", "zoe", "--role", "viewer", "--days", "3", *where
    )
    assert (made.code, made.err.startswith(f"token {name} of zoe, viewer, expires 20")) == (0, True)
    secret = made.out.strip()
    with Client(served.url, secret) as client:
        assert [*client.studies(owner="zoe")] == []
    listed = run_here(folder, "service", "token", "list", *where)
    assert secret not in listed.out
    assert [line.split()[:3] for line in listed.out.splitlines() if name in line] == [[name, "zoe", "viewer"]]
    assert run_here(folder, "service", "token", "revoke", name, *where).out == f"revoked the token {name}\n"
    refused(run_here(folder, "service", "token", "revoke", "nobody", *where), folder, "there is no token 'nobody'")
    refused(run_here(folder, "service", "token", "add", name, *where), folder, name)
    refused(
        run_here(folder, "service", "token", "add", "x", "--role", "king", *where), folder, "--role 'king'", "viewer"
    )
    refused(run_here(folder, "service", "token", "add", "a/b", *where), folder, "NAME 'a/b': a name has up to 63")
