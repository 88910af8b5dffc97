"""The engine contract on a command that starts a small server, and what the engine adds to the contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from records.trials import FailureKind, Phase, ServerFacts
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tests.gguf_model import write_model
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.openai.engine import OpenAiEngine
from tuner.errors import SettingError, TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.family import is_alive
from tuner.specs import LaunchSpec, ModelRef, TrialSpec

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
    records = read_records(good_spec.artifacts / "requests-0.parquet")
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
