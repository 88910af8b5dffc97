"""llama.cpp as an engine: its launcher, and studies with a real model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from records.trials import FailureKind, Phase
from search_spaces import load_space
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tests.some import some
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.llama_cpp.engine import LlamaCppEngine
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.engines.llama_cpp.launcher import INTEGERS, SWITCHES, parser, server_parameters
from tuner.engines.server import traffic as traffic_module
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.records import ProcessRecords, reap_orphans
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.request_class import RequestClass
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic

pytestmark = pytest.mark.program("libgomp1")

FLAGS = ("--threads", "1", "--parallel", "4", "--ctx-size", "1024")
"""Four slots of 256 tokens each, the least that llama.cpp gives a slot."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LlamaCppEngine]:
    made = EngineFactory(EngineSettings("llama.cpp", None, tmp_path / "home"))(0)
    assert isinstance(made, LlamaCppEngine)
    yield made
    made.close()


@pytest.fixture
def good_spec(gguf: Path, tmp_path: Path) -> TrialSpec:
    model = ModelRef(str(gguf), str(gguf), "made model")
    launch = LaunchSpec(model, FLAGS, ("--temp", "1"), {"LLAMA_ARG_POLL": "0", "MADE": "1"})
    return trial_of(launch, tmp_path)


class TestContract(ProgramEngineContract):
    dropped = ("LLAMA_ARG_CTX_SIZE", "GGML_VK_VISIBLE_DEVICES")

    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return with_flags(good_spec, "--flash-attn", "off", "--cache-type-v", "q8_0")


def test_a_flag_that_the_server_lacks_is_refused_without_a_launch(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    refused = some(engine.check(with_flags(good_spec, "--max-num-seqs", "4")))
    assert (refused.kind, refused.phase) == (FailureKind.INVALID_CONFIGURATION, Phase.CHECK)
    assert refused.message == f"--max-num-seqs is not a flag of llama.cpp {engine.info().version}"


def test_no_repeat_is_cached_and_facts_are_those_of_the_server(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    with started(engine, good_spec) as server:
        repeats = [server.benchmark(LOAD, index, NEVER) for index in range(2)]
        facts = server.facts()
    records = [
        record for index in range(2) for record in read_records(good_spec.artifacts / f"requests-{index}.jsonl.gz")
    ]
    assert all(len(record.gaps_s) <= 7 for record in records)
    assert facts.prefix_hit_rate == 0.0
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (1024, 4.0)
    for repeat in repeats:
        tokens = (repeat.metrics["output_throughput"] or 0.0) * (repeat.duration_s or 0.0)
        assert tokens == pytest.approx(12 * 8)


def test_prompts_that_share_a_beginning_are_cached(
    engine: LlamaCppEngine, good_spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "TOLERABLE_DELAY_S", 60.0)  # other tests may keep the generator from its core
    shared = Traffic(
        arrivals={"process": "closed", "users": 1},
        requests=8,
        system_prompt=60,
        classes={"all": RequestClass.model_validate({"input": 4, "output": 1})},
    )
    with started(engine, good_spec) as server:
        repeat = server.benchmark(shared, 0, NEVER)
        facts = server.facts()
    assert (repeat.offered, repeat.completed) == (8, 8)
    assert some(facts.prefix_hit_rate) > 0.5


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            LOAD.model_copy(update={"input_len": 300}),
            "none of 4 requests succeeded: request (300 tokens) exceeds the available context size (256 tokens)",
        ),
        (
            LOAD.model_copy(update={"output_len": 400, "warmup_output_len": 400}),
            "none of 4 requests succeeded: answers were cut off at 255 tokens, the context of a slot",
        ),
    ],
)
def test_a_context_that_is_too_small_is_named(
    engine: LlamaCppEngine, good_spec: TrialSpec, load: ClosedLoop, message: str
) -> None:
    with started(engine, good_spec) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(load, NEVER)
    failure = caught.value.failure
    assert (failure.kind, failure.phase, failure.message) == (FailureKind.KV_CACHE_TOO_SMALL, Phase.WARMUP, message)


DRIVER = """
import sys, threading
from pathlib import Path
from records.trials import TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.processes.family import own_identity
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

gguf, folder = sys.argv[1], Path(sys.argv[2])
engine = EngineFactory(EngineSettings("llama.cpp", None, folder / "home", driver=own_identity()))(0)
launch = LaunchSpec(ModelRef(gguf, gguf, gguf), ("--threads", "1"))
spec = TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, ClosedLoop(), 1, folder / "artifacts")
server = engine.launch(spec, Limits())
server.wait_ready(threading.Event())
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_the_server_of_a_killed_tuner_is_ended_by_the_next_one(gguf: Path, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, gguf, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    server = psutil.Process(int(some(driver.stdout).readline()))
    driver.kill()
    driver.communicate()
    records = ProcessRecords(tmp_path / "home" / "processes")
    assert [record.process.pid for record in records.all()] == [server.pid]
    assert server.is_running()
    reap_orphans(tmp_path / "home" / "processes")
    server.wait(10)
    assert records.all() == []


if TYPE_CHECKING:
    import xllamacpp
else:
    xllamacpp = pytest.importorskip("xllamacpp", exc_type=ImportError)

PROGRAM = Path(sys.executable).with_name(LAUNCHER)


def parameters(*words: str) -> xllamacpp.CommonParams:
    return server_parameters(vars(parser().parse_args(["--model", "m.gguf", *words])))


def flags_of_the_launcher() -> set[str]:
    return {name for action in parser()._actions for name in action.option_strings}


def test_every_flag_is_one_of_llama_server_s_own() -> None:
    """The package has llama.cpp's own parser, although it calls it not; its flags are texts in the library."""
    library = next(Path(xllamacpp.__file__).parent.glob("*.so")).read_bytes()
    flags = flags_of_the_launcher() - {"-h", "--help"}
    assert len(flags) > 60
    assert [flag for flag in sorted(flags) if flag.encode() + b"\0" not in library] == []


def test_the_launcher_has_every_flag_of_the_space() -> None:
    space = load_space("llama.cpp")
    declared = str([spec.model_dump(include={"flag", "no_flag", "choices"}) for spec in space.specs.values()])
    flags = {word for word in declared.replace("'", " ").split() if word.startswith("--")}
    assert {"--parallel", "--spec-ngram-mod-n-match", "--no-kv-unified"} <= flags
    assert flags - flags_of_the_launcher() == set()


def test_a_value_reaches_its_parameter() -> None:
    made = parameters("--ctx-size", "4096", "-np", "8", "--threads", "2", "--batch-size", "256", "--ubatch-size", "64")
    assert (made.n_ctx, made.n_parallel, made.cpuparams.n_threads, made.n_batch, made.n_ubatch) == (4096, 8, 2, 256, 64)
    formats = parameters("--cache-type-k", "q8_0", "-ctv", "q4_0", "--flash-attn", "on")
    kinds = xllamacpp.ggml_type
    assert (formats.cache_type_k, formats.cache_type_v) == (kinds.GGML_TYPE_Q8_0, kinds.GGML_TYPE_Q4_0)
    assert formats.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    drafts = parameters("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4").speculative
    assert drafts.types == [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    assert drafts.ngram_simple.size_n == 4


@pytest.mark.parametrize("names", INTEGERS, ids=lambda names: names[0])
def test_every_number_reaches_its_parameter(names: tuple[str, ...]) -> None:
    found: object = parameters(names[0], "37")
    for part in INTEGERS[names].split("."):
        found = getattr(found, part)
    assert found == 37


@pytest.mark.parametrize("names", SWITCHES, ids=lambda names: names[0])
def test_every_switch_reaches_its_parameter(names: tuple[str, ...]) -> None:
    place, value = SWITCHES[names]
    assert getattr(parameters(names[0]), place) is value


def test_the_defaults_are_those_of_llama_server() -> None:
    plain = parameters()
    assert (plain.n_parallel, plain.kv_unified, plain.port, plain.n_ctx) == (4, True, 8080, 0)
    assert parameters("--parallel", "2").kv_unified is False
    assert parameters("--parallel", "2", "--kv-unified").kv_unified is True


def test_version_and_devices_are_printed_without_a_model() -> None:
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert version.stdout == f"version: {xllamacpp.__version__} (xllamacpp)\n"
    devices = subprocess.run([PROGRAM, "--list-devices"], capture_output=True, text=True, check=True, timeout=60)
    assert devices.stdout.startswith("Available devices:\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--no-such-flag",), "error: unrecognized arguments: --no-such-flag\n"),
        (("--thread", "1"), "error: unrecognized arguments: --thread 1\n"),
        ((), "error: --model is required\n"),
    ],
)
def test_a_mistake_is_one_line_and_ends_with_1(
    words: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # libgomp tells of a value that an earlier test left
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)
