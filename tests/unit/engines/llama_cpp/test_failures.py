"""llama.cpp's files, prompts, installation and failures, which need no program."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from records.trials import Culprit, FailureKind, Phase
from search_spaces import ModelShape
from tests.gguf_model import MadeModel, write_model
from tests.some import some
from tuner.engines.llama_cpp.engine import classify, context_problem, facts_from_log, installation
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.engines.server.failures import read_log
from tuner.engines.server.gguf_file import GgufError, GgufHeader, read_header
from tuner.engines.server.token_prompts import TokenTools, gguf_tools
from tuner.errors import SettingError, TrialFailed, UserError
from tuner.processes.records import ProcessRecords

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
    "Compose": "llama-1  | 0.01.881.728 E {}",
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
    ("error: failed to get manifest at https://huggingface.co/v2/a/manifests/latest: 404", K.ENVIRONMENT_BROKEN),
    ("error from HF API (https://huggingface.co/v2/a), response code: 401, data: {}", K.ENVIRONMENT_BROKEN),
    ("mtmd_init_from_file: error: Failed to load CLIP model from mmproj.gguf", K.ENVIRONMENT_BROKEN),
    (
        "llama_model_load: error loading model: create_tensor: tensor 'token_embd.weight' not found",
        K.ENVIRONMENT_BROKEN,
    ),
    (
        "curl_perform_with_retry: HEAD https://huggingface.co/a failed (Could not resolve hostname)",
        K.ENVIRONMENT_BROKEN,
    ),
    ("error: built without CURL, cannot download model from the internet", K.ENVIRONMENT_BROKEN),
    ("ROCm error: invalid device function", K.ENVIRONMENT_BROKEN),
    ("clip_init: failed to load model 'mmproj.gguf': load_hparams: unknown projector type: x", K.ENVIRONMENT_BROKEN),
    ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file", K.ENVIRONMENT_BROKEN),
    ("error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", K.OUT_OF_MEMORY_STARTUP),
    ("CUDA error: an illegal memory access was encountered", K.ENGINE_CRASH),
    ("CUDA error: device kernel image is invalid", K.ENVIRONMENT_BROKEN),
    ("gguf_init_from_file: GGUFv1 is no longer supported. please use a more up-to-date version", K.ENVIRONMENT_BROKEN),
    ("llama_model_load: error loading model: unsupported quantization version: 99", K.ENVIRONMENT_BROKEN),
    ("llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by llama-server)", K.ENVIRONMENT_BROKEN),
    ("llama-server: symbol lookup error: undefined symbol: ggml_backend_load_all", K.ENVIRONMENT_BROKEN),
    ("get_repo_commit: error: HEAD failed, status: 401", K.ENVIRONMENT_BROKEN),
    ("  what():  vk::createInstance: ErrorIncompatibleDriver", K.ENVIRONMENT_BROKEN),
    ("  what():  filesystem error: cannot create directory: Permission denied [/m]", K.ENVIRONMENT_BROKEN),
    # https://github.com/ikawrakow/ik_llama.cpp/issues/2173
    ("llama_init_from_model: n_batch and n_ubatch cannot both be zero", K.INVALID_CONFIGURATION),
    ("llama-server: a.cpp:9: int f(): Assertion `status == LLAMA_MEMORY_STATUS_SUCCESS' failed.", K.ENGINE_CRASH),
]


@pytest.mark.parametrize(("line", "kind"), LINES, ids=lambda value: str(value)[:50])
def test_a_line_counts_with_and_without_time_and_level(line: str, kind: FailureKind) -> None:
    for prefix, frame in PREFIXES.items():
        log = "\n".join(
            [
                "build: 4823 (0d559580) with cc for x86_64-linux-gnu",
                "warning: failed to mlock 98304-byte buffer: Cannot allocate memory",
                frame.format(line),
                "srv    load_model: failed to load model, '/m/a.gguf'",
                "main: exiting due to model loading error",
            ]
        )
        failure = classify(log, 1, Phase.READY)
        assert failure.kind is kind, prefix
        assert "\x1b" not in failure.message, prefix
        assert "its log has no cause" not in failure.message, prefix


def test_a_gpu_that_is_not_found_is_the_cause_only_without_another_one() -> None:
    log = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
    taken = "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n"
    assert classify(log + taken, 1, Phase.READY).kind is K.PORT_TAKEN


@pytest.mark.parametrize(
    "handled",
    [
        "ggml_vulkan: Failed to allocate pinned memory (vk::Device::allocateMemory: ErrorOutOfDeviceMemory)",
        "load_backend: failed to load ggml-cuda.so: libcudart.so.12: cannot open shared object file",
        # https://github.com/ggml-org/llama.cpp/issues/24343
        "E llama_init_from_model: failed to initialize the context: (this is normal during memory fitting)",
    ],
)
def test_an_error_that_the_server_goes_on_from_is_not_the_cause(handled: str) -> None:
    assert classify(f"{handled}\nsrv init: model loaded\n", -9, Phase.BENCHMARK).kind is K.SERVER_KILLED


def test_a_line_of_another_level_is_no_error() -> None:
    log = "0.00.950.742 W common_fit_params: failed to fit params\n0.01 I srv init: failed to say hello\n"
    assert "its log has no cause" in classify(log, 1, Phase.READY).message


ANSWERS = """#!/bin/sh
case "$1" in
  --version) echo "version: 6711 (a1b2c3d)" >&2; echo "built with cc for x86_64-linux-gnu" >&2 ;;
  --help) printf '%s\\n' '-c,    --ctx-size N      size' '-np,   --parallel N  slots (--no-such is none)' ;;
  --list-devices) printf 'Available devices:\\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\\n' ;;
esac
"""


def program(folder: Path, text: str = ANSWERS, name: str = "llama-server") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_llama_server_states_version_flags_and_gpus(tmp_path: Path) -> None:
    found = installation(program(tmp_path))
    assert found.version == "6711"
    assert {"--ctx-size", "--parallel"} <= some(found.flags)
    assert found.gpus == ("CUDA0",)


@pytest.mark.program("libgomp1")
def test_the_launcher_states_the_same_of_itself() -> None:
    found = installation(Path(sys.executable).with_name(LAUNCHER))
    assert found.version[0].isdigit()
    assert {"--ctx-size", "--no-cont-batching", "--spec-type"} <= some(found.flags)
    assert found.gpus == ()


def test_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--version prints no version \(I am another\); is it llama-server\?"):
        installation(program(tmp_path, "#!/bin/sh\necho I am another\n", "other"))


def test_the_header_has_the_shape_of_the_model(gguf: Path) -> None:
    header = read_header(gguf)
    assert (header.architecture, header.file_type, header.vocabulary) == ("llama", "f16", 1024)
    assert header.shape == ModelShape(2, 64, 128, 2, 1, 32, 1024, 2048, False, "float16", None)


def test_ordinary_tokens_are_neither_control_tokens_nor_bytes(gguf: Path) -> None:
    tokens = read_header(gguf).text_tokens
    assert tokens == tuple(range(3 + 256, 1024))


def test_a_made_model_is_the_same_every_time(gguf: Path, tmp_path: Path) -> None:
    assert write_model(tmp_path / "again.gguf").read_bytes() == gguf.read_bytes()
    assert write_model(tmp_path / "other.gguf", MadeModel(seed=8)).read_bytes() != gguf.read_bytes()


def test_a_model_without_a_length_has_no_shape(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf.read_bytes().replace(b"llama.context_length", b"llama.context_lengzh"))
    assert read_header(file).shape is None


def test_a_mixture_of_experts_has_their_number() -> None:
    own = {"attention.head_count": 32, "attention.head_count_kv": 4, "embedding_length": 2048, "block_count": 48}
    own |= {"context_length": 40960, "expert_count": 128, "expert_feed_forward_length": 768}
    values = {f"qwen3moe.{key}": value for key, value in own.items()}
    shape = some(GgufHeader({"general.architecture": "qwen3moe", "tokenizer.ggml.tokens": 151_936, **values}).shape)
    assert (shape.experts, shape.intermediate, shape.kv_heads, shape.groups) == (128, 768, 4, ())


def pairs(count: int, content: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + content


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello", "it starts with b'hell', and a GGUF file starts with b'GGUF'"),
        (b"", "it starts with b''"),
        (pairs(0, version=1), "GGUF version 1; versions 2 and 3 are known"),
        (pairs(10**9), "1000000000 key-value pairs; 65536 are possible"),
        (pairs(1), "its header is cut off"),
        (pairs(1, struct.pack("<Q", 2**60)), "a text of 1152921504606846976 bytes"),
        (pairs(1, text(b"key") + struct.pack("<I", 99)), "a value of the unknown type 99"),
        (pairs(1, text(b"key") + struct.pack("<IIQ", 9, 4, 2**40)), "an array of 1099511627776 elements"),
        (pairs(1, text(b"key") + struct.pack("<IIQ", 9, 9, 1)), "an array of arrays"),
    ],
)
def test_a_file_that_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(GgufError) as caught:
        read_header(file)
    assert reason in str(caught.value)


TOKENS = range(100, 200)


def words_as_tokens(text: str, special: bool) -> list[int]:
    return [*([1] if special else []), *(len(word) for word in text.split())]


def made(tmp_path: Path, *requests: dict[str, Any]) -> list[Any]:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"tokenizer": "unused", "requests": requests}))
    tools = TokenTools(TOKENS, ProcessRecords(tmp_path / "processes"), words_as_tokens)
    return list(tools.prompts(plan, tmp_path / "log"))


def drawn(tokens: int, seed: int, text: str = "random", shared: tuple[tuple[Any, ...], ...] = ()) -> dict[str, Any]:
    return {"shared": shared, "tokens": tokens, "seed": seed, "text": text}


def test_a_prompt_has_exactly_its_length_and_only_ordinary_tokens(tmp_path: Path) -> None:
    (first, count, recorded), (again, *_), (other, *_) = made(tmp_path, drawn(37, 5), drawn(37, 5), drawn(37, 6))
    assert (len(first), count, recorded) == (37, 37, None)
    assert set(first) <= set(TOKENS)
    assert first == again
    assert first != other


def test_a_repetitive_prompt_repeats_sixteen_tokens(tmp_path: Path) -> None:
    ((tokens, *_),) = made(tmp_path, drawn(40, 5, "repetitive"))
    assert tokens[16:32] == tokens[:16]
    assert tokens[32:] == tokens[:8]


def test_made_text_begins_with_its_document_and_ends_with_a_question(tmp_path: Path) -> None:
    document = ("c/1", 30, "chat")
    first, second = made(tmp_path, *(drawn(20, seed, "chat", (document,)) for seed in (1, 2)))
    assert (len(first[0]), first[1]) == (50, 50)
    assert first[0][:30] == second[0][:30]
    assert first[0][30:] != second[0][30:]
    assert first[0][-1] == second[0][-1] == len("Assistant:")


def test_shared_parts_are_the_same_for_their_key(tmp_path: Path) -> None:
    shared = (("system", 8), ("chat/1", 4))
    (one, count, _), (two, *_), (third, *_) = made(
        tmp_path, drawn(10, 1, shared=shared), drawn(10, 2, shared=shared), drawn(10, 2, shared=(("chat/2", 12),))
    )
    assert count == 22
    assert one[:12] == two[:12]
    assert one[12:] != two[12:]
    assert third[:12] != two[:12]


def test_a_user_s_text_is_tokenized_with_the_special_tokens_of_a_beginning(tmp_path: Path) -> None:
    alone = {"shared": [], "prompt": "one three", "answer": "four"}
    behind = {"shared": [("system", 2)], "prompt": "one three", "answer": None}
    first, second = made(tmp_path, alone, behind)
    assert first == ([1, 3, 5], 3, 1)
    assert (second[0][2:], second[1], second[2]) == ([3, 5], 4, None)


def test_a_server_that_does_not_tokenize_fails_the_trial(gguf: Path, tmp_path: Path) -> None:
    tools = gguf_tools(str(gguf), "http://127.0.0.1:9", ProcessRecords(tmp_path / "processes"))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"requests": [{"shared": [], "prompt": "a text"}]}))
    with pytest.raises(TrialFailed, match="the server does not tokenize the user's prompts"):
        tools.prompts(plan, tmp_path / "log")


def test_a_tokenizer_must_be_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "text.gguf"
    file.write_text("hello")
    with pytest.raises(SettingError) as caught:
        gguf_tools(str(file), "http://127.0.0.1:9", ProcessRecords(tmp_path / "processes"))
    assert "the GGUF file cannot be read (it starts with b'hell'" in str(caught.value)
    with pytest.raises(SettingError) as caught:
        gguf_tools(str(tmp_path), "http://127.0.0.1:9", ProcessRecords(tmp_path / "processes"))
    assert "the GGUF file cannot be read (Is a directory); give another" in str(caught.value)
