"""Deployment files on a real vLLM: its parser reads the flags of the script, and it starts from them and answers."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port
from tests.unit.export.formats.test_files import dumped, expanded, unquoted
from tuner.export.deployment import Deployment
from tuner.export.formats.ray_serve import engine_kwargs
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.testing.exporter import deployment

READY_S = 300.0
STOP_S = 60.0
READ = """
import dataclasses, json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

def read(words):
    found = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    if getattr(found, "model_tag", None) is not None:
        found.model = found.model_tag
    return found

def shown(arguments):
    return {name: repr(value) for name, value in sorted(vars(arguments).items()) if name not in ("model_tag", "config")}

given, fields = json.load(sys.stdin)
spaces = [shown(read(words)) for words in given]
engines = [shown(AsyncEngineArgs.from_cli_args(read(words))) for words in given]
engines.append(shown(AsyncEngineArgs(**fields)))
print("\\n" + json.dumps([spaces, engines]))
"""
WORDS = (
    *("--max-num-seqs", "64", "--max-model-len", "16k", "--gpu-memory-utilization", "0.90", "--enforce-eager"),
    *("--no-enable-prefix-caching", "--no-async-scheduling", "-O1", "-tp", "2", "--disable-log-stats"),
    *("--cudagraph-capture-sizes", "1", "2", "4", "--revision", "0123", "--seed=-7", "--kv-cache-dtype=auto"),
    *("--compilation-config", '{"cudagraph_mode":"NONE","compile_sizes":[1,2]}', "--generation-config", "vllm"),
    *("--speculative-config", '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'),
)
FRONT_END = (
    *("--chat-template", 'it\'s {{ $x }} # %h\n"é" 1e3', "--middleware", "a.b", "--middleware", "c.d"),
    *("--api-key=-dash", "--allowed-origins", '["*"]'),
)


def parsed(vllm: Path, commands: Sequence[Sequence[str]], fields: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return what vLLM's parser and engine make of commands, and what the engine makes of the fields."""
    python = vllm.resolve().parent / "python"
    python = python if python.exists() else vllm.parent / "python"
    given = json.dumps([[list(words) for words in commands], fields])
    done = subprocess.run([str(python), "-c", READ], input=given, capture_output=True, text=True, timeout=READY_S)
    assert done.returncode == 0, done.stderr[-2000:]
    spaces, engines = json.loads(done.stdout.splitlines()[-1])
    return spaces, engines


def write(name: str, made: Deployment, folder: Path) -> Path:
    return write_deployment(FORMATS[name], made, folder / FORMATS[name].file)[0]


def test_vllm_reads_the_same_arguments(vllm: Path, tmp_path: Path) -> None:
    made = deployment(model="org/model", served_name="a name", argv=(*WORDS, *FRONT_END), environment={})
    config = write("vllm-config", made, tmp_path)
    fields = engine_kwargs(deployment(argv=WORDS))
    fields |= {"model": "org/model", "served_model_name": ["a name"]}
    spaces, engines = parsed(vllm, [made.words, ["--config", str(config)]], fields)
    assert spaces[0] == spaces[1]
    assert engines[0] == engines[1]
    assert spaces[0]["max_num_seqs"] == "64"
    assert spaces[0]["enable_prefix_caching"] == "False"
    # a field that is not given has another default in the command line's parser than in the class
    differing = {name for name in fields if engines[0][name] != engines[2][name]}
    assert differing <= {"optimization_level"}, {name: (engines[0][name], engines[2][name]) for name in differing}
    assert (engines[0]["optimization_level"], engines[2]["optimization_level"]) == ("'1'", "1")


@contextmanager
def running(words: Sequence[str], folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """Run a server in a group of its own, and end the group.

    It stays in this session: on few cores, Linux shares the time by session, and the server's spinning threads would
    keep a client of another session waiting.
    """
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(port: int, name: str, folder: Path) -> str:
    """Return the text of one answer, after the server is healthy."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                break
        except httpx.HTTPError:
            time.sleep(0.5)
    else:
        pytest.fail((folder / "server.log").read_text(errors="replace")[-3000:])
    body = {"model": name, "prompt": "ba be bi", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4
    return str(reply.json()["choices"][0]["text"])


@pytest.fixture
def made(tiny_model: Path) -> Deployment:
    """A deployment of the made model on the CPU, with a variable, a switch that is off, and JSON."""
    words = ("--load-format", "dummy", "--max-model-len", "512", "--generation-config", "vllm", "--max-num-seqs", "8")
    more = ("--no-enable-prefix-caching", "--enforce-eager", "--override-generation-config", '{"top_k": 5}')
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    return deployment(
        model=str(tiny_model), served_name="it's tiny 100%", argv=(*words, *more), environment=environment, device="cpu"
    )


@pytest.mark.release
def test_the_configuration_starts_a_server_that_answers(vllm: Path, made: Deployment, tmp_path: Path) -> None:
    path = write("vllm-config", made, tmp_path)
    line = re.search(r"start it in bash: (.*)", path.read_text())
    assert line is not None
    port = free_port()
    variables = {**os.environ, "PATH": f"{vllm.parent}:{os.environ['PATH']}"}
    with running(["bash", "-c", f"{line[1]} --port {port}"], tmp_path, variables):
        answers(port, made.served_name, tmp_path)
    assert "'enable_prefix_caching': False" in (tmp_path / "server.log").read_text(errors="replace")


@pytest.mark.release
def test_the_command_of_the_unit_starts_a_server_that_answers(vllm: Path, made: Deployment, tmp_path: Path) -> None:
    """No systemd runs here: its own dump of the unit has the words, and its documented rules expand them."""
    program = replace(made, executable=str(vllm))
    path = write("systemd", program, tmp_path)
    text = dumped(path)
    command = next(line for line in re.findall(r"Command Line: (.*)", text) if " serve " in line)
    words = [expanded(word, {}) for word in unquoted(command)]
    port = free_port()
    words[words.index("--port") + 1] = str(port)
    variables = dict(re.findall(r"Environment: (\w+)=(.*)", text))
    cache = tmp_path / "cache"
    found = {name: value.replace("/var/cache/vllm-server", str(cache)) for name, value in variables.items()}
    with running(words, tmp_path, {"PATH": "/usr/bin:/bin", **found}):
        answers(port, made.served_name, tmp_path)


def test_the_line_of_the_command_is_the_scripts(made: Deployment, tmp_path: Path) -> None:
    last = write("command", made, tmp_path).read_text().splitlines()[-1]
    words = shlex.split(last)
    assert words[words.index("vllm") + 1 :] == ["serve", *made.words]
