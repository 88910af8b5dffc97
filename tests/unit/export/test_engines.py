"""The script and the other formats of servers that are not vLLM: llama.cpp, SGLang, TensorRT-LLM, and a user's command.

`test_every_winner.py` has the words of random configurations; here are the lines that a person wrote down.
"""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.engines.command_line import program_of
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.from_study import _server_arguments
from tuner.export.quoting import VLLM_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.render import write_serve_script
from tuner.export.verification import verification
from tuner.specs import ModelRef
from tuner.testing.exporter import a_script
from tuner.workloads.spec import ClosedLoop

MODEL = "/models/a model"
LOAD = ClosedLoop(max_concurrency=4, num_prompts=24, input_len=32, output_len=8)
COMMAND = ("./serve", "{model}", "{flags}", "--listen={host}:{port}", "--", "it's")
FLAGS = {
    "llama.cpp": ("--metrics", "--parallel", "4"),
    "sglang": ("--enable-metrics", "--max-running-requests", "64"),
    "tensorrt-llm": ("--backend", "pytorch", "--max_batch_size", "64"),
    "openai": ("--slots", "4"),
}
LLAMA = f"--model '{MODEL}' --alias '{MODEL}' --metrics --parallel 4"
SGLANG = f"-m sglang.launch_server --model-path '{MODEL}' --served-model-name '{MODEL}' {' '.join(FLAGS['sglang'])}"
OPTIONS = (
    *("--config.return_perf_metrics", "true", "--config.cuda_graph_config", "null"),
    *("--config.kv_cache_config.dtype", "fp8", "--config.kv_cache_config.free_gpu_memory_fraction", "0.85"),
)
CONTENT = {
    "return_perf_metrics": True,
    "cuda_graph_config": None,
    "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.85},
}
NASTY = "$(touch ran) `touch ran` 'x' \"y\" END_OF_OPTIONS"
ODD_OPTIONS = (*OPTIONS, "--config.model_kwargs.text", yaml.safe_dump(NASTY))
ODD_CONTENT = {**CONTENT, "model_kwargs": {"text": NASTY}}
STUB = """#!/bin/sh
if [ "$1" = --version ] || [ "$1" = -c ]; then echo VERSION; exit; fi
pwd >"$RECORD/folder"
printf '%s\\n' "$@" >"$RECORD/argv"
while [ $# -gt 1 ]; do
  if [ "$1" = --extra_llm_api_options ]; then cat "$2" >"$RECORD/options"; cat "$2" >"$RECORD/again"; fi
  shift
done
"""
SAYS = {"llama.cpp": '"version: 6711 (a1b2c3d)" >&2', "sglang": "0.5.23", "openai": '"serve version 1.2.3 (a1b2c3d)"'}
VERSIONS = {"llama.cpp": "6711", "sglang": "0.5.23", "tensorrt-llm": "1.3.0rc7", "openai": "1.2.3"}
VARIABLES = {"llama.cpp": "LLAMA_SERVER", "sglang": "SGLANG_PYTHON", "openai": "SERVER_PROGRAM"}
ENGINES = tuple(FLAGS)


def script_of(
    engine: str, executable: str | Path | None = None, options: tuple[str, ...] = (), **more: Any
) -> Deployment:
    recorded = {"output_throughput": Reference(9.0, 8.0, 10.0)}
    listens = () if engine == "openai" else ("--host", "127.0.0.1", "--port", "12345")
    return a_script(
        **{
            "model": MODEL,
            "served_name": MODEL,
            "argv": (*listens, *options, *FLAGS[engine]),
            "environment": {},
            "vllm_version": VERSIONS[engine],
            "slos": (),
            "executable": None if executable is None else str(executable),
            "program": program_of(engine, COMMAND if engine == "openai" else ()),
            "verification": verification(ModelRef(MODEL, MODEL, MODEL), LOAD, recorded, [], {}, False, engine),
            **more,
        }
    )


def stub_in(folder: Path, name: str, says: str = "") -> Path:
    """A program that notes its folder and arguments, and reads a file of options twice."""
    folder.mkdir(exist_ok=True)
    stub = folder / name
    stub.write_text(STUB.replace("VERSION", says))
    stub.chmod(0o755)
    return stub


def run(command: list[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    given = {"PATH": os.environ["PATH"], "RECORD": str(folder), "TMPDIR": str(folder / "tmp"), "PORT": "8123"}
    return subprocess.run(
        command, env=given | variables, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def start(script: Deployment, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    write_serve_script(script, folder / "best_serve.sh")
    return run([folder / "best_serve.sh", *arguments], folder, **variables)


def seen(folder: Path) -> list[str]:
    return (folder / "argv").read_text().splitlines()


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("llama.cpp", [*shlex.split(LLAMA), "--host", "127.0.0.1", "--port", "8123", "--x"]),
        ("sglang", [*shlex.split(SGLANG), "--host", "127.0.0.1", "--port", "8123", "--x"]),
        ("openai", [MODEL, "--slots", "4", "--x", "--listen=127.0.0.1:8123", "--", "it's"]),
    ],
)
def test_the_script_starts_the_program_of_the_study_with_its_words(
    tmp_path: Path, engine: str, words: list[str]
) -> None:
    program = stub_in(tmp_path / "of the study", "serve", SAYS[engine])
    more: dict[str, Any] = {"folder": str(tmp_path / "of the study")} if engine == "openai" else {}
    variables = {"LLAMA_SERVER": str(program)} if engine == "llama.cpp" else {}
    done = start(script_of(engine, program, **more), tmp_path, "--x", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(tmp_path) == words
    folder = tmp_path / "of the study" if engine == "openai" else tmp_path
    assert (tmp_path / "folder").read_text() == f"{folder}\n"


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("llama.cpp", "llama.cpp 6711 is installed, the study ran 0.1"),
        ("sglang", "SGLang 0.5.23 is installed, the study ran 0.1"),
        ("openai", "serve 1.2.3 is installed, the study ran 0.1"),
    ],
)
def test_a_variable_names_another_program_and_another_version_is_named(
    tmp_path: Path, engine: str, message: str
) -> None:
    other = stub_in(tmp_path / "other", "serve", SAYS[engine])
    script = script_of(engine, "/gone/serve", vllm_version="0.1")
    done = start(script, tmp_path, **{VARIABLES[engine]: str(other)})
    assert done.stderr == f"best_serve.sh: warning: {message}\n"
    assert MODEL in seen(tmp_path)


def test_the_folder_of_a_command_may_be_gone(tmp_path: Path) -> None:
    script = script_of("openai", "/gone/serve", folder=str(tmp_path / "gone"), vllm_version="unknown")
    done = start(script, tmp_path, SERVER_PROGRAM=str(stub_in(tmp_path, "serve")))
    assert (done.returncode, done.stderr) == (0, "")


USAGE = {
    "llama.cpp": (
        "are passed to `llama-server` after those of the study",
        "\n  LLAMA_SERVER       the llama-server executable",
        "\n  LLAMA_API_KEY      the server's API key, which llama.cpp reads itself",
    ),
    "sglang": (
        "are passed to `python3 -m sglang.launch_server` after those of the study",
        "\n  SGLANG_PYTHON      the python3 executable (default: the executable that the study ran, else",
        "\n  TUNER_API_KEY      the server's API key; --verify sends it, and that of --api-key",
    ),
    "tensorrt-llm": (
        "are passed to `trtllm-serve serve` after those of the study",
        "\n  TRTLLM_SERVE       the trtllm-serve executable (default: trtllm-serve on PATH, else the",
    ),
    "openai": (
        "\n  SERVER_PROGRAM     the serve executable (default: the executable that the study ran",
        "\n  TUNER_API_KEY      the server's API key; --verify sends it",
    ),
}


@pytest.mark.parametrize("engine", USAGE)
def test_the_usage_names_the_program_and_its_variables(tmp_path: Path, engine: str) -> None:
    usage = start(
        script_of(engine, "/opt/serve", OPTIONS if engine == "tensorrt-llm" else ()), tmp_path, "--help"
    ).stdout
    assert [part for part in USAGE[engine] if part not in usage] == [], usage
    assert "vllm" not in usage.lower()
    assert "--config." not in usage


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closed_loop_is_verified_as_traffic_of_one_class(engine: str) -> None:
    sent = script_of(engine).verification
    assert sent.bench_argv == sent.warmup_argv == ()
    assert sent.traffic is not None
    workload = sent.traffic.workloads["traffic.yaml"]
    for line in ("users: 4", "requests: 24", "fixed: 32", "fixed: 8"):
        assert line in workload, workload
    assert sent.load_argv[sent.load_argv.index("--tokenizer") + 1] == MODEL
    assert VLLM_PLACEHOLDER not in sent.load_argv
    assert ("--new-connections" in sent.load_argv) == (engine == "openai")


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
    ("engine", "executable", "line"),
    [
        ("llama.cpp", "/opt/llama/llama-server", f"llama-server {LLAMA}"),
        ("llama.cpp", f"/venv/bin/{LAUNCHER}", f"{LAUNCHER} {LLAMA}"),
        ("llama.cpp", "llama-server", f"llama-server {LLAMA}"),
        ("sglang", "/venv/bin/python", f"/venv/bin/python {SGLANG}"),
        ("sglang", None, f"python3 {SGLANG}"),
        (
            "openai",
            "/opt/serve",
            f"cd '/a folder' && /opt/serve '{MODEL}' --slots 4 '--listen=127.0.0.1:8000' -- " + """'it'"'"'s'""",
        ),
    ],
)
def test_the_command_is_one_line(tmp_path: Path, engine: str, executable: str | None, line: str) -> None:
    program = program_of(engine, COMMAND if engine == "openai" else (), () if executable is None else (executable,))
    script = script_of(engine, executable, program=program, folder="/a folder" if engine == "openai" else None)
    write_deployment(FORMATS["command"], script, tmp_path / "command.sh")
    assert (tmp_path / "command.sh").read_text().splitlines()[-1] == line


UNITS = {
    "llama.cpp": (
        "Description=llama.cpp server of tuner study demo, trial 12",
        f'ExecStart=/opt/serve --model "{MODEL}" --alias "{MODEL}" --metrics --parallel 4 --host 127.0.0.1 ',
    ),
    "sglang": (
        "Description=SGLang server of tuner study demo, trial 12",
        f'ExecStart=/opt/serve -m sglang.launch_server --model-path "{MODEL}"',
    ),
    "tensorrt-llm": (
        f'ExecStart=/opt/serve serve "{MODEL}" --backend pytorch --max_batch_size 64 --host 127.0.0.1'
        " --port 8000 --extra_llm_api_options /etc/demo.yaml",
        "first copy the options, which the server reads: cp demo.yaml /etc/",
    ),
    "openai": (
        "Description=serve server of tuner study demo, trial 12",
        "WorkingDirectory=/a folder/50%%",
        f'ExecStart=/opt/serve "{MODEL}" --slots 4 --listen=127.0.0.1:8000 -- "it\'s"',
        "127.0.0.1:8000/health || curl -sf -o /dev/null http://127.0.0.1:8000/v1/models; do",
    ),
}


@pytest.mark.parametrize("engine", UNITS)
def test_the_unit_has_no_settings_of_vllm(tmp_path: Path, engine: str) -> None:
    options, folder = OPTIONS if engine == "tensorrt-llm" else (), "/a folder/50%" if engine == "openai" else None
    made = script_of(engine, "/opt/serve", options, folder=folder)
    paths = write_deployment(FORMATS["systemd"], made, tmp_path / "demo.service")
    unit = (tmp_path / "demo.service").read_text()
    assert [line for line in UNITS[engine] if line not in unit] == [], unit
    assert "VLLM" not in unit
    assert [path.name for path in paths[1:]] == (["demo.yaml"] if options else [])
    assert not options or yaml.safe_load((tmp_path / "demo.yaml").read_text()) == CONTENT


@pytest.mark.program("shellcheck")
def test_the_script_of_a_command_is_clean_under_shellcheck(tmp_path: Path) -> None:
    path = tmp_path / "best_serve.sh"
    write_serve_script(script_of("openai", "/opt/serve", folder="/the folder's", tuner="/opt/tuner"), path)
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_script_hands_options_to_trtllm_serve_as_a_file_that_leaves_nothing(tmp_path: Path) -> None:
    path = f"{stub_in(tmp_path / 'bin', 'trtllm-serve').parent}:{os.environ['PATH']}"
    done = start(script_of("tensorrt-llm", None, ODD_OPTIONS), tmp_path, "--log_level", "warning", PATH=path)
    assert done.returncode == 0, done.stderr
    words = ["serve", MODEL, *FLAGS["tensorrt-llm"], "--extra_llm_api_options", "/dev/fd/7"]
    assert seen(tmp_path) == [*words, "--host", "127.0.0.1", "--port", "8123", "--log_level", "warning"]
    assert yaml.safe_load((tmp_path / "options").read_text()) == ODD_CONTENT
    assert (tmp_path / "again").read_text() == (tmp_path / "options").read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "ran").exists()


def test_the_command_of_trtllm_serve_has_the_options_in_a_here_string(tmp_path: Path) -> None:
    stub = stub_in(tmp_path / "bin", "trtllm-serve")
    made = script_of("tensorrt-llm", "/venv/bin/trtllm-serve", ODD_OPTIONS)
    write_deployment(FORMATS["command"], made, tmp_path / "command.sh")
    line = (tmp_path / "command.sh").read_text().splitlines()[-1]
    words = ["trtllm-serve", "serve", MODEL, *FLAGS["tensorrt-llm"], "--extra_llm_api_options", "/dev/fd/7"]
    assert shlex.split(line.partition(" 7<<<")[0]) == words
    path = f"{stub.parent}:{os.environ['PATH']}"
    assert run(["bash", tmp_path / "command.sh"], tmp_path, PATH=path).returncode == 0
    assert yaml.safe_load((tmp_path / "options").read_text()) == ODD_CONTENT
    assert not (tmp_path / "ran").exists()


def test_the_version_of_trtllm_serve_is_that_of_the_python_in_its_first_line(tmp_path: Path) -> None:
    python = stub_in(tmp_path, "python", "1.2.1")
    stub = stub_in(tmp_path / "bin", "trtllm-serve")
    stub.write_text(f"#!{python}\n")
    path = f"{stub.parent}:{os.environ['PATH']}"
    done = start(script_of("tensorrt-llm"), tmp_path, PATH=path)
    assert done.stderr == "best_serve.sh: warning: TensorRT-LLM 1.2.1 is installed, the study ran 1.3.0rc7\n"


def test_the_record_of_a_trial_has_the_model_after_the_command_and_keeps_the_options() -> None:
    argv = ("/venv/bin/trtllm-serve", "serve", MODEL, *OPTIONS, *FLAGS["tensorrt-llm"])
    model, arguments = _server_arguments(argv, program_of("tensorrt-llm"), MODEL)
    assert (model, arguments) == (MODEL, (*OPTIONS, *FLAGS["tensorrt-llm"]))
