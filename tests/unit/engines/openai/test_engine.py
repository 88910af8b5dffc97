"""Any command with an OpenAI-compatible API as an engine: its placeholders, prompts, refusals and failures."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.trials import FailureKind, Phase, ServerFacts
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tests.gguf_model import write_model
from tuner.engines.base import EngineSettings
from tuner.engines.command_line import program_of
from tuner.engines.factory import EngineFactory
from tuner.engines.openai.engine import OpenAiEngine, TrialPrompts, classify, find_tools, has_other_length
from tuner.engines.server import token_prompts
from tuner.engines.server.token_prompts import TokenTools
from tuner.engines.user_command import api_key_in, filled, flags_in, read_command
from tuner.errors import SettingError, TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.family import is_alive
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.results import RequestRecord, RequestStatus

SERVER = Path(__file__).parents[3] / "fakes" / "streaming_server.py"
COMMAND = (sys.executable, str(SERVER), "--model", "{model}", "{flags}", "--port", "{port}")
FLAGS = ("--first-ms", "2", "--token-ms", "1")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[OpenAiEngine]:
    made = EngineFactory(EngineSettings("openai", sys.executable, tmp_path / "home"))(0)
    assert isinstance(made, OpenAiEngine)
    yield made
    made.close()


@pytest.fixture
def good_spec(gguf: Path, tmp_path: Path) -> TrialSpec:
    model = ModelRef("made", str(gguf), "made")
    launch = LaunchSpec(model, FLAGS, (), {"MADE": "1"}, COMMAND, str(tmp_path))
    return trial_of(launch, tmp_path)


def dying(spec: TrialSpec) -> TrialSpec:
    return with_flags(spec, *FLAGS, "--die", "no such kernel")


class TestContract(ProgramEngineContract):
    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return dying(good_spec)


def test_the_command_has_the_flags_in_their_place_and_runs_in_the_folder_of_the_study(
    engine: OpenAiEngine, good_spec: TrialSpec, tmp_path: Path
) -> None:
    with started(engine, good_spec) as server:
        process = psutil.Process(server.pid)
        port = str(server.port)
        assert process.cmdline()[1:] == [str(SERVER), "--model", "made", *FLAGS, "--port", port]
        assert process.cwd() == str(tmp_path)
        assert process.environ()["MADE"] == "1"
        assert server.argv[1:] == tuple(process.cmdline()[1:])
    assert not is_alive(server._process.identity)


def test_a_failed_start_has_the_exit_code_and_the_last_lines(engine: OpenAiEngine, good_spec: TrialSpec) -> None:
    with (
        pytest.raises(TrialFailed) as caught,
        started(engine, with_flags(good_spec, *FLAGS, "--die", "no such kernel")),
    ):
        pass
    failure = caught.value.failure
    assert (failure.kind, failure.exit_code) == (FailureKind.ENGINE_CRASH, 1)
    assert failure.message == "the server ended with exit code 1; its last line: no such kernel"
    assert failure.evidence == "no such kernel"


def test_a_server_without_health_and_metrics_is_ready_when_it_lists_the_model(
    engine: OpenAiEngine, good_spec: TrialSpec
) -> None:
    spec = with_flags(good_spec, *FLAGS, "--missing", "/health", "--missing", "/metrics", "--faults", '{"3": "500"}')
    with started(engine, spec) as server:
        repeat = server.benchmark(LOAD, 0, NEVER)  # a request fails, after which the server must answer as healthy
        assert server.facts() == ServerFacts()
    assert (repeat.offered, repeat.completed, repeat.failed) == (12, 11, 1)
    records = read_records(good_spec.artifacts / "requests-0.jsonl.gz")
    counted = [(each.planned_input, each.input_tokens, each.output_tokens) for each in records if each.completed]
    assert counted == [(24, 24, 8)] * 11


def test_a_server_of_another_model_is_named(engine: OpenAiEngine, good_spec: TrialSpec) -> None:
    with pytest.raises(TrialFailed) as caught, started(engine, with_flags(good_spec, *FLAGS, "--model", "other")):
        pass
    assert caught.value.failure.message == "the server serves 'other' instead of 'made'"


def test_answers_that_are_cut_off_are_the_reason(engine: OpenAiEngine, good_spec: TrialSpec) -> None:
    spec = with_flags(good_spec, *FLAGS, "--faults", '{"0": "short", "1": "short", "2": "short", "3": "short"}')
    with started(engine, spec) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(LOAD, NEVER)
    failure = caught.value.failure
    assert (failure.kind, failure.phase) == (FailureKind.REQUESTS_FAILED, Phase.WARMUP)
    assert failure.message == "none of 4 requests succeeded; the first: 4 of 8 tokens"


def test_a_worker_without_a_program_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="this engine needs a command"):
        OpenAiEngine(EngineSettings("openai", None, tmp_path))
    with pytest.raises(SettingError, match="there is no such program"):
        OpenAiEngine(EngineSettings("openai", "no-such-program", tmp_path))


VALUES = {"{host}": "127.0.0.1", "{port}": "81", "{model}": "m"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve --port {port}", ("serve", "--port", "{port}")),
        ("serve 'a b' \"$HOME;ls\" {host}:{port}", ("serve", "a b", "$HOME;ls", "{host}:{port}")),
        ("serve {flags} -p {port} -- x", ("serve", "{flags}", "-p", "{port}", "--", "x")),
        ("serve --json '{\"a\": {}}' {port}", ("serve", "--json", '{"a": {}}', "{port}")),
    ],
)
def test_the_text_is_split_as_by_a_shell(text: str, words: tuple[str, ...]) -> None:
    assert read_command(text) == words


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no program is named"),
        ("serve --port 8000", "no argument has {port}, and each trial has a port of its own"),
        ("serve{port}", "no argument has {port}"),
        ("serve '{port}", "no words of a command (No closing quotation)"),
        ("serve {port} --args={flags}", "{flags} stands for several words; write it once"),
        ("serve {port} {flags} {flags}", "{flags} stands for several words"),
        ("{flags} {port}", "{flags} stands for several words"),
    ],
)
def test_a_text_that_is_no_command_is_refused(text: str, rule: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_command(text)
    assert rule in str(caught.value)
    assert caught.value.field == "server_command"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("-p", "{port}"), ("-p", "81", "--a", "1")),
        (("{flags}", "-p", "{port}"), ("--a", "1", "-p", "81")),
        (("x", "{flags}", "{host}:{port}", "{model}"), ("x", "--a", "1", "127.0.0.1:81", "m")),
        (("{name}", "{port}"), ("{name}", "81", "--a", "1")),
    ],
)
def test_flags_stand_in_their_place_and_can_be_read_back(words: tuple[str, ...], made: tuple[str, ...]) -> None:
    assert filled(words, ("--a", "1"), VALUES) == made
    assert flags_in(words, made) == ("--a", "1")


def test_values_and_flags_are_not_replaced_again() -> None:
    assert filled(("{model}", "{port}"), ("{port}",), {**VALUES, "{model}": "{port}"}) == ("{port}", "81", "{port}")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), None),
        (("--api-keys", "x"), None),
        (("--api-key", "a"), "a"),
        (("--api_key=a", "--port", "1"), "a"),
        (("--api-key", "a", "--api-key", "b"), "b"),
    ],
)
def test_the_last_key_of_a_command_is_the_one_that_clients_send(words: tuple[str, ...], key: str | None) -> None:
    assert api_key_in(words) == key


def test_a_program_of_a_command_keeps_the_placeholders_of_its_address() -> None:
    program = program_of("openai", ("/opt/serve.sh", "{model}", "{flags}", "{port}"))
    words = program.words("m", "m", ("--a", "1"))
    assert (program.name, program.title) == ("serve.sh", "serve.sh")
    assert words == ("m", "--a", "1", "{port}")
    assert program.listening(words, "0.0.0.0", 81) == ("m", "--a", "1", "81")
    assert program.on_default_port(words) == ("m", "--a", "1", "8000")
    assert program.flags_of(("/opt/serve.sh", "m", "--a", "1", "81")) == ("--a", "1")
    assert program.words_after_flags == 1


def test_other_programs_have_flags_for_their_address() -> None:
    program = program_of("vllm")
    assert program.listening(("serve", "m"), "0.0.0.0", 81) == ("serve", "m", "--host", "0.0.0.0", "--port", "81")
    assert program.on_default_port(("serve", "m")) == ("serve", "m")


REQUESTS: list[dict[str, Any]] = [
    {"shared": [["system", 8]], "tokens": 20, "seed": 5, "text": "random"},
    {"shared": [["system", 8]], "tokens": 20, "seed": 6, "text": "random"},
    {"shared": [], "prompt": "a text of the user's", "answer": None},
]


def made(folder: Path, key: str) -> list[Any]:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"tokenizer": "unused", "requests": REQUESTS}))
    tools = TokenTools(range(100, 1000), ProcessRecords(folder), lambda text, _: [len(text)])
    return list(TrialPrompts(tools, key).prompts(plan, folder / "log"))


def test_servers_are_sent_prompts_of_the_same_lengths_and_other_words(tmp_path: Path) -> None:
    """A cache of answers that outlives a server would otherwise answer all trials but the first."""
    (one, *_), (two, *_), (own, *_) = first = made(tmp_path, "study/0")
    (other, *_), _, (own_again, *_) = second = made(tmp_path, "study/1")
    assert [count for _, count, _ in first] == [count for _, count, _ in second] == [28, 28, 1]
    assert one[:8] == two[:8], "requests to one server share what the workload says"
    assert one[:8] != other[:8]
    assert one[8:] != other[8:]
    assert own == own_again, "a user's own text is sent as it is"


def test_the_same_server_is_sent_the_same_prompts(tmp_path: Path) -> None:
    assert made(tmp_path, "study/0") == made(tmp_path, "study/0")


def test_a_gguf_file_makes_prompts_of_token_ids(tmp_path: Path) -> None:
    file = write_model(tmp_path / "made.gguf")
    assert isinstance(find_tools(str(file), "", ProcessRecords(tmp_path), None), TokenTools)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        find_tools(str(tmp_path), "", ProcessRecords(tmp_path), None)
    assert str(caught.value) == (
        f"tokenizer={str(tmp_path)!r}: there is no tokenizer.json; "
        "give the model's by tokenizer: a folder with tokenizer.json, a hub name, or a GGUF file"
    )


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise token_prompts._no_package(None)

    monkeypatch.setattr("tuner.engines.openai.engine.find_tokenizer", none)
    with pytest.raises(SettingError, match="the package `tokenizers`, which makes the prompts, is not installed"):
        find_tools("m", "", ProcessRecords(tmp_path), None)


@pytest.mark.parametrize(
    ("planned", "counted", "other"),
    [
        (24, 24, False),
        (24, 32, False),  # eight tokens of a beginning
        (24, 33, True),
        (24, 12, True),
        (1000, 1050, False),  # 5 %
        (1000, 949, True),
        (24, None, False),
        (None, 24, False),
    ],
)
def test_a_prompt_that_the_server_counts_otherwise_is_found(
    planned: int | None, counted: int | None, other: bool
) -> None:
    record = RequestRecord(0, "all", RequestStatus.COMPLETED, planned, 8, input_tokens=counted)
    assert has_other_length(record) is other


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", FailureKind.PORT_TAKEN),
        ("listen tcp 127.0.0.1:80: bind: address already in use", FailureKind.PORT_TAKEN),
        ('Error: Os { code: 98, kind: AddrInUse, message: "Address in use" }', FailureKind.PORT_TAKEN),
        ("write error: No space left on device", FailureKind.DISK_FULL),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", FailureKind.OUT_OF_MEMORY_STARTUP),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
            FailureKind.OUT_OF_MEMORY_STARTUP,
        ),
        ('DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")', FailureKind.OUT_OF_MEMORY_STARTUP),
        ("serve.sh: line 3: vllm: command not found", FailureKind.ENVIRONMENT_BROKEN),
        ("ModuleNotFoundError: No module named 'sglang'", FailureKind.ENVIRONMENT_BROKEN),
        ("/usr/bin/python3: No module named sglang", FailureKind.ENVIRONMENT_BROKEN),
        ("serve.py: error: unrecognized arguments: --slotz 3", FailureKind.INVALID_CONFIGURATION),
        ("error: unexpected argument '--slotz' found", FailureKind.INVALID_CONFIGURATION),
        # of Python's servers, of TGI, of LMDeploy and of Docker
        ("huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.", FailureKind.ENVIRONMENT_BROKEN),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317", FailureKind.ENVIRONMENT_BROKEN),
        ("2026-01-01T10:00:01.0Z OSError: You are trying to access a gated repo.", FailureKind.ENVIRONMENT_BROKEN),
        ("ValueError: No available memory for the cache blocks.", FailureKind.KV_CACHE_TOO_SMALL),
        ("Not enough memory to handle 4096 prefill tokens. You need to decrease", FailureKind.OUT_OF_MEMORY_STARTUP),
        ("ERROR Shard process was signaled to shutdown with signal 9 rank=0", FailureKind.SERVER_KILLED),
        ("ERROR Shard process was signaled to shutdown with signal 4 rank=0", FailureKind.ENVIRONMENT_BROKEN),
        ("Download process was signaled to shutdown with signal 7", FailureKind.ENVIRONMENT_BROKEN),
        ('error="llama runner process has terminated: signal: killed"', FailureKind.SERVER_KILLED),
        ("systemd[1]: ollama.service: Failed with result 'oom-kill'.", FailureKind.SERVER_KILLED),
        ('error="timed out waiting for llama runner to start - progress 0.00 - "', FailureKind.STARTUP_TIMEOUT),
        ("error loading model: unable to allocate CUDA_Host buffer", FailureKind.OUT_OF_MEMORY_STARTUP),
        ("RuntimeError: [TM][ERROR] CUDA runtime error: operation not supported", FailureKind.ENVIRONMENT_BROKEN),
        ("nvidia-container-cli: initialization error: nvml error: unknown", FailureKind.ENVIRONMENT_BROKEN),
        ("exec container process `/opt/venv/bin/vllm`: Exec format error", FailureKind.ENVIRONMENT_BROKEN),
        ("[TM][ERROR] CUDA runtime error: out of memory /src/allocator.cc:49", FailureKind.OUT_OF_MEMORY_STARTUP),
        (
            "RuntimeError: weight model.norm.weight does not exist\nError: ShardCannotStart",
            FailureKind.ENVIRONMENT_BROKEN,
        ),
        ('Error: ArgumentValidation("`max_input_tokens` must be <")', FailureKind.INVALID_CONFIGURATION),
        ("Error: listen tcp :1: bind: Only one usage of each socket address is permitted", FailureKind.PORT_TAKEN),
        ("[TM][ERROR] No enough blocks.", FailureKind.KV_CACHE_TOO_SMALL),
        ("Not enough memory. Please try to increase --mem-fraction-static.", FailureKind.KV_CACHE_TOO_SMALL),
        ("error loading model: unknown model architecture: 'nova9'", FailureKind.ENVIRONMENT_BROKEN),
        ("Error: model requires more system memory (8.0 GiB) than is available", FailureKind.OUT_OF_MEMORY_STARTUP),
        ("Bind for 0.0.0.0:8000 failed: port is already allocated.", FailureKind.PORT_TAKEN),
        ("docker: Error response from daemon: pull access denied for a/b", FailureKind.ENVIRONMENT_BROKEN),
        ("something else happened", FailureKind.ENGINE_CRASH),
    ],
)
def test_a_line_names_the_kind(line: str, kind: FailureKind) -> None:
    failure = classify(f"starting\n{line}\n", 1, Phase.READY)
    assert (failure.kind, failure.exit_code) == (kind, 1)
    assert failure.evidence == f"starting\n{line}"


def test_memory_that_runs_out_under_load_is_another_kind() -> None:
    assert classify("CUDA out of memory", 1, Phase.BENCHMARK).kind is FailureKind.OUT_OF_MEMORY_LOAD


def test_the_last_known_line_is_the_cause() -> None:
    text = "CUDA out of memory: trying with fewer slots\nlistening\nbind: address already in use\ngood bye"
    failure = classify(text, 3, Phase.READY)
    assert (failure.kind, failure.message) == (FailureKind.PORT_TAKEN, "another program took the port")


def test_evidence_is_the_last_six_lines() -> None:
    failure = classify("\n".join(f"line {number}" for number in range(10)), 7, Phase.READY)
    assert failure.evidence == "\n".join(f"line {number}" for number in range(4, 10))
    assert failure.message == "the server ended with exit code 7; its last line: line 9"


@pytest.mark.parametrize(
    ("exit_code", "kind", "name"),
    [
        (-signal.SIGKILL, FailureKind.SERVER_KILLED, "SIGKILL"),
        (128 + signal.SIGKILL, FailureKind.SERVER_KILLED, "SIGKILL"),
        (128 + signal.SIGSEGV, FailureKind.ENGINE_CRASH, "SIGSEGV"),
    ],
)
def test_a_signal_is_read_from_the_exit_code_also_of_a_shell(exit_code: int, kind: FailureKind, name: str) -> None:
    failure = classify("serve.sh: line 4: 12 Killed  vllm serve\n", exit_code, Phase.BENCHMARK)
    assert (failure.kind, failure.exit_code) == (kind, exit_code)
    assert name in failure.message


def test_an_empty_log_is_no_cause() -> None:
    failure = classify("", 1, Phase.READY)
    assert (failure.kind, failure.evidence) == (FailureKind.ENGINE_CRASH, None)
    assert failure.message == "the server ended with exit code 1 and its log has no cause"
