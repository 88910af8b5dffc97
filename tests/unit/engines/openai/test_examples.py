"""Programs of commands: their versions, the examples, and the proxy in front of an engine."""

import contextlib
import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest

from records.trials import FailureKind, TrialKind
from search_spaces import Context, hardware_named, load_space
from tests.gguf_model import MadeModel, write_model
from tests.two_formats import unpermuted, write_both
from tuner.engines.base import EngineSettings
from tuner.engines.openai import engine
from tuner.engines.openai.engine import UNKNOWN, OpenAiEngine, OpenAiServer, find_program, version_of
from tuner.errors import SettingError, TrialFailed
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({}, ()),
        ({"max_num_seqs": 4}, ("--max-num-seqs", "4")),
        ({"engine": "llama.cpp"}, ("--engine", "llama.cpp")),
        ({"engine": "llama.cpp", "parallel": 2}, ("--engine", "llama.cpp", "--parallel", "2")),
    ],
)
def test_each_engine_opens_its_own_parameters(config: dict[str, str | int], argv: tuple[str, ...]) -> None:
    space = load_space(EXAMPLES / "two_engines.yaml").resolve(Context(hardware_named("cpu"), engine="openai"))
    assert space.render(space.complete(config)).argv == argv
    assert space.contains(config)
    assert not space.contains({"parallel": 2}), "a parameter of llama.cpp counts with llama.cpp only"


@pytest.mark.parametrize(
    ("words", "started"),
    [
        ([], ["vllm", "serve", "/folder", "--served-model-name", "m", "--host", "127.0.0.1", "--port", "81"]),
        (
            ["--engine", "llama.cpp", "--parallel", "2"],
            [
                *("llama", "--model", "/file", "--alias", "m", "--host", "127.0.0.1", "--port", "81"),
                *("--parallel", "2"),
            ],
        ),
    ],
)
def test_the_script_starts_the_engine_of_the_trial(tmp_path: Path, words: list[str], started: list[str]) -> None:
    variables = {"MODEL_FOLDER": "/folder", "MODEL_FILE": "/file", "PATH": "/usr/bin:/bin"}
    for variable, name in (("VLLM", "vllm"), ("LLAMA_SERVER", "llama")):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        stub.chmod(0o755)
        variables[variable] = str(stub)
    script = [str(EXAMPLES / "one_of_two_engines.sh"), "81", "m", *words]
    done = subprocess.run(script, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == started


def test_another_engine_is_refused(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "one_of_two_engines.sh"), "81", "m", "--engine", "other"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: argument --engine: invalid choice: other\n")


def test_rows_of_queries_are_ordered_by_halves() -> None:
    """llama.cpp rotates rows 0 and 1 together, then 2 and 3; transformers 0 and 2, then 1 and 3."""
    rows = np.array([[0], [1], [2], [3]], np.float16)
    assert unpermuted(rows, 1).ravel().tolist() == [0, 2, 1, 3]
    assert unpermuted(rows, 2).ravel().tolist() == [0, 1, 2, 3]


def test_both_formats_have_the_same_weights(tmp_path: Path) -> None:
    file, folder = write_both(tmp_path, MadeModel(layers=1))
    content = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    head = json.loads(content[8 : 8 + size])
    begin, end = head["lm_head.weight"]["data_offsets"]
    stored = np.frombuffer(content[8 + size + begin : 8 + size + end], np.float16)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(file)).tensors}
    assert np.array_equal(stored, np.asarray(tensors["output.weight"].data).ravel())
    assert len(head) == len(tensors) == 12


NEVER = threading.Event()
ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "docs" / "examples" / "engine_behind_proxy.sh"
FAKES = ROOT / "tests" / "fakes"
LOAD = ClosedLoop(max_concurrency=2, num_prompts=4, input_len=24, output_len=8)
ENGINE = """#!/bin/sh
shift 2
exec {python} {server} --model "$2" --port "$6"
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@contextlib.contextmanager
def proxied(model_file: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[OpenAiServer]:
    """A fake server behind the proxy; the script starts both."""
    fake = folder / "engine"
    fake.write_text(ENGINE.format(python=sys.executable, server=FAKES / "streaming_server.py"))
    fake.chmod(0o755)
    own = {"ENGINE": str(fake), "PROXY": str(FAKES / "caching_proxy.py"), "PROXY_LOG": str(folder / "log"), **settings}
    launch = LaunchSpec(
        ModelRef("made", str(model_file), "made"),
        (),
        (),
        own,
        (str(SCRIPT), "{port}", "{model}", "{flags}"),
        str(folder),
    )
    spec = TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, folder / "artifacts")
    with contextlib.closing(OpenAiEngine(EngineSettings("openai", str(SCRIPT), folder / "home"))) as engine:
        server = engine.launch(spec, spec.limits)
        try:
            server.wait_ready(NEVER)
            yield server
        finally:
            assert server.stop() is None


def test_repeats_are_not_answered_from_the_cache_and_the_same_prompts_are(model_file: Path, tmp_path: Path) -> None:
    with proxied(model_file, tmp_path, {"CACHE": str(tmp_path / "cache")}) as server:
        repeats = [server.benchmark(LOAD, index, NEVER) for index in (0, 1)]
        assert (tmp_path / "log").read_text().split() == ["miss"] * 8
        again = server.benchmark(LOAD, 0, NEVER)
    assert [(each.offered, each.completed) for each in (*repeats, again)] == [(4, 4)] * 3
    assert (tmp_path / "log").read_text().split()[8:] == ["hit"] * 4


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (
            {"MOST_TOKENS": "4"},
            FailureKind.REQUESTS_FAILED,
            "none of 2 requests succeeded; the first: 4 of 8 tokens",
        ),
        (
            {"MOST_PROMPT": "12"},
            FailureKind.ENVIRONMENT_BROKEN,
            "the server counts 12 tokens in a prompt of 24; give its model's tokenizer, and let nothing before the "
            "server change prompts",
        ),
    ],
)
def test_lengths_that_a_proxy_clips_end_a_trial_with_the_reason(
    model_file: Path, tmp_path: Path, settings: dict[str, str], kind: FailureKind, message: str
) -> None:
    with proxied(model_file, tmp_path, settings) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(LOAD, NEVER)
    assert (caught.value.failure.kind, caught.value.failure.message) == (kind, message)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ends(number: int) -> bool:
    """Wait up to a minute; return whether a process is gone, or a zombie whose new parent has not reaped it yet."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(0.05)
    return True


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("echo 'serve 1.2.3 (abc)'", "1.2.3"),
        ("echo 0.25.1.post1+cpu", "0.25.1.post1+cpu"),
        ("echo 'version: 6711 (a1b2c3d)' >&2", "6711"),
        ("echo 'no number'", UNKNOWN),
        ("echo 'unknown option of 1.2.3' && exit 2", UNKNOWN),
    ],
)
def test_the_version_is_what_the_program_prints(tmp_path: Path, body: str, version: str) -> None:
    assert version_of(script(tmp_path / "serve", body)) == version


def test_a_program_that_starts_a_server_instead_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWER_S", 0.5)
    children = tmp_path / "children"
    program = script(tmp_path / "serve", f"sleep 600 & echo $! >{children}; wait")
    assert version_of(program) == UNKNOWN
    assert ends(int(children.read_text()))


def test_an_interpreter_is_not_asked(tmp_path: Path) -> None:
    assert version_of(Path(sys.executable)) == UNKNOWN
    assert version_of(script(tmp_path / "bash", "echo 5.2.15")) == UNKNOWN


def test_a_program_is_found_by_its_name_or_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(tmp_path / "serve", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_program("serve") == find_program("./serve") == made


@pytest.mark.parametrize(
    ("name", "rule"),
    [("nothing", "there is no such program"), ("./plain", "the file is not executable"), ("./a b", "rename it, or")],
)
def test_a_program_that_cannot_be_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    (tmp_path / "plain").write_text("")
    script(tmp_path / "a b", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=rule):
        find_program(name)
