"""Every recorded log has the type of the failure that was provoked; see tests/data/logs/README.md."""

import time
from pathlib import Path

import pytest

from records.trials import Culprit, FailureKind, Phase
from tests.some import some
from tuner.engines.server.failures import EVIDENCE_LINES, error_summary, read_log
from tuner.engines.vllm.texts import classify, facts_from_log

LOGS = Path(__file__).parents[3] / "data" / "logs"
K = FailureKind

RECORDED = {
    K.INVALID_CONFIGURATION: [
        ("unknown_flag", 2, "unrecognized arguments: --swap-space 4"),
        ("bad_choice", 2, "argument --dtype: invalid choice: 'float17'"),
        ("tokens_below_seqs", 1, "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (32)."),
        ("model_len_too_long", 1, "User-specified max_model_len (999999) is greater"),
        ("async_with_ngram", 1, "Currently, async scheduling is only supported with"),
        ("suffix_without_arctic", 1, "Arctic Inference is required for suffix"),
        ("unknown_quantization", 1, "Unknown quantization method: nonsense."),
        ("quantization_needs_checkpoint", 1, "Cannot find the config file for awq"),
        ("no_common_block_size", 1, "ValueError: No common block size for 24"),
        ("kv_offload_on_cpu", 1, "CPU Offloading is currently only supported on CUDA"),
    ],
    K.KV_CACHE_TOO_SMALL: [("kv_cache_too_small", 1, "To serve at least one request with the model's max")],
    K.OUT_OF_MEMORY_STARTUP: [("kv_space_over_memory", 1, "Available memory on node 0")],
    K.ENVIRONMENT_BROKEN: [
        ("no_weights", 1, "Cannot find any model weights with `/model`"),
        ("wrapper_without_guard", 1, "the program that starts the engine lacks `if __name__ == '__main__':`"),
    ],
    K.PORT_TAKEN: [("port_taken", 1, "another program took the port")],
    K.DISK_FULL: [("disk_full", 1, "no space left on disk")],
    K.ENGINE_CRASH: [("engine_crash_under_load", 0, "RuntimeError: index 71 is out of bounds")],
    K.SERVER_KILLED: [
        ("engine_core_killed_under_load", 0, "a process of the server was killed"),
        ("worker_killed_under_load", 0, "a process of the server was killed"),
        ("api_server_killed_under_load", -9, "the server was killed from outside (SIGKILL)"),
    ],
}

SYNTHETIC = {
    K.OUT_OF_MEMORY_STARTUP: ["gpu_out_of_memory_at_start", "gpu_sampler_out_of_memory"],
    K.KV_CACHE_TOO_SMALL: ["gpu_no_kv_memory", "gpu_kv_too_small_0.15"],
    K.GPU_BUSY: ["gpu_not_free", "gpu_memory_moved_while_profiling"],
    K.INVALID_CONFIGURATION: [
        "gpu_bfloat16_on_t4",
        "gpu_attention_backend_not_valid",
        "gpu_no_attention_backend",
        "gpu_fp8_kv_on_t4",
        "gpu_no_common_block_size",
        "gpu_quantization_capability",
    ],
    K.ENVIRONMENT_BROKEN: ["gpu_driver_too_old"],
    K.OUT_OF_MEMORY_LOAD: ["gpu_out_of_memory_under_load"],
    K.ENGINE_CRASH: ["gpu_illegal_access_under_load"],
}

RECORDED_LOGS = {log: (kind, code, message) for kind, rows in RECORDED.items() for log, code, message in rows}
SYNTHETIC_LOGS = {log: kind for kind, logs in SYNTHETIC.items() for log in logs}


def phase_of(log: str) -> Phase:
    return Phase.BENCHMARK if log.endswith("_under_load") else Phase.READY


@pytest.mark.parametrize("log", RECORDED_LOGS)
def test_a_recorded_failure_is_typed(log: str) -> None:
    kind, exit_code, message = RECORDED_LOGS[log]
    failure = classify(read_log(LOGS / f"{log}.log"), exit_code, phase_of(log))
    assert (failure.kind, failure.phase, failure.exit_code) == (kind, phase_of(log), exit_code)
    assert message in failure.message
    assert "\n" not in failure.message
    assert 1 <= len(some(failure.evidence).splitlines()) <= EVIDENCE_LINES


@pytest.mark.parametrize("log", SYNTHETIC_LOGS)
def test_a_text_of_the_gpu_builds_is_typed(log: str) -> None:
    assert classify(read_log(LOGS / f"{log}.log"), 1, phase_of(log)).kind is SYNTHETIC_LOGS[log]


def test_every_log_of_a_failure_is_tested() -> None:
    healthy = {"healthy_start", "gpu_start_0.15", "gpu_start_0.25"}
    assert {path.stem for path in LOGS.glob("*.log")} == {*RECORDED_LOGS, *SYNTHETIC_LOGS, *healthy}


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
    assert failure.message.startswith(
        "ImportError: Arctic Inference is required for suffix decoding; install the package"
    )


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
        (-4, K.ENVIRONMENT_BROKEN, Culprit.INFRASTRUCTURE),
        (128 + 9, K.SERVER_KILLED, Culprit.INFRASTRUCTURE),
        (128 + 4, K.ENVIRONMENT_BROKEN, Culprit.INFRASTRUCTURE),
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


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ("'EngineCore_DP0': -9", K.SERVER_KILLED),
        ("'EngineCore_DP0': -11", K.ENGINE_CRASH),
        ("'EngineCore_DP0': -7", K.ENVIRONMENT_BROKEN),
        ("'EngineCore_DP0': 1", K.ENGINE_CRASH),
        ("'EngineCore_DP0': 1, 'EngineCore_DP1': -9", K.SERVER_KILLED),
        ("", K.SERVER_KILLED),
    ],
)
def test_the_exit_code_of_the_engine_says_why_it_died(codes: str, kind: FailureKind) -> None:
    text = f"RuntimeError: Engine core initialization failed. Failed core proc(s): {{{codes}}}\n"
    assert classify(text, 1, Phase.READY).kind is kind


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


MODEL = "acme/typo-7b"
ENVIRONMENT = [
    # the hub
    f"ValueError: Invalid repository ID or local directory specified: '{MODEL}'.",
    f"OSError: {MODEL} is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    "OSError: You are trying to access a gated repo.",
    "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-2)",
    "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-2)",
    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/x",
    "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url 'https://huggingface.co/x'",
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached",
    "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/x: offline mode is enabled.",
    "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
    "httpx.ConnectError: [Errno -2] Name or service not known",
    "httpx.ConnectTimeout: timed out",
    "requests.exceptions.ProxyError: Unable to connect to proxy",
    "requests.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
    f"OSError: PermissionError at /root/.cache/huggingface/hub when downloading {MODEL}.",
    "OSError: Consistency check failed: file should be of size 9 but has size 5 (model.safetensors).",
    f"OSError: {MODEL} does not appear to have a file named config.json. Checkout 'https://huggingface.co/{MODEL}'",
    f"OSError: {MODEL} does not appear to have files named ('model-00002-of-00002.safetensors',).",
    "huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
    "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status server error (500)",
    "urllib3.exceptions.IncompleteRead: IncompleteRead(1234 bytes read, 99 more expected)",
    "http.client.RemoteDisconnected: Remote end closed connection without response",
    "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
    "modelscope.hub.errors.NotExistError: The file path config.json not exist.",
    # the model's files
    "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too small",
    "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "_pickle.UnpicklingError: invalid load key, 'v'.",
    "FileNotFoundError: No such file or directory: '/models/a/model-00003-of-00004.safetensors'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/tokenizer.json'",
    "AssertionError: Attempted to load weight (torch.Size([9])) into parameter (torch.Size([8]))",
    "ValueError: There is no module or parameter named 'lm_head.bias' in Qwen2ForCausalLM",
    "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}",
    "OSError: Can't load tokenizer for '/models/a'. If you were trying to load it from 'https://huggingface.co/models'",
    "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
    "ValueError: Tokenizer class Nova9Tokenizer does not exist or is not currently imported.",
    "OSError: It looks like the config file at '/models/a/config.json' is not a valid JSON file.",
    "ValueError: Model architectures ['Nova9ForCausalLM'] are not supported for now. Supported architectures: [...]",
    "ValueError: The checkpoint you are trying to load has model type `nova9` but Transformers does not recognize this "
    "architecture.",
    "PermissionError: [Errno 13] Permission denied: '/models/a/model-00001-of-00004.safetensors'",
    "OSError: [Errno 30] Read-only file system: '/root/.cache/vllm'",
    "OSError: [Errno 116] Stale file handle: '/mnt/nfs/a/model.safetensors'",
    "OSError: [Errno 121] Remote I/O error",
    "NotADirectoryError: [Errno 20] Not a directory: '/models/a/config.json'",
    "IsADirectoryError: [Errno 21] Is a directory: '/models/a/tokenizer.json'",
    "Exception: Is a directory (os error 21)",
    "FileExistsError: [Errno 17] File exists: '/root/.cache'",
    "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/models'",
    "ValueError: GGUF magic invalid",
    "RuntimeError: unable to open file </models/a/b.safetensors> in read-only mode: No such file or directory (2)",
    'OSError: Not found: "/models/a/tokenizer.model": No such file or directory Error #2',
    "RuntimeError: Error(s) in loading state_dict for Linear:",
    "ValueError: Unknown RoPE scaling type longrope2",
    "KeyError: 'getpwuid(): uid not found: 1000'",
    'zmq.error.ZMQError: ipc path "/x" is longer than 107 characters (sizeof(sockaddr_un.sun_path)).',
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
    "RuntimeError: Some weights are not initialized from checkpoints: {'lm_head.weight'}",
    "Exception: data did not match any variant of untagged enum ModelWrapper at line 757281 column 3",
    "RuntimeError: Internal: src/sentencepiece_processor.cc(1101) [model_proto->ParseFromArray(serialized.data())]",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ValueError: No supported config format found in acme/x.",
    "FileNotFoundError: Weight files referenced in index but missing: ['model-00002-of-00002.safetensors']",
    "RuntimeError: Cannot find any safetensors model weights with `/models/a`",
    "ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`, got {'factor': 8.0}",
    "ValueError: Could not find tiktoken.model or tokenizer.model in /models/a",
    "ValueError: Loading lora a failed: No adapter found for /loras/a",
    # the processes of a server
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error",
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    "RuntimeError: CUDA error: peer access is not supported between these two devices",
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
    "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth0",
    "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to",
    "ValueError: Cannot provide a placement group requiring 4 GPUs within 1800 seconds.",
    "RuntimeError: Barrier timed out after 30 seconds",
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.",
    "RuntimeError: No available node types can fulfill resource request {'GPU': 1.0}",
    "ray.exceptions.NodeDiedError: Task was killed due to the node dying.",
    "RuntimeError: pidfd_getfd: Operation not permitted",
    "ValueError: GGUF model with architecture qwen3moe is not supported yet.",
    "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
    # driver and card
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    "RuntimeError: CUDA error: system driver mismatch",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "RuntimeError: HIP error: invalid device ordinal",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:144] Connection reset by peer",
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0",
    "RuntimeError: flashinfer-cubin version (0.5.2) does not match flashinfer version (0.5.3). Please install the same",
    "RuntimeError: Failed to import transformers.models.llama because of the following error:",
    "AttributeError: partially initialized module 'torchvision' has no attribute 'extension'",
    "AttributeError: module 'triton.language' has no attribute 'constexpr_function'",
    "ModuleNotFoundError: No module named '_lzma'",
    "RuntimeError: NVRTC error: invalid value for --gpu-architecture (-arch)",
    "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
    "ray.exceptions.RaySystemError: System error: Failed to connect to GCS",
    "torch.cuda.DeferredCudaCallError: CUDA call failed lazily at initialization with error: device >= 0",
    "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded",
    "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c']' returned non-zero exit status 1.",
    "ImportError: cannot import name 'GenerationMixin' from 'transformers' (/x/transformers/__init__.py)",
    "ImportError: numpy.core.multiarray failed to import",
    "ImportError: This modeling file requires the following packages that were not found in your environment: tiktoken",
    "torch._inductor.exc.InductorError: RuntimeError: PTXAS error: Internal Triton PTX codegen error",
    "ModuleNotFoundError: No module named 'triton'",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver",
    "RuntimeError: No CUDA GPUs are available",
    "RuntimeError: No HIP GPUs are available",
    "RuntimeError: HIP error: invalid device function",
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1131',
    "AssertionError: libcuda.so cannot found!",
    "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'",
    "RuntimeError: operator torchvision::nms does not exist",
    "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
    "ModuleNotFoundError: No module named 'mistral_common'",
    "RuntimeError: Cannot get CUDA generator without ATen_cuda library.",
    "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1).",
    "RuntimeError: Numpy is not available",
    "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88",
    "TypeError: Descriptors cannot be created directly.",
    "ValueError: Please install `flash_attn` first",
    "ImportError: Please install `timm` to use this model",
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
    "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /x/_C.abi3.so)",
    "OSError: [Errno 99] error while attempting to bind on address ('10.0.0.1', 8000): Cannot assign requested address",
    "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'num_special_tokens'?",
    "AttributeError: 'Qwen3VLMoeConfig' object has no attribute 'vocab_size'",
    "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab file",
    "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
    "RuntimeError: UVA is not available",
    "torch.AcceleratorError: CUDA error: OS call failed or operation not supported on this OS",
    "RuntimeError: CUDA driver error: operation not supported",
    "FileNotFoundError: [Errno 2] No such file or directory: '/sbin/ldconfig'",
    "exec /usr/local/bin/vllm: exec format error",
    "FileNotFoundError: [Errno 2] No such file or directory: 'ptxas'",
    "TypeError: flash_attn_varlen_func() got an unexpected keyword argument 'block_table'",
    "Error: Please provide architecture for which code is to be generated.",
    "RuntimeError: Cannot find CUDA_HOME. CUDA must be available to build the package.",
]
FORMS = {
    "the server": "(APIServer pid=41) Traceback (most recent call last):\n(APIServer pid=41) {}\n",
    "a worker": (
        "(Worker_TP1 pid=9) ERROR 11-02 09:14:55 [multiproc_executor.py:772] WorkerProc failed to start.\n"
        "(Worker_TP1 pid=9) ERROR 11-02 09:14:55 [multiproc_executor.py:772] Traceback (most recent call last):\n"
        "(Worker_TP1 pid=9) ERROR 11-02 09:14:55 [multiproc_executor.py:772] {}\n"
        "(EngineCore pid=7) ERROR 11-02 09:14:55 [core.py:936] EngineCore failed to start.\n"
        "(EngineCore pid=7) ERROR 11-02 09:14:55 [core.py:936] Exception: WorkerProc initialization failed due to an "
        "exception in a background process. See stack trace for root cause.\n"
        "(APIServer pid=41) RuntimeError: Engine core initialization failed. See root cause above.\n"
    ),
    "a worker of Ray": (
        "(RayWorkerWrapper pid=9, ip=10.0.0.2) ERROR 11-02 09:14:55 [worker_base.py:600] Traceback (most recent call "
        "last):\n(RayWorkerWrapper pid=9, ip=10.0.0.2) ERROR 11-02 09:14:55 [worker_base.py:600] {}\n"
    ),
    "the journal": (
        "Aug  7 18:42:18 node1 vllm[8052]: (APIServer pid=41) Traceback (most recent call last):\n"
        "Aug  7 18:42:18 node1 vllm[8052]: (APIServer pid=41) {}\n"
    ),
    "a container": "2026-08-17T18:42:18.123456789Z Traceback (most recent call last):\n2026-08-17T18:42:18.2Z {}\n",
    "a pod": (
        "2026-08-17T18:42:18.123+02:00 stderr F (EngineCore pid=7) ERROR 11-02 09:14:55 [core.py:936] EngineCore "
        "failed to start.\n2026-08-17T18:42:18.2Z stderr F (EngineCore pid=7) ERROR 11-02 09:14:55 [core.py:936] {}\n"
    ),
    "Compose": "vllm-1  | Traceback (most recent call last):\nvllm-1  | {}\n",
    "a rank of PyTorch": "[rank0]: Traceback (most recent call last):\n[rank0]: {}\n",
    "colours": (
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-02 09:14:55 [core.py:936] EngineCore failed to start.\n"
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-02 09:14:55 [core.py:936] {}\n"
    ),
    "a group of exceptions": (
        "  + Exception Group Traceback (most recent call last):\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    | {}\n"
    ),
    "a validation that hides it": (
        "Traceback (most recent call last):\n{}\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, the model cannot be used [type=value_error, input_value=ArgsKwargs((), {{}})]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error\n"
    ),
}


@pytest.mark.parametrize("text", ENVIRONMENT, ids=lambda text: text[:60])
def test_what_no_flag_can_mend_is_not_the_configuration(text: str) -> None:
    for form, log in FORMS.items():
        failure = classify(log.format(text), 1, Phase.READY)
        assert (failure.kind, failure.culprit) == (K.ENVIRONMENT_BROKEN, Culprit.INFRASTRUCTURE), form
        assert failure.message.partition("; ")[0][:40] in text, form


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).",
        "NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 75",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "ValueError: Unknown quantization method: nonsense. Must be one of [...]",
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
        "ImportError: cannot import name 'x' from 'flashinfer' (/x/flashinfer/__init__.py)",
        "ValueError: FlashInfer backend currently does not support attention sinks.",
        "ValueError: `limit_mm_per_prompt` is only supported for multimodal models.",
        "triton.runtime.errors.OutOfResources: out of resource: tensor memory, Required: 768, Hardware limit: 512.",
        "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ')",
        "KeyError: 'invalid tool call parser: hermes2 (chose from { hermes, llama3_json })'",
    ],
)
def test_what_flags_can_mend_is_the_configuration(text: str) -> None:
    for form, log in FORMS.items():
        failure = classify(log.format(text), 1, Phase.READY)
        assert (failure.kind, failure.culprit) == (K.INVALID_CONFIGURATION, Culprit.CONFIGURATION), form


NCCL = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"

CAUSES = {
    K.ENVIRONMENT_BROKEN: [
        (
            "host:2:2 [1] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9), error: "
            f"No space left on device (28)\n{FORMS['a worker'].format(NCCL)}",
            "NCCL has no room in /dev/shm",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-X: No space left on device\n",
            "NCCL has no room in /dev/shm",
        ),
        (
            f"host:2:2 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot register memory\n{NCCL}\n",
            f"{NCCL} NCCL WARN Call to ibv_reg_mr failed",
        ),
        ("RuntimeError: unable to write to file </torch_9_8_0>: No space left on device (28)\n", "no room in /dev/shm"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'\n", "no room in /dev/shm"),
        ("RuntimeError: can't start new thread\n", "no more processes or threads are allowed"),
        (
            f"host:2:2 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n{NCCL}\n",
            "RDMA may not lock enough memory",
        ),
        ("RuntimeError: Insufficient space in /dev/shm for message queue\n", "no room in /dev/shm"),
        ("Fatal Python error: Bus error\n", "no room in /dev/shm"),
        (
            "ImportError: \nT5Tokenizer requires the SentencePiece library but it was not found in your environment\n",
            "T5Tokenizer requires the SentencePiece library",
        ),
        ("/usr/bin/python3: No module named vllm\n", "No module named vllm"),
        ("ModuleNotFoundError: No module named vllm\n", "No module named vllm"),
        (
            "/venv/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
            "(ModuleNotFoundError: No module named 'vllm')\n",
            "No module named 'vllm'",
        ),
        (
            "host:2:2 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=12 vendor err 129\n"
            "(EngineCore pid=7) Exception: WorkerProc initialization failed due to an exception\n",
            "Got completion from peer",
        ),
        ("OSError: [Errno 28] No space left on device: '/psm_3f'\n", "no room in /dev/shm"),
        (
            "(EngineCore pid=84) torch._inductor.exc.InductorError: PermissionError: [Errno 13] Permission denied: "
            "'/.triton'\n(EngineCore pid=84) ERROR 05-07 10:00:00 [core.py:1108] EngineCore failed to start.\n"
            "RuntimeError: Engine core initialization failed. See root cause above.\n",
            "Permission denied: '/.triton'",
        ),
        (
            "[rank0]:[E1102 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1) ran for 600029 milliseconds before timing out.\n",
            "Watchdog caught collective operation timeout",
        ),
    ],
    K.OUT_OF_MEMORY_STARTUP: [
        (f"host:2:2 [0] NCCL WARN Cuda failure 2 'out of memory'\n{NCCL}\n", "NCCL error"),
        ("MemoryError\n", "MemoryError"),
        ("RuntimeError: std::bad_alloc\n", "bad_alloc"),
        ("RuntimeError: HIP error: out of memory\n", "HIP error"),
        ("RuntimeError: CUDA error (/x/a.cuh:90): out of memory\n", "a.cuh:90"),
    ],
    K.ENGINE_CRASH: [
        (
            f"host:2:2 [0] NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n{NCCL}\n",
            "illegal memory access",
        ),
        (
            "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing\n",
            "when stream is capturing",
        ),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 0] Process group "
            "watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
            "(EngineCore pid=7) ERROR 11-02 09:14:55 [a.py:2] Worker proc VllmWorker-0 died unexpectedly.\n",
            "illegal memory access",
        ),
        ("AttributeError: 'ModelConfig' object has no attribute 'hidden_size'\n", "'ModelConfig'"),
    ],
    K.KV_CACHE_TOO_SMALL: [
        (
            'host:2:2 [0] NCCL WARN Missing "iommu=pt" from kernel command line\n'
            "ValueError: No available memory for the cache blocks.\n",
            "No available memory",
        ),
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (318).\n", "Mamba cache blocks (318)"),
    ],
    K.DISK_FULL: [
        ("OSError: [Errno 28] No space left on device: '/root/.cache/a'\n", "no space left on disk"),
        ("CAS service error : IO Error: No space left on device (os error 28)\n", "no space left on disk"),
    ],
    K.GPU_BUSY: [
        (
            "ValueError: Free memory on device cuda:0 (9/79 GiB) on startup is less than the engine's budget after "
            "excluding external process's weights\n",
            "Free memory on device",
        )
    ],
    K.STARTUP_TIMEOUT: [("TimeoutError: Timed out waiting for engine core processes to start.\n", "Timed out")],
    K.SERVER_KILLED: [
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
            "the node running low on memory",
        ),
        ("(APIServer pid=9) See root cause above. Failed core proc(s): {}\n", "it logged no error"),
    ],
    K.INVALID_CONFIGURATION: [
        ("ModuleNotFoundError: No module named 'deep_ep'\n", "deep_ep"),
        ("ValueError: Failed to find a kernel that can implement the WNA16 linear layer.\n", "Failed to find a kernel"),
        ("AssertionError: 30 is not divisible by 4\n", "30 is not divisible by 4"),
        ("ValueError: Weight output_partition_size = 1368 is not divisible by min_thread_n = 64.\n", "min_thread_n"),
        (
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (16384) is larger than "
            "max_num_batched_tokens (8192).\n",
            "is larger than max_num_batched_tokens",
        ),
        (
            "ValueError: User-specified max_model_len (131072) is greater than the derived max_model_len (32768).\n",
            "greater than the derived",
        ),
        ("ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n", "LoRA rank 64"),
        (
            "AttributeError: Model MllamaForConditionalGeneration does not support BitsAndBytes quantization yet.\n",
            "BitsAndBytes",
        ),
    ],
}


@pytest.mark.parametrize(("kind", "log", "message"), [(kind, *row) for kind, rows in CAUSES.items() for row in rows])
def test_an_error_of_nccl_memory_or_disk_has_its_cause(kind: FailureKind, log: str, message: str) -> None:
    failure = classify(log, 1, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message
    assert "\n" not in failure.message


@pytest.mark.parametrize(
    ("cause", "summary"),
    [
        (NCCL, NCCL),
        ("RuntimeError: CUDA error: an illegal memory access", "RuntimeError: CUDA error: an illegal memory access"),
        ("vllm serve: error: argument --dtype: invalid choice", "argument --dtype: invalid choice"),
        ("vllm: error: unrecognized arguments: --x", "unrecognized arguments: --x"),
        ("python -m api_server.py: error: argument --x: y", "argument --x: y"),
        ("OSError: error: x", "OSError: error: x"),
    ],
)
def test_only_argparse_s_own_beginning_is_left_out(cause: str, summary: str) -> None:
    assert error_summary(cause) == summary


def started(*traceback: str) -> str:
    """Return the log of an engine that ended with a traceback at its start."""
    prefix = "(EngineCore_0 pid=41) ERROR 08-06 20:57:06 [core.py:718] "
    return "\n".join(prefix + line for line in ("EngineCore failed to start.", *traceback)) + "\n"


SITE = "/usr/local/lib/python3.12/dist-packages"


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("vllm/v1/attention/backends/flash_attn.py", K.INVALID_CONFIGURATION),
        ("vllm/v1/attention/backends/mla/triton_mla.py", K.INVALID_CONFIGURATION),
        ("vllm/v1/attention/backends/flashinfer.py", K.INVALID_CONFIGURATION),
        ("vllm/vllm_flash_attn/flash_attn_interface.py", K.INVALID_CONFIGURATION),
        ("flashinfer/prefill.py", K.INVALID_CONFIGURATION),
        ("flashinfer/comm/trtllm_ar.py", K.ENGINE_CRASH),
        ("vllm/v1/worker/gpu_model_runner.py", K.ENGINE_CRASH),
        ("vllm/model_executor/models/qwen2.py", K.ENGINE_CRASH),
    ],
)
def test_an_assertion_at_start_is_the_configurations_in_an_attention_backend_only(file: str, kind: FailureKind) -> None:
    text = started(
        "Traceback (most recent call last):",
        f'  File "{SITE}/vllm/v1/attention/selector.py", line 71, in get_attn_backend',
        "    return backend(",
        f'  File "{SITE}/{file}", line 428, in __init__',
        "    assert self.vllm_flash_attn_version == 3, (",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError: Sinks are only supported in FlashAttention 3",
    )
    failure = classify(text, 1, Phase.READY)
    assert (failure.kind, failure.message) == (kind, "AssertionError: Sinks are only supported in FlashAttention 3")
    assert classify(text, 1, Phase.BENCHMARK).kind is K.ENGINE_CRASH


def test_an_assertion_without_words_is_shown_with_its_statement() -> None:
    text = started(
        "Traceback (most recent call last):",
        f'  File "{SITE}/vllm/v1/attention/backends/flashinfer.py", line 251, in __init__',
        "    assert self.head_size in (64, 128, 256)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError",
    )
    failure = classify(text, 1, Phase.READY)
    assert failure.kind is K.INVALID_CONFIGURATION
    assert failure.message == "AssertionError: assert self.head_size in (64, 128, 256)"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        # https://github.com/modelscope/ms-swift/issues/6617
        (
            "RuntimeError: This flash attention build does not support headdim not being a multiple of 32.",
            K.INVALID_CONFIGURATION,
        ),
        # https://github.com/vllm-project/vllm/issues/52435
        (
            "AssertionError: n_physical_experts=256 must be divisible by ep_size=3. Adjust num_redundant_experts.",
            K.INVALID_CONFIGURATION,
        ),
        # https://github.com/vllm-project/vllm/issues/17604
        ("RuntimeError: size_k must divisible by BLOCK_SIZE_K", K.INVALID_CONFIGURATION),
        # https://github.com/flashinfer-ai/flashinfer/issues/1796
        (
            "RuntimeError: Expect (32 <= headDim <= 2048) && (numTokensPerPage <= 128), got headDimPerCtaV=256",
            K.INVALID_CONFIGURATION,
        ),
        ("RuntimeError: [SymmDeviceMemory] Device does not support multicasting.", K.INVALID_CONFIGURATION),
        ("AssertionError: DP adjusted local rank 8 is out of bounds.", K.INVALID_CONFIGURATION),
        ("RuntimeError: Ninja build failed. Ninja output:", K.ENVIRONMENT_BROKEN),
        # https://github.com/odysseus-dev/odysseus/issues/191
        ("ValueError: Either a revision or a version must be specified.", K.ENVIRONMENT_BROKEN),
        # https://github.com/verl-project/verl-omni/pull/506
        ("TypeError: type 'array.array' is not subscriptable", K.ENVIRONMENT_BROKEN),
        # https://github.com/vllm-project/vllm/issues/21822
        (
            "TypeError: MultiLevelCascadeAttentionWrapper.plan() got an unexpected keyword argument 'kv_data_type'",
            K.ENVIRONMENT_BROKEN,
        ),
        # https://github.com/vllm-project/vllm/issues/16500
        ("AttributeError: type object 'TokenizerInfo' has no attribute 'from_huggingface'", K.ENVIRONMENT_BROKEN),
        # https://github.com/vllm-project/vllm/issues/9398
        (
            "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'num_scheduler_steps'",
            K.INVALID_CONFIGURATION,
        ),
        # https://github.com/vllm-project/vllm/issues/20479
        ("AssertionError: expected size 250112==136064, stride 5120==4096 at dim=0", K.ENGINE_CRASH),
        ("nvcc.Error: nvcc fatal   : Unsupported gpu architecture 'compute_120a'", K.ENVIRONMENT_BROKEN),
        # raised in vLLM 0.32: config/vllm.py, platforms/interface.py, utils/numa_utils.py, worker/gpu/spec_decode
        ("ValueError: --use-replayssm requires --mamba-backend triton or flashinfer", K.INVALID_CONFIGURATION),
        ("ValueError: The attention backends share no block size (16; 64).", K.INVALID_CONFIGURATION),
        (
            "RuntimeError: NUMA binding was requested, but vLLM could not detect the GPU-to-NUMA topology.",
            K.INVALID_CONFIGURATION,
        ),
        ("RuntimeError: Model does not support EAGLE3 interface", K.INVALID_CONFIGURATION),
        ("RuntimeError: DeepGEMM is not available", K.INVALID_CONFIGURATION),
        ("RuntimeError: Unsupported FusedMoe scheme", K.INVALID_CONFIGURATION),
        ("RuntimeError: Worker process group startup failed", K.ENGINE_CRASH),
        # a package that no list has, and one that a quantization method needs
        ("ModuleNotFoundError: No module named 'nova9_kernels'", K.ENVIRONMENT_BROKEN),
        ("AttributeError: module 'nova9_kernels.ops' has no attribute 'fused_norm'", K.ENVIRONMENT_BROKEN),
        ("ModuleNotFoundError: No module named 'humming.transform'", K.INVALID_CONFIGURATION),
        ("RuntimeError: flashinfer-cubin (0.6.13) does not match flashinfer (0.6.16)", K.ENVIRONMENT_BROKEN),
        # https://github.com/marin-community/marin/issues/2387, AI-Hypercomputer/tpu-recipes/issues/151
        (
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate.",
            K.OUT_OF_MEMORY_STARTUP,
        ),
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Error loading program 'jit_a': Attempting to reserve 6.14G at the "
            "bottom of memory. That was not possible.",
            K.OUT_OF_MEMORY_STARTUP,
        ),
        (
            "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
            K.OUT_OF_MEMORY_STARTUP,
        ),
        ("RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", K.ENVIRONMENT_BROKEN),
        ("RuntimeError: oneCCL: a.cpp:14 init_fds: EXCEPTION: opendir failed", K.ENVIRONMENT_BROKEN),
    ],
)
def test_a_text_of_a_public_report_is_typed(error: str, kind: FailureKind) -> None:
    consequence = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    text = started("Traceback (most recent call last):", error)
    assert classify(f"{text}Traceback (most recent call last):\n{consequence}\n", 1, Phase.READY).kind is kind


@pytest.mark.parametrize(
    ("error", "file", "kind"),
    [
        # https://github.com/vllm-project/vllm/issues/4989
        ("KeyError: 'layers.0.attention.wk.weight'", "vllm/model_executor/models/llama.py", K.ENVIRONMENT_BROKEN),
        ("KeyError: 'model.layers.24.mlp.down_proj.weight'", "sglang/srt/models/qwen2.py", K.ENVIRONMENT_BROKEN),
        ("KeyError: 'blocks.0.attn.qkv.weight'", "vllm/model_executor/models/glm4_1v.py", K.ENVIRONMENT_BROKEN),
        ("KeyError: 'lm_head.weight'", "vllm/model_executor/models/qwen2.py", K.ENVIRONMENT_BROKEN),
        ("KeyError: 'rope_type'", "vllm/model_executor/models/qwen2.py", K.ENGINE_CRASH),
        # https://github.com/vllm-project/vllm/issues/9595: with --quantization bitsandbytes
        ("KeyError: 'layers.0.self_attn.qkv_proj.weight'", "vllm/model_executor/models/llama.py", K.ENGINE_CRASH),
        # a draft model's weights
        ("KeyError: 'layers.0.hidden_norm.weight'", "vllm/model_executor/models/llama_eagle3.py", K.ENGINE_CRASH),
        ("KeyError: 'model.layers.3'", "vllm/v1/worker/gpu_model_runner.py", K.ENGINE_CRASH),
    ],
)
def test_a_weight_that_the_models_code_lacks_is_a_model_that_does_not_fit(
    error: str, file: str, kind: FailureKind
) -> None:
    frame = f'  File "{SITE}/{file}", line 371, in load_weights'
    failure = classify(
        started("Traceback (most recent call last):", frame, "    param = params[name]", error), 1, Phase.READY
    )
    assert (failure.kind, failure.message[: len(error)]) == (kind, error)


@pytest.mark.parametrize(
    ("log", "exit_code", "kind", "message"),
    [
        # a kernel of PyTorch's stable interface writes the cause before its own error
        (
            "(Worker_TP1 pid=9) ERROR 07-16 19:47:26 [multiproc_executor.py:1007] WorkerProc hit an exception.\n"
            "[rank1]:[E716 19:47:26 shim_common.cpp:2] Exception in aoti_torch: CUDA out of memory. Tried to allocate "
            "2 GiB.\n(Worker_TP1 pid=9) ERROR 07-16 19:47:26 [multiproc_executor.py:1007] RuntimeError: "
            'torch_call_dispatcher( "aten::new_empty", "", stack.data()) API call failed at ops.h, line 933\n',
            1,
            K.OUT_OF_MEMORY_LOAD,
            "CUDA out of memory",
        ),
        ("Memory access fault by GPU node-3 on address 0x77d4. Reason: Unknown.\n", -6, K.ENGINE_CRASH, "access fault"),
        (
            "slurmstepd: error: *** STEP 9.1 ON n1 CANCELLED AT 2026-07-17T00:57:13 DUE TO TIME LIMIT ***\n"
            "srun: error: n1: task 0: Exited with exit code 1\n",
            1,
            K.SERVER_KILLED,
            "DUE TO TIME LIMIT",
        ),
        ("srun: error: n1: task 0: Killed\n", 137, K.SERVER_KILLED, "Killed"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some tasks have been OOM Killed.\n",
            1,
            K.SERVER_KILLED,
            "oom_kill",
        ),
        (
            "Traceback (most recent call last):\nRuntimeError: the first cause\n"
            "srun: error: n1: task 0: Exited with exit code 1\n",
            1,
            K.ENGINE_CRASH,
            "RuntimeError: the first cause",
        ),
        (
            "--- Logging error ---\nTraceback (most recent call last):\n"
            "RuntimeError: reentrant call inside <_io.BufferedWriter name='/a.log'>\n",
            -9,
            K.SERVER_KILLED,
            "SIGKILL",
        ),
    ],
)
def test_what_stands_around_a_failure_is_told_from_its_cause(
    log: str, exit_code: int, kind: FailureKind, message: str
) -> None:
    failure = classify(log, exit_code, Phase.BENCHMARK)
    assert failure.kind is kind
    assert message in failure.message
