"""The script and the other formats of a server of SGLang."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from records.trials import Provenance
from tuner.engines.command_line import program_of
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.quoting import VLLM_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.render import write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.export.verification import verification
from tuner.specs import ModelRef
from tuner.workloads.spec import ClosedLoop

MODEL = "/models/a model"
LOAD = ClosedLoop(max_concurrency=4, num_prompts=24, input_len=32, output_len=8)
STUB = """#!/bin/sh
if [ "$1" = -c ]; then echo 0.5.23; exit; fi
printf '%s\\n' "$@" >"$RECORD/argv"
"""
START = ["-m", "sglang.launch_server", "--model-path", MODEL, "--served-model-name", MODEL]
FLAGS = ["--enable-metrics", "--max-running-requests", "64"]


def a_script(executable: str | None) -> ServeScript:
    recorded = {"output_throughput": Reference(9.0, 8.0, 10.0)}
    return ServeScript(
        study="demo",
        trial=3,
        model=MODEL,
        served_name=MODEL,
        argv=("--host", "127.0.0.1", "--port", "12345", *FLAGS),
        environment={},
        vllm_version="0.5.23",
        device="NVIDIA H200",
        date=date(2026, 11, 26),
        provenance=Provenance.MEASURED,
        numbers=(),
        slos=(),
        verdict="",
        verification=verification(ModelRef(MODEL, MODEL, MODEL), LOAD, recorded, [], {}, False, "sglang"),
        executable=executable,
        program=program_of("sglang"),
    )


@pytest.fixture
def python(tmp_path: Path) -> Path:
    stub = tmp_path / "venv" / "python"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    return stub


def start(script: ServeScript, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = folder / "best_serve.sh"
    write_serve_script(script, path)
    given = {"PATH": os.environ["PATH"], "RECORD": str(folder), "PORT": "8123", **variables}
    return subprocess.run([path, *arguments], env=given, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_starts_the_python_of_the_study_before_the_one_on_the_path(tmp_path: Path, python: Path) -> None:
    done = start(a_script(str(python)), tmp_path, "--log-level", "warning")
    assert (done.returncode, done.stderr) == (0, "")
    seen = (tmp_path / "argv").read_text().splitlines()
    assert seen == [*START, *FLAGS, "--host", "127.0.0.1", "--port", "8123", "--log-level", "warning"]


def test_the_variable_names_another_python_and_another_version_is_named(tmp_path: Path, python: Path) -> None:
    script = replace(a_script(None), vllm_version="0.5.17")
    done = start(script, tmp_path, SGLANG_PYTHON=str(python))
    assert done.stderr == "best_serve.sh: warning: SGLang 0.5.23 is installed, the study ran 0.5.17\n"
    assert (tmp_path / "argv").exists()


def test_the_usage_says_where_the_python_and_the_key_come_from(tmp_path: Path) -> None:
    usage = start(a_script("/venv/bin/python"), tmp_path, "--help").stdout
    assert "Further arguments are passed to `python3 -m sglang.launch_server` after those of the study" in usage
    order = "default: the executable that the study ran, else python3 on PATH"
    assert f"\n  SGLANG_PYTHON      the python3 executable ({order})" in usage
    assert "\n  TUNER_API_KEY      the server's API key; --verify sends it, and that of --api-key" in usage


def test_a_closed_loop_is_verified_as_traffic_of_one_class() -> None:
    sent = a_script(None).verification
    assert sent.bench_argv == sent.warmup_argv == ()
    assert sent.traffic is not None
    assert "users: 4" in sent.traffic.workloads["traffic.yaml"]
    assert VLLM_PLACEHOLDER not in sent.load_argv


@pytest.mark.parametrize(("executable", "program"), [("/venv/bin/python", "/venv/bin/python"), (None, "python3")])
def test_the_command_names_the_python_that_the_study_ran(tmp_path: Path, executable: str | None, program: str) -> None:
    write_deployment(FORMATS["command"], Deployment(a_script(executable)), tmp_path / "command.sh")
    line = (tmp_path / "command.sh").read_text().splitlines()[-1]
    words = f"-m sglang.launch_server --model-path '{MODEL}' --served-model-name '{MODEL}'"
    assert line == f"{program} {words} {' '.join(FLAGS)}"


def test_the_unit_starts_the_python_and_formats_of_vllm_refuse_the_server(tmp_path: Path) -> None:
    deployment = Deployment(a_script("/venv/bin/python"))
    write_deployment(FORMATS["systemd"], deployment, tmp_path / "sglang.service")
    unit = (tmp_path / "sglang.service").read_text()
    assert "Description=SGLang server of tuner study demo, trial 3\n" in unit
    assert f'ExecStart=/venv/bin/python -m sglang.launch_server --model-path "{MODEL}"' in unit
    assert "VLLM" not in unit
    with pytest.raises(SettingError, match="for vLLM's servers only, and the study ran SGLang"):
        write_deployment(FORMATS["compose"], deployment, tmp_path / "file")
