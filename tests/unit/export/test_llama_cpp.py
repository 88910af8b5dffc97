"""The script and the other formats of a server of llama.cpp."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from records.trials import Provenance
from tuner.engines.command_line import program_of
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.quoting import VLLM_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.render import write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.export.verification import verification
from tuner.specs import ModelRef
from tuner.workloads.spec import ClosedLoop

MODEL = "/models/a model.gguf"
LOAD = ClosedLoop(max_concurrency=4, num_prompts=24, input_len=32, output_len=8)
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo "version: 6711 (a1b2c3d)" >&2; exit; fi
printf '%s\\n' "$@" >"$RECORD/argv"
"""
STARTED = ["--model", MODEL, "--alias", MODEL, "--metrics", "--parallel", "4"]


def a_script(executable: str | None = "/opt/llama/llama-server") -> ServeScript:
    sent = verification(
        ModelRef(MODEL, MODEL, MODEL),
        LOAD,
        {"output_throughput": Reference(9.0, 8.0, 10.0)},
        [],
        {},
        False,
        "llama.cpp",
    )
    return ServeScript(
        study="demo",
        trial=3,
        model=MODEL,
        served_name=MODEL,
        argv=("--host", "127.0.0.1", "--port", "12345", "--metrics", "--parallel", "4"),
        environment={},
        vllm_version="6711",
        device="cpu",
        date=date(2026, 11, 26),
        provenance=Provenance.MEASURED,
        numbers=(),
        slos=(),
        verdict="",
        verification=sent,
        executable=executable,
        program=program_of("llama.cpp"),
    )


def start(script: ServeScript, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    stub, path = folder / "stub", folder / "best_serve.sh"
    stub.write_text(STUB)
    stub.chmod(0o755)
    write_serve_script(script, path)
    variables = {"PATH": os.environ["PATH"], "LLAMA_SERVER": str(stub), "RECORD": str(folder), "PORT": "8123"}
    return subprocess.run([path, *arguments], env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_starts_the_server_with_the_words_of_the_study(tmp_path: Path) -> None:
    done = start(a_script(), tmp_path, "--threads", "2")
    assert (done.returncode, done.stderr) == (0, "")
    seen = (tmp_path / "argv").read_text().splitlines()
    assert seen == [*STARTED, "--host", "127.0.0.1", "--port", "8123", "--threads", "2"]


def test_the_script_warns_of_another_version(tmp_path: Path) -> None:
    done = start(replace(a_script(), vllm_version="6000"), tmp_path)
    assert done.stderr == "best_serve.sh: warning: llama.cpp 6711 is installed, the study ran 6000\n"


def test_the_usage_names_the_program_and_its_variables(tmp_path: Path) -> None:
    usage = start(a_script(), tmp_path, "--help").stdout
    assert "Further arguments are passed to `llama-server` after those of the study" in usage
    assert "\n  LLAMA_SERVER       the llama-server executable" in usage
    assert "\n  LLAMA_API_KEY      the server's API key, which llama.cpp reads itself" in usage
    assert "vllm" not in usage.lower()


def test_a_closed_loop_is_verified_as_traffic_of_one_class() -> None:
    sent = a_script().verification
    assert sent.bench_argv == sent.warmup_argv == ()
    assert sent.traffic is not None
    workload = sent.traffic.workloads["traffic.yaml"]
    for line in ("users: 4", "requests: 24", "fixed: 32", "fixed: 8"):
        assert line in workload, workload
    assert sent.load_argv[sent.load_argv.index("--tokenizer") + 1] == MODEL
    assert VLLM_PLACEHOLDER not in sent.load_argv


def test_a_closed_loop_of_vllm_is_still_verified_by_its_client() -> None:
    sent = verification(ModelRef("m", "m", "m"), LOAD, {}, [], {}, False)
    assert sent.traffic is None
    assert sent.bench_argv[:2] == ("bench", "serve")


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_in_a_study_of_both_the_generator_sends_the_tokens_that_both_have(engine: str) -> None:
    own, other = ("hf", "m.gguf") if engine == "vllm" else ("m.gguf", "hf")
    sent = verification(ModelRef("m", own, "m"), LOAD, {}, [], {}, False, engine, tokenizers=("hf", "m.gguf"))
    assert sent.traffic is not None
    assert (sent.tokenizers, sent.new_connections, sent.bench_argv) == ((own, other), True, ())
    place = sent.load_argv.index("--tokenizer")
    assert sent.load_argv[place : place + 4] == ("--tokenizer", own, "--tokenizer", other)
    assert "--new-connections" in sent.load_argv
    assert (VLLM_PLACEHOLDER in sent.load_argv) == (engine == "vllm")


@pytest.mark.parametrize(
    ("executable", "program"),
    [
        ("/opt/llama/llama-server", "llama-server"),
        (f"/venv/bin/{LAUNCHER}", LAUNCHER),
        ("llama-server", "llama-server"),
    ],
)
def test_the_command_starts_the_program_that_the_study_ran(tmp_path: Path, executable: str, program: str) -> None:
    script = replace(a_script(executable), program=program_of("llama.cpp", argv=(executable,)))
    write_deployment(FORMATS["command"], Deployment(script), tmp_path / "command.sh")
    command = (tmp_path / "command.sh").read_text().splitlines()[-1]
    assert command == f"{program} --model '{MODEL}' --alias '{MODEL}' --metrics --parallel 4"


def test_the_unit_has_no_settings_of_vllm(tmp_path: Path) -> None:
    write_deployment(FORMATS["systemd"], Deployment(a_script()), tmp_path / "llama.service")
    unit = (tmp_path / "llama.service").read_text()
    assert "Description=llama.cpp server of tuner study demo, trial 3\n" in unit
    assert (
        f'ExecStart=/opt/llama/llama-server --model "{MODEL}" --alias "{MODEL}" --metrics --parallel 4 --host' in unit
    )
    assert "VLLM" not in unit
