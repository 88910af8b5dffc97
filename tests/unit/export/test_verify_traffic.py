"""`best_serve.sh --verify` of traffic: what it sends, the programs that it needs, and what it warns of."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ended_with import living
from tests.fakes import install_fake_vllm
from tests.real.tiny_model import make_tokenizer
from tests.unit.export.test_verify import idle, marked, signalled
from tests.unit.processes.started import until
from tuner.export.references import Reference
from tuner.export.render import write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.export.verification import carry_traffic, verification
from tuner.scoring.goals import parse_slo
from tuner.specs import ModelRef
from tuner.testing.exporter import a_script
from tuner.workloads.spec import Suite
from tuner.workloads.traffic import Traffic, load_traffic

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
ANY = Reference(1.0, 0.0, 1e9)
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


def script_of(load: Traffic | Suite, model: str = "org/model", **changes: Any) -> ServeScript:
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
        self, script: ServeScript, *answers: Mapping[str, Any], more: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        stub = self.folder / "stub"
        stub.write_text(STUB)
        stub.chmod(0o755)
        for number, answer in enumerate(answers[:-1], 1):
            (self.folder / f"answer-{number}").write_text(json.dumps(answer))
        (self.folder / "answer").write_text(json.dumps(answers[-1]) if answers else "")
        return self.verify(script, *more, **{"TUNER": str(stub), **variables})

    def verify(self, script: ServeScript, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = self.command(script, *more, **variables)
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert marked(self.folder) == []
        assert not list(self.folder.rglob("pwned"))
        return done

    def command(self, script: ServeScript, *more: str, **variables: str) -> tuple[list[str], dict[str, str]]:
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
