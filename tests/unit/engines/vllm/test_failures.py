"""Every recorded log has the type of the failure that was provoked; see tests/data/logs/README.md."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage.records import Culprit, FailureKind, Phase
from tuner.engines.vllm.facts.logs import facts_from_log
from tuner.engines.vllm.failures.classify import EVIDENCE_LINES, classify, error_summary, read_log

LOGS = Path(__file__).parents[3] / "data" / "logs"
K = FailureKind

RECORDED = [
    ("unknown_flag", 2, Phase.READY, K.INVALID_CONFIGURATION, "unrecognized arguments: --swap-space 4"),
    ("bad_choice", 2, Phase.READY, K.INVALID_CONFIGURATION, "argument --dtype: invalid choice: 'float17'"),
    (
        "tokens_below_seqs",
        1,
        Phase.READY,
        K.INVALID_CONFIGURATION,
        "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (32).",
    ),
    ("model_len_too_long", 1, Phase.READY, K.INVALID_CONFIGURATION, "User-specified max_model_len (999999) is greater"),
    ("async_with_ngram", 1, Phase.READY, K.INVALID_CONFIGURATION, "Currently, async scheduling is only supported with"),
    ("suffix_without_arctic", 1, Phase.READY, K.INVALID_CONFIGURATION, "Arctic Inference is required for suffix"),
    ("unknown_quantization", 1, Phase.READY, K.INVALID_CONFIGURATION, "Unknown quantization method: nonsense."),
    ("quantization_needs_checkpoint", 1, Phase.READY, K.INVALID_CONFIGURATION, "Cannot find the config file for awq"),
    ("kv_cache_too_small", 1, Phase.READY, K.KV_CACHE_TOO_SMALL, "To serve at least one request with the model's max"),
    ("kv_space_over_memory", 1, Phase.READY, K.OUT_OF_MEMORY_STARTUP, "Available memory on node 0"),
    ("no_common_block_size", 1, Phase.READY, K.INVALID_CONFIGURATION, "ValueError: No common block size for 24"),
    (
        "kv_offload_on_cpu",
        1,
        Phase.READY,
        K.INVALID_CONFIGURATION,
        "CPU Offloading is currently only supported on CUDA",
    ),
    ("no_weights", 1, Phase.READY, K.ENVIRONMENT_BROKEN, "Cannot find any model weights with `/model`"),
    ("port_taken", 1, Phase.READY, K.PORT_TAKEN, "another program took the port"),
    ("disk_full", 1, Phase.READY, K.DISK_FULL, "no space left on disk"),
    ("engine_crash_under_load", 0, Phase.BENCHMARK, K.ENGINE_CRASH, "RuntimeError: index 71 is out of bounds"),
    ("engine_core_killed_under_load", 0, Phase.BENCHMARK, K.SERVER_KILLED, "a process of the server was killed"),
    ("worker_killed_under_load", 0, Phase.BENCHMARK, K.SERVER_KILLED, "a process of the server was killed"),
    (
        "api_server_killed_under_load",
        -9,
        Phase.BENCHMARK,
        K.SERVER_KILLED,
        "the server was killed from outside (SIGKILL)",
    ),
]

SYNTHETIC = [
    ("gpu_out_of_memory_at_start", Phase.READY, K.OUT_OF_MEMORY_STARTUP),
    ("gpu_sampler_out_of_memory", Phase.READY, K.OUT_OF_MEMORY_STARTUP),
    ("gpu_no_kv_memory", Phase.READY, K.KV_CACHE_TOO_SMALL),
    ("gpu_kv_too_small_0.15", Phase.READY, K.KV_CACHE_TOO_SMALL),
    ("gpu_not_free", Phase.READY, K.GPU_BUSY),
    ("gpu_memory_moved_while_profiling", Phase.READY, K.GPU_BUSY),
    ("gpu_bfloat16_on_t4", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_attention_backend_not_valid", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_no_attention_backend", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_fp8_kv_on_t4", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_no_common_block_size", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_quantization_capability", Phase.READY, K.INVALID_CONFIGURATION),
    ("gpu_driver_too_old", Phase.READY, K.ENVIRONMENT_BROKEN),
    ("gpu_out_of_memory_under_load", Phase.BENCHMARK, K.OUT_OF_MEMORY_LOAD),
    ("gpu_illegal_access_under_load", Phase.BENCHMARK, K.ENGINE_CRASH),
]


@pytest.mark.parametrize(("log", "exit_code", "phase", "kind", "message"), RECORDED, ids=[row[0] for row in RECORDED])
def test_a_recorded_failure_is_typed(log: str, exit_code: int, phase: Phase, kind: FailureKind, message: str) -> None:
    text = read_log(LOGS / f"{log}.log")
    assert text
    failure = classify(text, exit_code, phase)
    assert failure.kind is kind
    assert message in failure.message
    assert "\n" not in failure.message
    assert (failure.phase, failure.exit_code) == (phase, exit_code)
    assert failure.evidence
    assert len(failure.evidence.splitlines()) <= EVIDENCE_LINES


@pytest.mark.parametrize(("log", "phase", "kind"), SYNTHETIC, ids=[row[0] for row in SYNTHETIC])
def test_a_text_of_the_gpu_builds_is_typed(log: str, phase: Phase, kind: FailureKind) -> None:
    text = read_log(LOGS / f"{log}.log")
    assert text
    assert classify(text, 1, phase).kind is kind


def test_every_log_of_a_failure_is_tested() -> None:
    tested = {row[0] for row in RECORDED} | {row[0] for row in SYNTHETIC}
    healthy = {"healthy_start", "gpu_start_0.15", "gpu_start_0.25"}
    assert {path.stem for path in LOGS.glob("*.log")} == tested | healthy


def test_the_kind_of_out_of_memory_depends_on_the_phase() -> None:
    text = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory."
    assert classify(text, 1, Phase.READY).kind is K.OUT_OF_MEMORY_STARTUP
    assert classify(text, 1, Phase.WARMUP).kind is K.OUT_OF_MEMORY_LOAD


def test_the_first_traceback_wins_over_its_echoes() -> None:
    text = (
        "(EngineCore pid=2) ERROR 11-20 14:24:54 [core.py:1510] EngineCore failed to start.\n"
        "(EngineCore pid=2) ERROR 11-20 14:24:54 [core.py:1510] Traceback (most recent call last):\n"
        "(EngineCore pid=2) ERROR 11-20 14:24:54 [core.py:1510] KeyError: 'layers.0.qkv'\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    failure = classify(text, 1, Phase.READY)
    assert failure.kind is K.ENGINE_CRASH
    assert failure.message == "KeyError: 'layers.0.qkv'"


def test_an_error_that_the_api_server_handled_is_not_the_cause() -> None:
    text = (
        "Failed to load plugin x\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n"
        "Traceback (most recent call last):\nKeyError: 'y'\n"
    )
    assert classify(text, 1, Phase.READY).message == "KeyError: 'y'"


def test_the_deliberate_message_of_a_chain_is_shown() -> None:
    text = (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'arctic_inference'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\nImportError: Arctic Inference is required for suffix decoding.\n"
    )
    failure = classify(text, 1, Phase.READY)
    assert failure.message == "ImportError: Arctic Inference is required for suffix decoding."


def test_a_warning_before_the_failure_is_not_its_cause() -> None:
    text = (
        "(APIServer pid=1) WARNING 11-20 14:24:08 [system_utils.py:255] This can cause fd limit errors like "
        "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n\n"
        "Traceback (most recent call last):\nKeyError: 'x'\n"
    )
    assert classify(text, 1, Phase.READY).message == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("exit_code", "kind", "culprit"),
    [
        (-9, K.SERVER_KILLED, Culprit.INFRASTRUCTURE),
        (-15, K.SERVER_KILLED, Culprit.INFRASTRUCTURE),
        (-11, K.ENGINE_CRASH, Culprit.CONFIGURATION),
        (3, K.ENGINE_CRASH, Culprit.CONFIGURATION),
        (None, K.ENGINE_CRASH, Culprit.CONFIGURATION),
    ],
)
def test_an_empty_log_leaves_the_exit_code(exit_code: int | None, kind: FailureKind, culprit: Culprit) -> None:
    failure = classify("", exit_code, Phase.BENCHMARK)
    assert failure.kind is kind
    assert failure.culprit is culprit
    assert failure.evidence is None


def test_pydantic_names_the_field_of_a_bound() -> None:
    cause = (
        "pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n"
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.5, input_type=float]"
    )
    failure = classify(f"Traceback (most recent call last):\n{cause}\n", 1, Phase.READY)
    assert failure.kind is K.INVALID_CONFIGURATION
    assert failure.message == "gpu_memory_utilization: Input should be less than or equal to 1"


def test_a_long_message_is_cut() -> None:
    assert len(error_summary("ValueError: " + "x" * 1000)) == 400


def test_there_may_be_no_log(tmp_path: Path) -> None:
    assert read_log(tmp_path / "server.log") == ""


def test_every_type_is_documented_with_its_culprit() -> None:
    page = (Path(__file__).parents[4] / "docs" / "design" / "failures.md").read_text()
    for kind in FailureKind:
        assert f"| `{kind.value}` | {kind.culprit.value} |" in page


def test_a_log_with_a_line_of_4_mb_is_classified_at_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("init engine " * 300_000 + "\n" + "RuntimeError: " * 10_000)
    begun = time.monotonic()
    text = read_log(log)
    facts_from_log(text)
    assert classify(text, 1, Phase.READY).kind is K.ENGINE_CRASH
    assert time.monotonic() - begun < 30


def test_too_little_shared_memory_for_offloaded_blocks_is_a_lack_of_memory() -> None:
    """The text is that of vLLM 0.32's `shm_broadcast.py`, in the frame of a worker's error."""
    text = (
        "Insufficient space in /dev/shm for CPU KV offload shared region in /dev/shm: 32768 MiB required, 64 MiB free."
    )
    log = f"ERROR 11-26 11:51:10 [core.py:1510] EngineCore failed to start.\nRuntimeError: {text}\n"
    failure = classify(log, 1, Phase.READY)
    assert failure.kind is K.OUT_OF_MEMORY_STARTUP
    assert "64 MiB free" in failure.message
