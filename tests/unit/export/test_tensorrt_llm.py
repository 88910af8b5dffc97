"""The script and the other formats of a server of TensorRT-LLM, whose options are in a file."""

from __future__ import annotations

import os
import shlex
import subprocess
from datetime import date
from pathlib import Path

import pytest
import yaml

from records.trials import Provenance
from tuner.engines.command_line import program_of
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.from_study import _server_arguments
from tuner.export.references import Reference
from tuner.export.render import render_serve_script, write_serve_script
from tuner.export.serve_script import ServeScript
from tuner.export.verification import verification
from tuner.specs import ModelRef
from tuner.workloads.spec import ClosedLoop

MODEL = "/models/a model"
LOAD = ClosedLoop(max_concurrency=4, num_prompts=24, input_len=32, output_len=8)
WORDS = ("--max_batch_size", "64")
NASTY = "$(touch ran) `touch ran` 'x' \"y\" END_OF_OPTIONS"
OPTIONS = (
    *("--config.return_perf_metrics", "true", "--config.cuda_graph_config", "null"),
    *("--config.kv_cache_config.dtype", "fp8", "--config.kv_cache_config.free_gpu_memory_fraction", "0.85"),
)
CONTENT = {
    "return_perf_metrics": True,
    "cuda_graph_config": None,
    "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.85},
}
STUB = """#!/bin/sh
printf '%s\\n' "$@" >"$RECORD/argv"
while [ $# -gt 1 ]; do
  if [ "$1" = --extra_llm_api_options ]; then cat "$2" >"$RECORD/options"; cat "$2" >"$RECORD/again"; fi
  shift
done
"""


def a_script(executable: str | None, *options: str) -> ServeScript:
    recorded = {"output_throughput": Reference(9.0, 8.0, 10.0)}
    return ServeScript(
        study="demo",
        trial=3,
        model=MODEL,
        served_name=MODEL,
        argv=("--backend", "pytorch", "--host", "127.0.0.1", "--port", "12345", *(options or OPTIONS), *WORDS),
        environment={},
        vllm_version="1.3.0rc7",
        device="NVIDIA H200",
        date=date(2026, 11, 26),
        provenance=Provenance.MEASURED,
        numbers=(),
        slos=(),
        verdict="",
        verification=verification(ModelRef(MODEL, MODEL, MODEL), LOAD, recorded, [], {}, False, "tensorrt-llm"),
        executable=executable,
        program=program_of("tensorrt-llm"),
    )


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A program of the name that notes its arguments and reads the file of options twice."""
    path = tmp_path / "bin" / "trtllm-serve"
    path.parent.mkdir()
    path.write_text(STUB)
    path.chmod(0o755)
    return path


def run(command: list[str | Path], stub: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "RECORD": str(folder), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        command, env={**variables, "PORT": "8123"}, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("nasty", [False, True])
def test_the_script_hands_the_options_to_the_server_as_a_file_that_leaves_nothing(
    tmp_path: Path, stub: Path, nasty: bool
) -> None:
    given = (*OPTIONS, "--config.model_kwargs.text", yaml.safe_dump(NASTY)) if nasty else OPTIONS
    write_serve_script(a_script(None, *given), tmp_path / "best_serve.sh")
    done = run([tmp_path / "best_serve.sh", "--log_level", "warning"], stub, tmp_path)
    assert done.returncode == 0, done.stderr
    seen = (tmp_path / "argv").read_text().splitlines()
    start = ["serve", MODEL, "--backend", "pytorch", *WORDS, "--extra_llm_api_options", "/dev/fd/7"]
    assert seen == [*start, "--host", "127.0.0.1", "--port", "8123", "--log_level", "warning"]
    expected = {**CONTENT, "model_kwargs": {"text": NASTY}} if nasty else CONTENT
    assert yaml.safe_load((tmp_path / "options").read_text()) == expected
    assert (tmp_path / "again").read_text() == (tmp_path / "options").read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "ran").exists()


def test_the_version_is_that_of_the_python_in_the_first_line_of_the_program(tmp_path: Path, stub: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nif [ "$1" = -c ]; then echo 1.2.1; exit; fi\nshift; exec sh "$0".stub "$@"\n')
    python.chmod(0o755)
    (tmp_path / "python.stub").write_text(STUB)
    stub.write_text(f"#!{python}\n")
    write_serve_script(a_script(None), tmp_path / "best_serve.sh")
    done = run([tmp_path / "best_serve.sh"], stub, tmp_path)
    assert done.stderr == "best_serve.sh: warning: TensorRT-LLM 1.2.1 is installed, the study ran 1.3.0rc7\n"


def test_the_usage_names_the_program_and_its_variable() -> None:
    text = render_serve_script(a_script("/venv/bin/trtllm-serve"))
    assert "Further arguments are passed to `trtllm-serve serve` after those of the study" in text
    order = "default: trtllm-serve on PATH, else the executable that the study ran"
    assert f"\n  TRTLLM_SERVE       the trtllm-serve executable ({order})" in text
    assert "--config." not in text


def test_the_command_is_one_line_with_the_options_in_a_here_string(tmp_path: Path, stub: Path) -> None:
    text = yaml.safe_dump(NASTY)
    script = a_script("/venv/bin/trtllm-serve", *OPTIONS, "--config.model_kwargs.text", text)
    write_deployment(FORMATS["command"], Deployment(script), tmp_path / "command.sh")
    line = (tmp_path / "command.sh").read_text().splitlines()[-1]
    words = ["trtllm-serve", "serve", MODEL, "--backend", "pytorch", *WORDS, "--extra_llm_api_options", "/dev/fd/7"]
    assert shlex.split(line.partition(" 7<<<")[0]) == words
    assert run(["bash", tmp_path / "command.sh"], stub, tmp_path).returncode == 0
    assert yaml.safe_load((tmp_path / "options").read_text()) == {**CONTENT, "model_kwargs": {"text": NASTY}}
    assert not (tmp_path / "ran").exists()


def test_the_unit_reads_a_second_file_and_formats_of_vllm_refuse_the_server(tmp_path: Path) -> None:
    deployment = Deployment(a_script("/venv/bin/trtllm-serve"))
    paths = write_deployment(FORMATS["systemd"], deployment, tmp_path / "demo.service")
    assert [path.name for path in paths] == ["demo.service", "demo.yaml"]
    unit = (tmp_path / "demo.service").read_text()
    listening = "--host 127.0.0.1 --port 8000 --extra_llm_api_options /etc/demo.yaml"
    words = f'serve "{MODEL}" --backend pytorch --max_batch_size 64 {listening}'
    assert f"ExecStart=/venv/bin/trtllm-serve {words}\n" in unit
    assert "first copy the options, which the server reads: cp demo.yaml /etc/" in unit
    assert yaml.safe_load((tmp_path / "demo.yaml").read_text()) == CONTENT
    with pytest.raises(SettingError, match="for vLLM's servers only, and the study ran TensorRT-LLM"):
        write_deployment(FORMATS["compose"], deployment, tmp_path / "file")


def test_the_record_of_a_trial_has_the_model_after_the_command_and_keeps_the_options() -> None:
    argv = ("/venv/bin/trtllm-serve", "serve", MODEL, "--backend", "pytorch", *OPTIONS, *WORDS)
    model, arguments = _server_arguments(argv, program_of("tensorrt-llm"), MODEL)
    assert (model, arguments) == (MODEL, ("--backend", "pytorch", *OPTIONS, *WORDS))


def test_a_closed_loop_is_verified_as_traffic_of_one_class() -> None:
    sent = a_script(None).verification
    assert sent.bench_argv == sent.warmup_argv == ()
    assert sent.traffic is not None
    assert "users: 4" in sent.traffic.workloads["traffic.yaml"]
