"""Every recorded log has the type of the failure that was provoked; see tests/data/logs/llama.cpp/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.trials import Culprit, FailureKind, Phase
from tuner.engines.llama_cpp.engine import classify, context_problem, facts_from_log
from tuner.engines.server.failures import read_log

LOGS = Path(__file__).parents[3] / "data" / "logs" / "llama.cpp"
K = FailureKind

RECORDED = [
    ("model_missing", K.ENVIRONMENT_BROKEN, "failed to open GGUF file '/models/nothing.gguf'"),
    ("model_is_text", K.ENVIRONMENT_BROKEN, "invalid magic characters: 'hell', expected 'GGUF'"),
    ("model_cut_off", K.ENVIRONMENT_BROKEN, "model is corrupted or incomplete"),
    ("architecture_unknown", K.ENVIRONMENT_BROKEN, "unknown model architecture: 'unheardof'"),
    ("key_missing", K.ENVIRONMENT_BROKEN, "key not found in model: llama.block_count"),
    ("version_unknown", K.ENVIRONMENT_BROKEN, "this GGUF file is version 99"),
    ("unknown_flag", K.INVALID_CONFIGURATION, "unrecognized arguments: --no-such-flag 3"),
    ("bad_value", K.INVALID_CONFIGURATION, "argument --ctx-size/-c: invalid int value: 'lots'"),
    ("bad_choice", K.INVALID_CONFIGURATION, "argument --cache-type-k/-ctk: invalid choice: 'q3'"),
    ("values_without_flash_attention", K.INVALID_CONFIGURATION, "quantized V cache requires flash_attn to be enabled"),
    ("too_many_slots", K.INVALID_CONFIGURATION, "n_seq_max must be <= 256"),
    ("odd_head", K.INVALID_CONFIGURATION, "K cache type q8_0 with block size 32 does not divide n_embd_head_k=24"),
    ("out_of_memory", K.OUT_OF_MEMORY_STARTUP, "insufficient memory (attempted to allocate 4882.81 MB)"),
    ("port_taken", K.PORT_TAKEN, "another program took the port"),
]


@pytest.mark.parametrize(("name", "kind", "message"), RECORDED, ids=[name for name, *_ in RECORDED])
def test_a_recorded_log_has_its_type(name: str, kind: FailureKind, message: str) -> None:
    failure = classify(read_log(LOGS / f"{name}.log"), 1, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message
    assert failure.exit_code == 1
    assert "\n" not in failure.message


def test_every_log_is_tested_and_described() -> None:
    logs = {path.stem for path in LOGS.glob("*.log")}
    assert logs == {name for name, *_ in RECORDED} | {"healthy_start"}
    described = (LOGS / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(logs) if f"| `{name}` |" not in described] == []


def test_the_culprit_of_a_bad_model_is_not_the_configuration() -> None:
    bad_model = classify(read_log(LOGS / "model_cut_off.log"), 1, Phase.READY)
    bad_flag = classify(read_log(LOGS / "too_many_slots.log"), 1, Phase.READY)
    assert (bad_model.culprit, bad_flag.culprit) == (Culprit.INFRASTRUCTURE, Culprit.CONFIGURATION)


def test_a_lack_of_memory_under_load_is_of_another_kind() -> None:
    assert classify(read_log(LOGS / "out_of_memory.log"), 1, Phase.BENCHMARK).kind is K.OUT_OF_MEMORY_LOAD


def test_a_killed_server_is_not_blamed_for_a_request_that_it_refused() -> None:
    failure = classify(read_log(LOGS / "healthy_start.log"), -9, Phase.BENCHMARK)
    assert (failure.kind, failure.exit_code) == (K.SERVER_KILLED, -9)
    assert "SIGKILL" in failure.message


def test_an_abort_without_a_line_is_a_crash() -> None:
    failure = classify("", -6, Phase.BENCHMARK)
    assert (failure.kind, failure.message) == (K.ENGINE_CRASH, "the server crashed (SIGABRT)")


def test_requests_that_do_not_fit_are_named() -> None:
    log = read_log(LOGS / "healthy_start.log")
    refused = "request (700 tokens) exceeds the available context size (512 tokens)"
    assert context_problem(log) == refused
    assert context_problem(log.replace(refused, "")) == "answers were cut off at 511 tokens, the context of a slot"
    shared = "0.10.000.000 E srv    send_error: task id = 3, error: Context size has been exceeded."
    assert context_problem(shared) == "the requests of all slots together exceed the shared context"
    assert context_problem("0.00.000.000 I srv init: model loaded") is None


def test_the_log_states_the_size_of_the_cache() -> None:
    facts = facts_from_log(read_log(LOGS / "healthy_start.log"))
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (4 * 512, 4.0)
    shared = facts_from_log("load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'true'")
    assert (shared.kv_cache_tokens, shared.max_concurrency) == (4096, 1.0)


PREFIXES = {
    "none": "{}",
    "time and level": "0.01.881.728 E {}",
    "level": "E {}",
    "time, level and subsystem": "0.01.994.531 E srv  operator(): {}",
    "a date": "2025-03-02 10:11:12 {}",
    "colours": "\x1b[31m0.01.881.728 E {}\x1b[0m",
    "colours alone": "\x1b[31m{}\x1b[0m",
}
LINES = [
    ("alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: out of memory", K.OUT_OF_MEMORY_STARTUP),
    ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", K.OUT_OF_MEMORY_STARTUP),
    ("llama_kv_cache_init: failed to allocate buffer for kv cache", K.OUT_OF_MEMORY_STARTUP),
    ("CUDA error: out of memory", K.OUT_OF_MEMORY_STARTUP),
    ("ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory", K.OUT_OF_MEMORY_STARTUP),
    ("start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", K.PORT_TAKEN),
    ("main: couldn't bind to server socket: hostname=127.0.0.1 port=8080", K.PORT_TAKEN),
    ("llama_model_load: error loading model architecture: unknown model architecture: 'nova9'", K.ENVIRONMENT_BROKEN),
    ("gguf_init_from_file: failed to open '/m/a.gguf': 'No such file or directory'", K.ENVIRONMENT_BROKEN),
    ("gguf_init_from_file_impl: failed to read magic", K.ENVIRONMENT_BROKEN),
    ("gguf_init_from_file: invalid magic characters 'hell'", K.ENVIRONMENT_BROKEN),
    (
        "error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file bounds, model is "
        "corrupted or incomplete",
        K.ENVIRONMENT_BROKEN,
    ),
    ("llama_model_load: error loading model: wrong number of tensors; expected 9, got 8", K.ENVIRONMENT_BROKEN),
    ("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", K.ENVIRONMENT_BROKEN),
    ("ggml_cuda_init: failed: CUDA driver version is insufficient", K.ENVIRONMENT_BROKEN),
    ("gguf_init_from_file_impl: tensor 'a' has invalid ggml type 99. should be in [0, 40)", K.ENVIRONMENT_BROKEN),
    ("llama_model_loader: failed to load GGUF split from /m/a-00002-of-00003.gguf", K.ENVIRONMENT_BROKEN),
    ("llama_model_load: error loading model: mmap failed: Cannot allocate memory", K.OUT_OF_MEMORY_STARTUP),
    ('error while handling argument "--ctx-size": invalid stoi argument', K.INVALID_CONFIGURATION),
    ("error: invalid argument: --no-such-flag", K.INVALID_CONFIGURATION),
    ("llama_init_from_model: V cache quantization requires flash_attn", K.INVALID_CONFIGURATION),
    ("CUDA error: an illegal memory access was encountered", K.ENGINE_CRASH),
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("line", "kind"), LINES, ids=lambda value: str(value)[:50])
def test_a_line_counts_with_and_without_time_and_level(line: str, kind: FailureKind, prefix: str) -> None:
    log = "\n".join(
        [
            "build: 4823 (0d559580) with cc for x86_64-linux-gnu",
            "warning: failed to mlock 98304-byte buffer: Cannot allocate memory",
            PREFIXES[prefix].format(line),
            "srv    load_model: failed to load model, '/m/a.gguf'",
            "main: exiting due to model loading error",
        ]
    )
    failure = classify(log, 1, Phase.READY)
    assert failure.kind is kind
    assert "\x1b" not in failure.message
    assert "its log has no cause" not in failure.message


def test_a_gpu_that_is_not_found_is_the_cause_only_without_another_one() -> None:
    log = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
    taken = "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n"
    assert classify(log + taken, 1, Phase.READY).kind is K.PORT_TAKEN


def test_a_line_of_another_level_is_no_error() -> None:
    log = "0.00.950.742 W common_fit_params: failed to fit params\n0.01 I srv init: failed to say hello\n"
    assert "its log has no cause" in classify(log, 1, Phase.READY).message
