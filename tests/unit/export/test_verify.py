"""Verification: the comparison of two measurements, and the script that measures again."""

import hashlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.measured import measured
from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tests.ended_with import living
from tests.fakes import install_fake_vllm
from tests.unit.processes.started import until
from tuner.export import references as recorded
from tuner.export.deployment import Deployment
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER, SEED_PLACEHOLDER
from tuner.export.references import INCONCLUSIVE, Reference, compared
from tuner.export.render import write_serve_script
from tuner.export.verification import carry_traffic, verification
from tuner.export.words import Argument, arguments_of
from tuner.scoring.goals import parse_slo
from tuner.specs import ModelRef
from tuner.testing.exporter import a_script, deployment
from tuner.use_cases.tiny_model import make_tokenizer
from tuner.workloads.spec import Suite
from tuner.workloads.traffic import Traffic, load_traffic

CLIENT = (
    "--backend", "openai", "--base-url", f"http://127.0.0.1:{PORT_PLACEHOLDER}/v1", "--endpoint", "/completions",
    "--model", "org/model", "--max-concurrency", "10", "--random-input-len", "128", "--random-output-len", "64",
)  # fmt: skip
BENCH = (
    *("bench", "serve", *CLIENT, "--num-prompts", "40", "--seed", "9"),
    *("--save-result", "--result-dir", RESULTS_PLACEHOLDER),
)
WARMUP = ("bench", "serve", *CLIENT, "--num-prompts", "10", "--seed", "8")
ANY = Reference(1.0, 0.0, 1e9)


def script(**changes: Any) -> Deployment:
    return a_script(
        **{"bench_argv": BENCH, "warmup_argv": WARMUP, "reference": {"output_throughput": ANY}, "environment": {}}
        | changes
    )


def command(script: Deployment, folder: Path, **behaviour: Any) -> tuple[list[str], dict[str, str]]:
    vllm = install_fake_vllm(folder / "bin", **behaviour)
    write_serve_script(script, folder / "best_serve.sh")
    (folder / "tmp").mkdir(exist_ok=True)
    path = f"{idle(folder)}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "VLLM": str(vllm), "TMPDIR": str(folder / "tmp"), "MARK": str(folder)}
    environment.pop("PORT", None)
    return [str(folder / "best_serve.sh"), "--verify"], environment


def idle(folder: Path) -> Path:
    """Return a folder for the PATH of a machine that is never loaded, and whose waits between two looks are short."""
    programs = folder / "idle"
    programs.mkdir(exist_ok=True)
    for name, text in (("getconf", "echo 9999"), ("sleep", "exec /bin/sleep 0.02")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return programs


def verify(script: Deployment, folder: Path, *more: str, **behaviour: Any) -> subprocess.CompletedProcess[str]:
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
    assert re.fullmatch(r"output_throughput: measured [\d.e+]+, recorded 1 \[0, 1e\+09\] tok/s: within", lines[0])
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
        ({"fail": "oom"}, "the first errors in it:\ntorch.OutOfMemoryError: CUDA out of memory."),
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


def test_an_error_whose_message_begins_on_the_next_line_is_shown_with_it(tmp_path: Path) -> None:
    log = (  # what vLLM writes if `vllm` is a script without a guard of its main module
        "(APIServer pid=7) Traceback (most recent call last):\n"
        "RuntimeError: \n"
        "        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n"
        "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    write_serve_script(script(), tmp_path / "best_serve.sh")
    written = (tmp_path / "best_serve.sh").read_text()
    function = re.search(r"^first_errors\(\) \{\n.*?^\}\n", written, re.MULTILINE | re.DOTALL)
    assert function is not None
    (tmp_path / "log").write_text(log)
    shell = ["bash", "-c", f'{function[0]}first_errors "$1"', "bash", str(tmp_path / "log")]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == (
        "RuntimeError: An attempt has been made to start a new process before the\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )


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


TUNER = Path(sys.executable).with_name("tuner")
MIX = """
arrivals: {process: constant, rate: 50}
requests: 12
warmup_requests: 2
classes:
  short: {input: 20, output: 4, priority: -3}
  own: {text: {file: own.jsonl}}
slo:
  short: {p95_ttft_ms: 60000}
"""
OWN = '{"prompt": "it\'s $(touch pwned) \\u2028", "output_tokens": 3}\n'
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo "tuner 0.1.0"; exit; fi
echo "$*" >>"$RECORD/loads"
printf %s "${TUNER_API_KEY-none}" >"$RECORD/key"
while [ $# -gt 0 ]; do
  if [ "$1" = --workload ]; then rm -rf "$RECORD/sent"; cp -r "$(dirname "$2")" "$RECORD/sent"; fi
  shift
done
answer="$RECORD/answer-$(wc -l <"$RECORD/loads")"
[ -f "$answer" ] || answer="$RECORD/answer"
cat "$answer"
exit 1
"""


def traffic(folder: Path) -> Traffic:
    (folder / "mix.yaml").write_text(MIX)
    (folder / "own.jsonl").write_text(OWN)
    return load_traffic(folder / "mix.yaml")


def digests(load: Traffic | Suite) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in load.files()}


def script_of(load: Traffic | Suite, model: str = "org/model", **changes: Any) -> Deployment:
    """Return a script with the verification of traffic; the changes are fields of either."""
    known = {"goodput": ANY, "p99_itl_ms": ANY}
    sent = verification(ModelRef(model, model, model), load, known, [], digests(load), capacity=False)
    fields = {name: getattr(sent, name) for name in ("load_argv", "traffic", "first_seed", "reference", "bench_argv")}
    return a_script(**{"environment": {}, "slos": (), "model": model, "served_name": model, **fields, **changes})


@dataclass
class Bench:
    """A folder with a fake vLLM and a stub of `tuner` that prints the given answers, then always the last."""

    folder: Path
    token_s: float = 0.0

    def run(
        self, script: Deployment, *answers: Mapping[str, Any], more: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        stub = self.folder / "stub"
        stub.write_text(STUB)
        stub.chmod(0o755)
        for number, answer in enumerate(answers[:-1], 1):
            (self.folder / f"answer-{number}").write_text(json.dumps(answer))
        (self.folder / "answer").write_text(json.dumps(answers[-1]) if answers else "")
        return self.verify(script, *more, **{"TUNER": str(stub), **variables})

    def verify(self, script: Deployment, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = self.command(script, *more, **variables)
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert marked(self.folder) == []
        assert not list(self.folder.rglob("pwned"))
        return done

    def command(self, script: Deployment, *more: str, **variables: str) -> tuple[list[str], dict[str, str]]:
        vllm = install_fake_vllm(self.folder / "bin", requires_key="VLLM_API_KEY" in variables, token_s=self.token_s)
        write_serve_script(script, self.folder / "best_serve.sh")
        (self.folder / "tmp").mkdir(exist_ok=True)
        dropped = ("PORT", "VLLM_API_KEY", "TUNER_API_KEY", "OPENAI_API_KEY", "CUDA_VISIBLE_DEVICES")
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        own = {"VLLM": str(vllm), "TMPDIR": str(self.folder / "tmp"), "MARK": str(self.folder)}
        own |= {"RECORD": str(self.folder), "TUNER_HOME": str(self.folder / "home")}
        environment = inherited | own | variables
        environment["PATH"] = f"{idle(self.folder)}:{environment['PATH']}"
        return [str(self.folder / "best_serve.sh"), "--verify", *more], environment

    @property
    def loads(self) -> list[list[str]]:
        """The arguments of each run of the stub."""
        return [line.split() for line in (self.folder / "loads").read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def answer(invalid: str | None = None, **metrics: float | None) -> dict[str, Any]:
    given = {name.replace("__", "."): value for name, value in metrics.items()}
    measured = {"goodput": 40.0, "p99_itl_ms": 5.0, **given}
    return {"offered": 12, "completed": 12, "duration_s": 1.0, "metrics": measured, "slos": {}, "invalid": invalid}


@pytest.mark.slow
def test_real_traffic_is_sent_measured_and_compared(bench: Bench, tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    script = script_of(traffic(tmp_path), str(tmp_path), slos=(parse_slo("short.p95_ttft_ms<60000"),))
    done = bench.verify(script, TUNER=str(TUNER))
    if "the traffic was not measured: the load generator" in done.stderr:
        pytest.skip("this machine is too busy to send traffic in time")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["within", "within", "holds"]
    assert lines[3].startswith("server stopped: no process of its group")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_load_and_the_server(bench: Bench, tmp_path: Path, number: signal.Signals, code: int) -> None:
    make_tokenizer(tmp_path)
    bench.token_s = 20
    command, environment = bench.command(script_of(traffic(tmp_path), str(tmp_path)), TUNER=str(TUNER))
    plans = "*/requests/*/*-plan.jsonl"
    returned, stdout = signalled(command, environment, number, lambda: any((tmp_path / "tmp").glob(plans)))
    assert returned == code
    assert "server stopped" in stdout
    # the generator's watchdog looks for its owner from time to time
    until(lambda: living(marked(tmp_path)) == [], timeout_s=15)


def test_what_reaches_tuner_is_the_traffic_of_the_study(bench: Bench, tmp_path: Path) -> None:
    load = traffic(tmp_path)
    assert bench.run(script_of(load), answer()).returncode == 0
    sent = load_traffic(tmp_path / "sent" / "traffic.yaml")
    assert [file.read_text() for file in sent.files()] == [OWN]
    assert sent.classes["short"].priority == -3
    moved = {**load.classes, "own": sent.classes["own"]}
    assert sent == load.model_copy(update={"classes": moved})
    words = bench.loads[0]
    assert words[words.index("--seed") + 1] == "901000"
    assert words[words.index("--tokenizer") + 1] == "org/model"


def test_a_suite_is_sent_whole_and_compared_by_workload(bench: Bench, tmp_path: Path) -> None:
    load = traffic(tmp_path)
    suite = Suite(loads={"day": load, "night": load.at_rate(5)})
    script = script_of(suite, reference={"day.p99_itl_ms": Reference(5.0, 4.0, 6.0)})
    done = bench.run(script, answer(day__p99_itl_ms=7.0))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "day.p99_itl_ms: measured 7, recorded 5 [4, 6]: WORSE"
    words = bench.loads[0]
    assert [Path(words[i + 1]).name for i, word in enumerate(words) if word == "--workload"] == [
        "day.yaml",
        "night.yaml",
    ]
    assert load_traffic(tmp_path / "sent" / "night.yaml").rate == 5


def test_shares_are_means_and_other_metrics_medians_over_the_repeats(bench: Bench, tmp_path: Path) -> None:
    answers = [answer(goodput_share=share, p99_itl_ms=itl) for share, itl in ((1.0, 1.0), (1.0, 2.0), (0.4, 9.0))]
    script = script_of(traffic(tmp_path), repeats=3, reference={"goodput_share": ANY, "p99_itl_ms": ANY})
    done = bench.run(script, *answers)
    assert [line.split(",")[0] for line in done.stdout.splitlines()[:2]] == [
        "goodput_share: measured 0.8",
        "p99_itl_ms: measured 2",
    ]
    assert [words[words.index("--seed") + 1] for words in bench.loads] == ["901000", "901100", "901200"]


def test_traffic_that_was_sent_late_is_sent_again_with_other_seeds(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(script_of(traffic(tmp_path), repeats=2), answer("late"), answer("late"), answer(), answer())
    assert (done.returncode, done.stderr) == (0, "")
    assert [words[words.index("--seed") + 1] for words in bench.loads] == ["901000", "901200", "901400", "901100"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([answer("9 ms late")], "9 ms late"),
        pytest.param([], "no readable result", marks=pytest.mark.slow),
        pytest.param([{}], "no readable", marks=pytest.mark.slow),
    ],
)
def test_traffic_that_cannot_be_measured_is_exit_code_2(
    bench: Bench, tmp_path: Path, answers: list[dict[str, Any]], reason: str
) -> None:
    done = bench.run(script_of(traffic(tmp_path)), *answers)
    assert done.returncode == 2
    assert f"the traffic was not measured: {reason}" in done.stderr
    assert len(bench.loads) == 3


@pytest.mark.parametrize(
    "variables", [{"TUNER": "/nowhere/tuner"}, {"TUNER": "true"}, {"TUNER": "", "PATH": "/usr/bin:/bin"}]
)
def test_without_a_tuner_one_line_says_how_to_get_it(bench: Bench, tmp_path: Path, variables: dict[str, str]) -> None:
    done = bench.verify(script_of(traffic(tmp_path)), **variables)
    assert (done.returncode, done.stdout) == (3, "")
    name = variables["TUNER"] or "tuner"
    assert done.stderr == (
        f"best_serve.sh: {name}: no tuner, which sends this study's traffic; install it (uv tool install DIR, its "
        "source), or set TUNER\n"
    )
    usage = subprocess.run([tmp_path / "best_serve.sh", "--help"], capture_output=True, text=True, check=True).stdout
    assert "  TUNER  " in usage
    assert "  3  no tuner is installed" in usage


def test_the_tuner_that_exported_the_script_is_used_without_another(bench: Bench, tmp_path: Path) -> None:
    own = tmp_path / "the stub"
    own.write_text(STUB)
    own.chmod(0o755)
    script = script_of(traffic(tmp_path), tuner=str(own))
    done = bench.run(script, answer(), TUNER="", PATH=f"{Path(sys.executable).parent}/none:/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_does_not_travel_must_be_there_unchanged(bench: Bench, tmp_path: Path) -> None:
    load = traffic(tmp_path)
    known = digests(load)
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "changed", "output_tokens": 3}\n')
    carried = carry_traffic(load, known)
    assert (carried.files, dict(carried.needed)) == ({}, known)
    script = script_of(load, traffic=carried)
    assert f"the traffic reads {own}, which is not the file that the study read" in bench.run(script, answer()).stderr
    own.unlink()
    done = bench.run(script, answer())
    assert done.returncode == 2
    assert done.stderr == f"best_serve.sh: the traffic reads {own}, which this script does not carry; copy it there\n"
    own.write_text(OWN)
    assert bench.run(script, answer()).returncode == 0


def test_the_header_names_the_files_that_travel(tmp_path: Path) -> None:
    write_serve_script(script_of(traffic(tmp_path)), tmp_path / "best_serve.sh")
    text = (tmp_path / "best_serve.sh").read_text()
    assert f"\n# traffic   this script carries the content of {tmp_path}/own.jsonl\n" in text


@pytest.mark.parametrize(
    ("more", "variables", "key"),
    [
        pytest.param((), {}, "none", marks=pytest.mark.slow),
        pytest.param((), {"VLLM_API_KEY": "from env"}, "from env", marks=pytest.mark.slow),
        pytest.param(("--api-key", "given"), {"VLLM_API_KEY": "from env"}, "given", marks=pytest.mark.slow),
        (("--api-key=a", "--api-key=b=c"), {"VLLM_API_KEY": "from env"}, "b=c"),
        ((), {"VLLM_API_KEY": "it's; $(touch pwned)"}, "it's; $(touch pwned)"),
    ],
)
def test_the_key_is_sent_by_the_load(
    bench: Bench, tmp_path: Path, more: tuple[str, ...], variables: dict[str, str], key: str
) -> None:
    # the fake has no --api-key; this stands for it
    vllm = tmp_path / "wrapper"
    vllm.write_text(
        "#!/bin/bash\nwords=()\nwhile (($#)); do case $1 in --api-key) shift;; --api-key=*) ;; *) "
        'words+=("$1");; esac; shift; done\nexec "$REAL" "${words[@]}"\n'
    )
    vllm.chmod(0o755)
    real = tmp_path / "bin" / "vllm"
    done = bench.run(script_of(traffic(tmp_path)), answer(), more=more, VLLM=str(vllm), REAL=str(real), **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "key").read_text() == key


def test_a_key_that_the_script_sets_is_sent(bench: Bench, tmp_path: Path) -> None:
    script = script_of(traffic(tmp_path), environment={"VLLM_API_KEY": "${MY_KEY}"}, references=frozenset({"MY_KEY"}))
    assert bench.run(script, answer(), MY_KEY="a secret").returncode == 0
    assert (tmp_path / "key").read_text() == "a secret"
    assert "a secret" not in (tmp_path / "best_serve.sh").read_text()


@pytest.mark.parametrize(
    ("found", "drivers", "warnings"),
    [
        ("NVIDIA H200, 580.65\nTesla T4, 580.65", ("580.65",), ["the GPU is NVIDIA H200, the study ran on Tesla T4"]),
        ("Tesla T4, 575.1", ("570.1", "580.65"), ["the GPU's driver is 575.1, the study ran with 570.1 580.65"]),
        ("Tesla T4, 580.65", ("570.1", "580.65"), []),
        *(
            pytest.param(found, drivers, [], marks=pytest.mark.slow)
            for found, drivers in (
                ("Tesla T4, 580.65", ("580.65",)),
                ("Tesla T4, 575.1", ()),
                ("Tesla T4, [N/A]", ("580.65",)),
                (None, ("580.65",)),
            )
        ),
    ],
)
def test_another_gpu_or_driver_gives_a_warning(
    bench: Bench, tmp_path: Path, found: str | None, drivers: tuple[str, ...], warnings: list[str]
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    failed = "echo NVIDIA-SMI has failed; exit 9"
    smi.write_text(f"#!/bin/sh\n{failed if found is None else f'printf %b {json.dumps(found)}'}\n")
    smi.chmod(0o755)
    done = bench.run(script_of(traffic(tmp_path), drivers=drivers), answer(), PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"best_serve.sh: warning: {each}" for each in warnings]


def test_a_study_on_the_cpu_is_compared_with_no_gpu(tmp_path: Path) -> None:
    write_serve_script(script_of(traffic(tmp_path), device="cpu"), tmp_path / "best_serve.sh")
    assert "recorded_gpu=''" in (tmp_path / "best_serve.sh").read_text()


def test_what_is_not_measured_is_said_after_what_is(bench: Bench, tmp_path: Path) -> None:
    line = "answers: quality 0.995 of the unquantized model's accuracy with it's\n$(touch pwned); not measured"
    done = bench.run(script_of(traffic(tmp_path), unverified=(line,)), answer())
    assert done.stdout.splitlines()[2] == line.replace("\n", "\\n")
    assert done.returncode == 0


@pytest.mark.program("shellcheck")
def test_it_is_clean_under_shellcheck(tmp_path: Path) -> None:
    load = traffic(tmp_path)
    needed = script_of(load, traffic=carry_traffic(load, dict.fromkeys(digests(load), "0" * 64)))
    carried = script_of(load, unverified=("it's",), drivers=("1", "2"))
    for number, script in enumerate((carried, needed)):
        path = tmp_path / f"{number}.sh"
        write_serve_script(script, path)
        done = subprocess.run(["shellcheck", path], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def repeat(completed: int = 10, **metrics: float | None) -> Repeat:
    return Repeat(0, 0, 10, completed, 10 - completed, 1.0, metrics)


@pytest.mark.parametrize(
    ("values", "line", "failed"),
    [
        ((90.0, 110.0, 100.0), "output_throughput: measured 100, recorded 100 [90, 110] tok/s: within", False),
        ((80.0,), "output_throughput: measured 80, recorded 100 [90, 110] tok/s: WORSE", True),
        ((120.0,), "output_throughput: measured 120, recorded 100 [90, 110] tok/s: better", False),
        ((100.0, None), "output_throughput: measured -, recorded 100 [90, 110] tok/s: NOT MEASURED", True),
    ],
)
def test_the_median_of_the_repeats_is_compared(values: tuple[float | None, ...], line: str, failed: bool) -> None:
    found = compared(
        {"output_throughput": Reference(100.0, 90.0, 110.0)}, (), [repeat(output_throughput=each) for each in values]
    )
    assert (found.lines, found.failed) == ((line,), failed)


def test_less_latency_is_better() -> None:
    found = compared({"p99_ttft_ms": Reference(100.0, 90.0, 110.0)}, (), [repeat(p99_ttft_ms=80.0)])
    assert found.lines == ("p99_ttft_ms: measured 80, recorded 100 [90, 110]: better",)


def test_slos_but_that_on_quality_are_checked_over_all_requests() -> None:
    slos = [parse_slo(each) for each in ("success_rate>=0.95", "p99_tpot_ms<50", "quality>=0.99")]
    found = compared({}, slos, [repeat(10, p99_tpot_ms=40.0), repeat(8, p99_tpot_ms=42.0)])
    assert found.lines == (
        "SLO success_rate>=0.95: measured 0.9: MISSED",
        "SLO p99_tpot_ms<50: measured 41: holds",
    )
    assert found.failed


def test_a_value_within_an_interval_that_cannot_tell_is_inconclusive() -> None:
    """One round on a loaded machine: a server of a tenth of the throughput would be within, too."""
    noisy = {"output_throughput": Reference(1892.17, 181.293, 19748.7, tells=False)}
    found = compared(noisy, (), [repeat(output_throughput=2832.31)])
    line = "output_throughput: measured 2832.31, recorded 1892.17 [181.293, 19748.7] tok/s: inconclusive"
    assert found.lines == (line, INCONCLUSIVE)
    assert (found.failed, found.exit_code) == (False, 5)
    worse = compared(noisy, (), [repeat(output_throughput=100.0)])
    assert (worse.lines[0].rpartition(": ")[2], worse.exit_code) == ("WORSE", 1)


def test_benchmarks_that_vary_by_more_than_a_tenth_are_told() -> None:
    # Deviation 20, mean 100.
    repeats = [repeat(output_throughput=value) for value in (80.0, 100.0, 120.0)]
    found = compared({"output_throughput": Reference(100.0, 90.0, 110.0)}, (), repeats)
    assert found.lines[1:] == (
        "warning: output_throughput varies by 20% between the benchmarks; verify again on a quieter machine",
    )
    assert found.exit_code == 0


NOW = datetime(2026, 1, 1, tzinfo=UTC)
T_8 = 3.355387
"""The 0.995 quantile of Student's t with 8 degrees of freedom, from a printed table."""
T_4 = 4.604095


def record(number: int, round_: int, *values: float | None, failed: bool = False) -> TrialRecord:
    repeats = tuple(
        Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value, "p99_ttft_ms": value})
        for i, value in enumerate(values)
    )
    failure = Failure(FailureKind.ENGINE_CRASH, Phase.BENCHMARK, "gone") if failed else None
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats, failure=failure)
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    return TrialRecord("study", number, round_, kind, None, {}, {}, 1, NOW, outcome)


def references(number: int, records: Sequence[TrialRecord], names: Sequence[str]) -> dict[str, Reference]:
    return recorded.references(number, records, names, measured(None, records, number))


def test_a_single_measurement_gets_the_smallest_interval() -> None:
    known = references(1, [record(1, 0, 1000.0)], ["output_throughput", "p99_ttft_ms"])
    assert (known["output_throughput"].low, known["output_throughput"].high) == pytest.approx((900.0, 1100.0))
    assert (known["p99_ttft_ms"].low, known["p99_ttft_ms"].high) == pytest.approx((700.0, 1300.0))


def test_noise_is_pooled_over_all_trials() -> None:
    # Logarithms of each trial: -0.1, 0, 0.1 about its own mean: squares 0.02 a trial, 2 degrees; four trials make
    # 0.08 / 8, so s = 0.1, whatever the trials' own levels are.
    low, high = math.exp(-0.1), math.exp(0.1)
    records = [record(n, 0, level * low, level, level * high) for n, level in enumerate((100.0, 2000.0, 50.0, 1.0))]
    known = references(1, records, ["output_throughput"])["output_throughput"]
    assert known.value == 2000.0
    assert known.low == pytest.approx(2000.0 * math.exp(-T_8 * 0.1), rel=1e-6)
    assert known.high == pytest.approx(2000.0 * math.exp(T_8 * 0.1), rel=1e-6)


def test_rounds_of_a_trial_are_one_group() -> None:
    # Two launches at exp(-0.2) and exp(0.2): mean 0, squares 0.08, 1 degree; the quantile of 4 degrees is taken. The
    # value is that of the round.
    records = [record(3, 0, math.exp(-0.2)), record(3, 1, math.exp(0.2))]
    known = references(3, records, ["output_throughput"])["output_throughput"]
    assert known.value == pytest.approx(math.exp(0.2))
    assert known.low == pytest.approx(math.exp(0.2 - T_4 * math.sqrt(0.08)), rel=1e-5)
    assert known.low > 0


def test_a_metric_without_measurement_has_no_reference() -> None:
    records = [record(1, 0, 5.0), record(2, 0, None), record(3, 0, 7.0, failed=True)]
    assert references(2, records, ["output_throughput"]) == {}
    assert references(3, records, ["output_throughput"]) == {}
    assert references(9, records, ["output_throughput"]) == {}


def test_the_interval_contains_all_measurements_of_the_trial() -> None:
    records = [record(1, 0, 1000.0, 1000.0, 1000.0, 1000.0, 500.0), *(record(n, 0, 1.0, 1.0) for n in range(2, 200))]
    known = references(1, records, ["output_throughput"])["output_throughput"]
    assert known.low <= 500.0


def test_a_value_of_zero_is_left_out_of_the_variance() -> None:
    known = references(1, [record(1, 0, 0.0, 0.0)], ["p99_ttft_ms"])["p99_ttft_ms"]
    assert (known.low, known.value, known.high) == (0.0, 0.0, 0.0)


def test_the_interval_of_values_far_apart_is_finite() -> None:
    known = references(1, [record(1, 0, 1e-300, 1e300)], ["p99_ttft_ms"])["p99_ttft_ms"]
    assert math.isfinite(known.low)
    assert math.isfinite(known.high)


def test_a_share_of_requests_has_its_sampling_error() -> None:
    repeats = (Repeat(0, 0, 100, 100, 0, 1.0, {"goodput_share": 0.98, "success_rate": 1.0}),)
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats)
    records = [TrialRecord("study", 1, 0, TrialKind.SEARCH, None, {}, {}, 1, NOW, outcome)]
    known = references(1, records, ["goodput_share", "success_rate"])
    # q = (98 + 2) / 104 = 0.96154, sqrt(2 * 0.96154 * 0.03846 / 100) = 0.027196, * 2.576 = 0.070057
    assert known["goodput_share"].low == pytest.approx(0.98 - 0.070057, abs=1e-5)
    assert known["goodput_share"].high == 1.0
    assert (known["success_rate"].low, known["success_rate"].high) == (1.0, 1.0)


@pytest.mark.parametrize(("noise", "tells"), [(0.05, True), (0.1, False)])
def test_an_interval_tells_nothing_if_a_quarter_less_is_within(noise: float, tells: bool) -> None:
    # As above, s is the noise, with 8 degrees: exp(-0.168) = 0.85 and exp(-0.336) = 0.71.
    records = [record(n, 0, *(1000.0 * math.exp(sign * noise) for sign in (-1, 0, 1))) for n in range(4)]
    assert references(1, records, ["output_throughput"])["output_throughput"].tells is tells
    # A latency may double.
    assert references(1, records, ["p99_ttft_ms"])["p99_ttft_ms"].tells


def test_words_are_grouped_as_argparse_does() -> None:
    words = ["a", "--x", "1", "two words", "--y=b=c", "-cc.mode=3", "-O3", "--n", "-5", "-", "- x", "--z="]
    assert arguments_of(words) == (
        Argument("", ("a",)),
        Argument("--x", ("1", "two words")),
        Argument("--y", ("b=c",)),
        Argument("-cc.mode", ("3",)),
        Argument("-O3"),
        Argument("--n", ("-5", "-", "- x")),
        Argument("--z", ("",)),
    )


def test_gpus_are_those_of_all_kinds_of_parallelism() -> None:
    assert deployment(argv=()).gpus_of_server == 1
    assert deployment(argv=("-tp", "4", "--data_parallel_size=2")).gpus_of_server == 8
    assert deployment(argv=("--tensor-parallel-size", "two")).gpus_of_server == 1
    assert deployment(argv=("-tp", "4"), device="cpu").gpus_of_server == 0


@pytest.mark.parametrize("device", ["NVIDIA L4", "2 × NVIDIA L4", "2 nodes of NVIDIA L4", "2 nodes of 4 × NVIDIA L4"])
def test_the_card_is_one_of_several(device: str) -> None:
    assert deployment(device=device).card == "NVIDIA L4"


def test_flags_exclude_model_and_name() -> None:
    made = deployment(model="/m", served_name="--odd", argv=("--max-num-seqs", "8"))
    assert made.words == ("/m", "--served-model-name", "--odd", "--max-num-seqs", "8")
    assert made.flag_words == ("--max-num-seqs", "8")
    assert made.model_folder == "/m"
    assert deployment(model="m").model_folder is None


def test_the_version_has_no_local_part() -> None:
    assert deployment(vllm_version="0.32.0+cpu").public_version == "0.32.0"
