"""The script and the other formats of a server that a user's command starts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from records.trials import Provenance
from tuner.engines.command_line import program_of
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.references import Reference
from tuner.export.render import write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.export.verification import verification
from tuner.specs import ModelRef
from tuner.workloads.spec import ClosedLoop

COMMAND = ("./serve", "{model}", "{flags}", "--listen={host}:{port}", "--", "it's")
LOAD = ClosedLoop(max_concurrency=4, num_prompts=24, input_len=32, output_len=8)
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo "serve version 1.2.3 (a1b2c3d)"; exit; fi
pwd >"$RECORD/folder"
printf '%s\\n' "$@" >"$RECORD/argv"
"""


def a_script(folder: Path, executable: Path | None = None) -> ServeScript:
    model = ModelRef("a model", "tokens", "a model")
    sent = verification(model, LOAD, {"output_throughput": Reference(9.0, 8.0, 10.0)}, [], {}, False, "openai")
    return ServeScript(
        study="demo",
        trial=3,
        model="a model",
        served_name="a model",
        argv=("--slots", "4"),
        environment={},
        vllm_version="1.2.3",
        device="cpu",
        date=date(2026, 11, 26),
        provenance=Provenance.MEASURED,
        numbers=(),
        slos=(),
        verdict="",
        verification=sent,
        executable=str(executable or "/opt/serve"),
        program=program_of("openai", COMMAND),
        folder=str(folder),
    )


def stub_in(folder: Path) -> Path:
    stub = folder / "serve"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return stub


def start(script: ServeScript, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = folder / "best_serve.sh"
    write_serve_script(script, path)
    environment = {"PATH": os.environ["PATH"], "RECORD": str(folder), **variables}
    return subprocess.run(
        [path, *arguments], env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


def test_the_script_fills_the_places_of_the_command_and_runs_in_its_folder(tmp_path: Path) -> None:
    done = start(a_script(tmp_path, stub_in(tmp_path)), tmp_path, "--more", "{x}", PORT="8123", HOST="0.0.0.0")
    assert (done.returncode, done.stderr) == (0, "")
    words = (tmp_path / "argv").read_text().splitlines()
    assert words == ["a model", "--slots", "4", "--more", "{x}", "--listen=0.0.0.0:8123", "--", "it's"]
    assert (tmp_path / "folder").read_text().strip() == str(tmp_path)


def test_another_program_may_be_given_and_a_folder_may_be_gone(tmp_path: Path) -> None:
    script = replace(a_script(tmp_path / "gone"), vllm_version="unknown")
    done = start(script, tmp_path, SERVER_PROGRAM=str(stub_in(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "argv").read_text().splitlines()[-3] == "--listen=127.0.0.1:8000"


def test_the_script_warns_of_another_version(tmp_path: Path) -> None:
    done = start(replace(a_script(tmp_path, stub_in(tmp_path)), vllm_version="1.0"), tmp_path)
    assert done.stderr == "best_serve.sh: warning: serve 1.2.3 is installed, the study ran 1.0\n"


@pytest.mark.program("shellcheck")
def test_the_script_is_clean_under_shellcheck(tmp_path: Path) -> None:
    path = tmp_path / "best_serve.sh"
    write_serve_script(replace(a_script(Path("/the folder's")), tuner="/opt/tuner"), path)
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_usage_names_the_program(tmp_path: Path) -> None:
    usage = start(a_script(tmp_path), tmp_path, "--help").stdout
    assert "\n  SERVER_PROGRAM     the serve executable (default: the executable that the study ran" in usage
    assert "\n  TUNER_API_KEY      the server's API key; --verify sends it" in usage
    assert "vllm" not in usage.lower()


def test_the_workload_is_sent_over_new_connections(tmp_path: Path) -> None:
    sent = a_script(tmp_path).verification
    assert sent.bench_argv == ()
    assert "--new-connections" in sent.load_argv
    assert "--vllm" not in sent.load_argv


def test_the_command_is_one_line(tmp_path: Path) -> None:
    write_deployment(FORMATS["command"], Deployment(a_script(Path("/the folder"))), tmp_path / "command.sh")
    line = (tmp_path / "command.sh").read_text().splitlines()[-1]
    assert line == (
        "cd '/the folder' && /opt/serve 'a model' --slots 4 '--listen=127.0.0.1:8000' -- " + """'it'"'"'s'"""
    )


def test_the_unit_runs_in_the_folder_and_waits_for_health_or_models(tmp_path: Path) -> None:
    write_deployment(FORMATS["systemd"], Deployment(a_script(Path("/the folder/50%"))), tmp_path / "serve.service")
    unit = (tmp_path / "serve.service").read_text()
    assert "Description=serve server of tuner study demo, trial 3\n" in unit
    assert "WorkingDirectory=/the folder/50%%\n" in unit
    assert 'ExecStart=/opt/serve "a model" --slots 4 --listen=127.0.0.1:8000 -- "it\'s"\n' in unit
    assert "127.0.0.1:8000/health || curl -sf -o /dev/null http://127.0.0.1:8000/v1/models; do" in unit
