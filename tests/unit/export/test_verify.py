"""`best_serve.sh --verify` against the fake vLLM."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes import install_fake_vllm
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER, SEED_PLACEHOLDER
from tuner.export.references import INCONCLUSIVE, Reference
from tuner.export.render import write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.scoring.goals import parse_slo
from tuner.testing.exporter import a_script

CLIENT = (
    "--backend", "openai", "--base-url", f"http://127.0.0.1:{PORT_PLACEHOLDER}/v1", "--endpoint", "/completions",
    "--model", "org/model", "--max-concurrency", "10", "--random-input-len", "128", "--random-output-len", "64",
)  # fmt: skip
BENCH = (
    "bench",
    "serve",
    *CLIENT,
    "--num-prompts",
    "40",
    "--seed",
    "9",
    "--save-result",
    "--result-dir",
    RESULTS_PLACEHOLDER,
)
WARMUP = ("bench", "serve", *CLIENT, "--num-prompts", "10", "--seed", "8")
ANY = Reference(1.0, 0.0, 1e9)


def script(**changes: Any) -> ServeScript:
    return a_script(
        **{"bench_argv": BENCH, "warmup_argv": WARMUP, "reference": {"output_throughput": ANY}, "environment": {}}
        | changes
    )


def command(script: ServeScript, folder: Path, **behaviour: Any) -> tuple[list[str], dict[str, str]]:
    vllm = install_fake_vllm(folder / "bin", **behaviour)
    write_serve_script(script, folder / "best_serve.sh")
    (folder / "tmp").mkdir(exist_ok=True)
    path = f"{idle(folder)}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "VLLM": str(vllm), "TMPDIR": str(folder / "tmp"), "MARK": str(folder)}
    environment.pop("PORT", None)
    return [str(folder / "best_serve.sh"), "--verify"], environment


def idle(folder: Path) -> Path:
    """Return a folder for the PATH of a machine with so many processors that it is never loaded."""
    program = folder / "idle" / "getconf"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho 9999\n")
    program.chmod(0o755)
    return program.parent


def verify(script: ServeScript, folder: Path, *more: str, **behaviour: Any) -> subprocess.CompletedProcess[str]:
    arguments, environment = command(script, folder, **behaviour)
    done = subprocess.run([*arguments, *more], env=environment, capture_output=True, text=True, timeout=120)
    assert marked(folder) == []
    return done


def marked(folder: Path) -> list[psutil.Process]:
    """Return the running processes of this test, which have a variable in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_within_the_interval(tmp_path: Path) -> None:
    done = verify(script(), tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"output_throughput: measured [\d.e+]+, recorded 1 \[0, 1e\+09\]: within", lines[0])
    assert re.fullmatch(r"SLO p99_tpot_ms<50: measured [\d.]+: holds", lines[1])
    assert re.fullmatch(r"server stopped: no process of its group \d+ is left", lines[2])
    assert len(lines) == 3
    assert list((tmp_path / "tmp").iterdir()) == []


def test_it_repeats_the_benchmark_like_the_study_with_new_seeds(tmp_path: Path) -> None:
    bench = tuple(SEED_PLACEHOLDER if word == "9" else word for word in BENCH)
    arguments, environment = command(script(bench_argv=bench, repeats=3, first_seed=40), tmp_path)
    wrapper = tmp_path / "recorder"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/seen"\nexec "{environment["VLLM"]}" "$@"\n')
    wrapper.chmod(0o755)
    done = subprocess.run(
        arguments, env={**environment, "VLLM": str(wrapper)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"--seed (\d+)", (tmp_path / "seen").read_text()) == ["8", "40", "41", "42"]
    assert len([line for line in done.stdout.splitlines() if line.startswith("output_throughput")]) == 1


def test_the_key_is_sent_by_the_check_and_the_benchmark(tmp_path: Path) -> None:
    keyed = script(environment={"VLLM_API_KEY": "${MY_KEY}"}, references=frozenset({"MY_KEY"}))
    arguments, environment = command(keyed, tmp_path, requires_key="health")
    wrapper = tmp_path / "recorder"
    wrapper.write_text(f'#!/bin/sh\necho "$1 ${{OPENAI_API_KEY-none}}" >>"{tmp_path}/seen"\nexec "$REAL" "$@"\n')
    wrapper.chmod(0o755)
    environment |= {"REAL": environment["VLLM"], "VLLM": str(wrapper), "MY_KEY": "k; it's"}
    environment.pop("OPENAI_API_KEY", None)
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "seen").read_text().splitlines() == [
        "--version none",
        "serve none",
        "bench k; it's",
        "bench k; it's",
    ]


def test_without_a_completed_request_nothing_is_measured(tmp_path: Path) -> None:
    done = verify(script(slos=(parse_slo("success_rate>=1"),)), tmp_path, fail_every=1)
    assert done.returncode == 1
    assert "output_throughput: measured -" in done.stdout
    assert "SLO success_rate>=1: measured 0: MISSED" in done.stdout


def test_an_interval_that_cannot_tell_is_exit_code_5(tmp_path: Path) -> None:
    noisy = script(reference={"output_throughput": Reference(1.0, 0.0, 1e9, tells=False)})
    found = verify(noisy, tmp_path)
    assert found.returncode == 5, found.stderr
    assert ": inconclusive\n" in found.stdout
    assert INCONCLUSIVE in found.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ({"fail": "oom"}, "the server ended before it was healthy"),
        ({"bench": "exit"}, "the warmup ended with 1"),
        pytest.param({"crash_after": 3}, "the server ended during the", marks=pytest.mark.slow),
        pytest.param({"crash_after": 15}, "the server ended during the benchmark", marks=pytest.mark.slow),
    ],
)
def test_the_exit_code_is_2_if_it_could_not_run(tmp_path: Path, behaviour: dict[str, Any], text: str) -> None:
    done = verify(script(slos=(parse_slo("success_rate>=1"),)), tmp_path, **behaviour)
    assert text in done.stderr
    assert done.returncode == 2
    assert "logs are in" in done.stderr


def test_a_server_that_is_never_healthy_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFY_STARTUP_S", "1")
    done = verify(script(), tmp_path, fail="hang")
    assert done.returncode == 2
    assert "the server was not healthy in time" in done.stderr


@pytest.mark.slow
def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFY_STOP_S", "1")
    done = verify(script(), tmp_path, sigterm="ignore", child_sigterm="ignore")
    assert done.returncode == 0
    assert "is left" in done.stdout


@pytest.mark.parametrize("name", ["VERIFY_STARTUP_S", "VERIFY_STOP_S"])
@pytest.mark.parametrize("value", ["server_words[$(touch MARKER)]", "x", "08", "1.5", "-1", "٣", "9999999", "1 + 1"])
def test_a_limit_that_is_no_number_is_refused_and_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    marker = tmp_path / "marker"
    value = value.replace("MARKER", str(marker))
    monkeypatch.setenv(name, value)
    done = verify(script(), tmp_path)
    assert not marker.exists()
    assert done.returncode == 2
    assert f"{name}='{value}': not a whole number of seconds; give for example {name}=60" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "figures",
    [
        {"completed": "x"},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({"output_throughput": "x"}, {"num_prompts": 0})),
    ],
)
def test_a_result_that_is_none_is_exit_code_2(tmp_path: Path, figures: dict[str, Any]) -> None:
    done = verify(script(slos=(parse_slo("success_rate>=1"),)), tmp_path, figures=figures)
    assert done.returncode == 2
    assert "the benchmark left no readable result" in done.stderr


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    arguments, environment = command(script(), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        environment["PORT"] = str(other.getsockname()[1])
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"port {environment['PORT']} is in use" in done.stderr


def test_further_arguments_reach_the_server(tmp_path: Path) -> None:
    done = verify(script(), tmp_path, "--no-such-flag")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in done.stderr


def reset_interrupts() -> None:
    """Reset SIGINT: a test run in the background inherits it as ignored, and a shell cannot trap an ignored signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def signalled(
    command: Sequence[str | Path], environment: Mapping[str, str], number: signal.Signals, ready: Callable[[], bool]
) -> tuple[int, str]:
    """Run a command, send it a signal once it is ready, and return its exit code and its output."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, preexec_fn=reset_interrupts, stdout=pipe, stderr=pipe, text=True
    ) as running:
        while not ready():
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(timeout=0.05)
        running.send_signal(number)
        stdout, _ = running.communicate(timeout=60)
    return running.returncode, stdout


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_stops_the_server(tmp_path: Path, number: signal.Signals, code: int) -> None:
    arguments, environment = command(script(), tmp_path, bench="hang")
    returned, stdout = signalled(arguments, environment, number, lambda: any((tmp_path / "tmp").glob("*/warmup.log")))
    assert returned == code
    assert "server stopped" in stdout
    assert marked(tmp_path) == []
