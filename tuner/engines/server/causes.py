"""The table from texts of a log to kinds of failure, which engines of Python share.

The texts are those of the libraries that these engines have in common, and of what the engines took over from one
another; an engine's own rows come before. A row that names phases applies only in those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from records.trials import FailureKind, Phase

STARTING = frozenset({Phase.CHECK, Phase.LAUNCH, Phase.READY})
LOADED = frozenset({Phase.WARMUP, Phase.BENCHMARK, Phase.COLLECT, Phase.STOP})


@dataclass(frozen=True)
class FailurePattern:
    """One row. `message` is shown to the user; None shows the causal line itself.

    A general row names a form of error that can have any cause. It applies where no other row applies to any exception
    of the chain. A row with a `file` applies only to an exception that was raised in such a source file.
    """

    kind: FailureKind
    pattern: re.Pattern[str]
    message: str | None = None
    phases: frozenset[Phase] | None = None
    general: bool = False
    file: re.Pattern[str] | None = None

    def matches(self, line: str, phase: Phase, file: str = "") -> bool:
        """Return whether the row applies to `line` in `phase`, which was raised in `file`."""
        if self.file is not None and self.file.search(file) is None:
            return False
        return (self.phases is None or phase in self.phases) and self.pattern.search(line) is not None


def rows(
    kind: FailureKind,
    *patterns: str,
    message: str | None = None,
    phases: frozenset[Phase] | None = None,
    general: bool = False,
    file: str | None = None,
) -> tuple[FailurePattern, ...]:
    """Return one row for each pattern; patterns ignore case."""
    compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    place = None if file is None else re.compile(file)
    return tuple(FailurePattern(kind, pattern, message, phases, general, place) for pattern in compiled)


_OUT_OF_MEMORY = (
    r"OutOfMemoryError|\bout of memory\b|\bbad_alloc\b",
    r"cudaErrorMemoryAllocation",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"DefaultCPUAllocator: can't allocate memory",
    r"Cannot allocate memory",
    r"Not enough memory (?:for|to)",
    r"^(?:[\w.]*Array)?MemoryError\b",
)

_HUB = (
    r"Invalid repository ID or local directory",
    r"is not a local folder (?:and is not a valid model identifier|or a valid repository name)",
    r"Repo(?:sitory)?NotFound|RevisionNotFound|(?:Remote|Local)?EntryNotFoundError|IncompleteSnapshot",
    r"HFValidationError|HfUriError|is not a valid git identifier",
    r"Gated ?Repo|gated repo|is restricted and you are not in the authorized list|awaiting a review",
    r"HfHubHTTPError|DisabledRepo|Invalid (?:username or password|credentials|user token)",
    r"(?:401|403|404|429|50\d) (?:Client|Server) Error|Client error '(?:401|403|404|429)|Server error '50",
    r"Too Many Requests|rate limit",
    r"couldn't connect to|specific connection error|error happened while trying to locate the file",
    r"outgoing traffic has been disabled|OfflineMode|offline mode is enabled",
    r"cannot find (?:the requested files|an appropriate cached snapshot)|LocalEntryNotFound|in the cached files",
    r"PermissionError at .* when downloading|\.cache.*Permission denied|Permission denied.*\.cache",
    r"Consistency check failed|XetDownloadError|CAS (?:service|client) error|hf_xet",
    r"does not appear to have (?:a )?files? named",
    r"^(?:huggingface_hub|modelscope|botocore|s3fs|gcsfs|azure|google\.(?:auth|api_core|cloud))\.[\w.]+(?::|$)",
    r"runai\w* request|libstreamer|error downloading or loading vocab file",
)
"""The hub does not have the model, does not give it, or is not reached."""

_NETWORK = (
    r"Max retries exceeded|NameResolutionError|getaddrinfo failed|nodename nor servname",
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname",
    r"ProxyError|Tunnel connection failed|Cannot connect to proxy|CERTIFICATE_VERIFY_FAILED|SSLError|SSL: ",
    r"Network is unreachable|No route to host|Connection (?:refused|timed out)",
    r"^(?:requests|httpx|httpcore|urllib3|aiohttp|http\.client)\.[\w.]+(?::|$)",
    r"ConnectTimeout|ReadTimeout|NewConnectionError",
)

_MODEL = (
    r"Cannot find any (?:safetensors )?model weights|Error no file named .*(?:safetensors|bin)",
    r"SafetensorError|SafetensorsParsingError|Error while deserializing header|incomplete metadata, file not fully",
    r"PytorchStreamReader failed|UnpicklingError|invalid load key|not a ZIP archive",
    r"No such file or directory: \S*(?:safetensors|\.bin|\.json|\.model|\.gguf|\.pt)",
    r"(?:safetensors|\.model)\b.*No such file or directory|in loading state_dict|Trying to set a tensor of shape",
    r"size mismatch for |Attempted to load weight|There is no module or parameter named",
    r"weights (?:are|were) not initialized from checkpoint|Could not find checkpoint files|Missing keys .* in loaded",
    r"can't load the (?:configuration|model|image processor|feature extractor)|Can't load (?:tokenizer|processor)",
    r"Couldn't instantiate the backend tokenizer|Unable to load vocabulary|No tokenizer file found",
    r"Tokenizer class \S+ does not exist|Could not find tiktoken|No adapter found for",
    r"(?:tokenizer|vocab|merges|tiktoken)\S* (?:is missing|not found|does not exist)",
    r"(?:config|tokenizer|index|params)\S*\.json\S* is not a valid JSON|It looks like the config file at",
    r"no config file found|Unrecognized model in|does not recognize this architecture|Unrecognized configuration class",
    r"Model architectures? .* (?:not supported (?:for now|anymore|in-tree)|failed to be inspected|was supported in)",
    r"No model architectures are specified|Cannot find model module",
    r"No supported config format found|Unable to parse config\.json|Failed to load mistral '",
    r"Unable to load weights from|Weight files referenced in index but missing|could not parse ModelProto",
    r"sentencepiece_processor|^google\.protobuf\.message\.DecodeError",
    r"`?rope_scaling`? must be a dictionary with|Unknown RoPE scaling",
    r"GGUF (?:model with architecture|magic)|Unknown gguf",
    r"^Exception: (?:data did not match any variant|\S.* at line \d+ column)",
    r"(?<!CUDA error: )Operation not permitted|Errno 1\b",
    r"Permission denied|Read-only file system|Stale file handle|\bI/O error|Input/output error",
    r"Transport endpoint is not connected|(?:Errno|os error) (?:5|13|16|17|20|21|30|70|107|116|121)\b",
    r"getpwuid\(\): uid not found|is longer than \d+ characters \(sizeof|AF_UNIX path too long",
)
"""The model's files are missing, cut off or broken, or are of an architecture that the installed versions lack."""

_DEVICE = (
    r"NVIDIA driver on your system is too old",
    r"driver version is insufficient|InsufficientDriver|unsupported display driver|forward compatibility was attempted",
    r"Driver/library version mismatch|NVML.*(?:Not Found|Uninitialized|Unknown Error)|Failed to initialize NVML",
    r"Unexpected error from cudaGetDeviceCount|CUDA driver initialization failed",
    r"No (?:CUDA|HIP|XPU) (?:GPU|device)s are available|Cannot re-initialize CUDA in forked subprocess",
    r"no kernel image is available|device kernel image is invalid|compiled with an unsupported toolchain",
    r"HIP error: invalid device function|NoBinaryForGpu|were compiled with different CUDA|CUDNN_STATUS_NOT_INITIALIZED",
    r"CUDNN_STATUS_\w*VERSION_MISMATCH|version \(\S+\) does not match|is already used by a Transformers config",
    r"Failed to import \S+ because|partially initialized module",
    r"Cannot get CUDA generator without ATen_cuda|detected CUDA version .* mismatches",
    r"'_OpNamespace' '\w+' object has no attribute|operator \w+::\w+ does not exist",
    r"Unsupported gpu architecture '|invalid value for --gpu-architecture|is not defined for option 'gpu-name'",
    r"PTXAS error|Torch not compiled with CUDA",
    r"Found no NVIDIA driver",
    r"Failed to infer device type",
    r"CUDA (?:driver )?error: (?:unknown error|no CUDA-capable device|system not yet initialized|.*device.* busy)",
    r"(?:CUDA|HIP) (?:driver )?error: invalid device ord",
    r"CUDA unknown error|CUDA error: initialization error|CUDA call failed lazily at initialization|driver mismatch",
    r"not supported in the installed CUDA driver|no ROCm-capable device|NVMLError|NVML_SUCCESS ==",
    r"uncorrectable (?:ECC|NVLink) error|ECC error",
    r"fallen off the bus|GPU is lost|Unable to determine the device handle",
    r"Could not find nvcc|CUDA_HOME environment variable is not set|Failed to find C compiler|Ninja build failed",
    r"Command '\['\S*(?:gcc|g\+\+|cc|clang|nvcc|ninja|ldconfig)'",
    r"No such file or directory: '\S*(?:gcc|nvcc|ninja|ldconfig|ptxas)'",
    r"Ninja is required|Cannot find a working triton|Python\.h: No such file",
    r"cannot open shared object file|libcuda\.so cannot found",
    r"undefined symbol|version `\w+_[\d.]+' not found|\bexec format error",
    r"FlashInfer requires GPUs with|UVA is not available",
    r"^TypeError: (?:jit|flash_attn\w*|\w*Wrapper\.\w+)\(\) got an unexpected",
    r"^AttributeError: type object '\w+' has no attribute|Either a revision or a version must be specified",
    r"^TypeError: (?:type '[\w.]+'|'type' object) is not subscriptable",
    r"Cannot find CUDA_HOME|Please provide architecture for which code is to be generated",  # HIP's, without a device
    r"not supported on this OS|CUDA (?:\w+ )?error: operation not supported",
)

_INTERCONNECT = (
    r"NCCL error|nccl\w*Error|NCCL WARN|ProcessGroupNCCL|Failed to load (?:the )?NCCL",
    r"Watchdog caught collective operation timeout|milliseconds before timing out",
    r"NCCL communicator|nccl\w+ failed|Dist(?:Backend|Network|Store)Error",
    r"connectFullMesh failed|Gloo.*(?:timed? ?out|failed|(?:closed|reset) by peer|Unable to find address)",
    r"peer access is not supported|peer mapping resources|ibv_\w+ failed|NVSHMEM.*(?:error|failed)",
    r"Could not find any running Ray instance|Current node has no \w+ available|Ray workers have not started",
    r"Cannot provide a placement group|Not enough resources to allocate|should have a unique IP address",
    r"exceeds the total number of available GPUs in the placement group|can fulfill resource request|NodeDiedError",
    r"Rendezvous\w*Error|Failed to connect to GCS",
    r"Timed out (?:after \d+ seconds )?waiting for (?:clients|other ranks)|Barrier (?:departure )?timed out",
    r"store[ _]based[ _]barrier",
)
"""The processes of a server do not reach each other."""

_PACKAGES = (
    r"torch|triton|transformers|tokenizers|safetensors|numpy|xformers|flash_attn|timm|einops|tiktoken|sentencepiece|"
    r"mistral_common|mamba_ssm|causal_conv1d|open_clip|librosa|soundfile|cv2|PIL|decord|google\.protobuf|"
    r"pynvml|xgrammar|setuptools|accelerate|compressed_tensors|sgl_kernel|pybase64|orjson|uvloop|uvicorn|fastapi|"
    r"pydantic|openai|zmq|msgspec|psutil|ray|huggingface_hub|outlines|requests|aiohttp|scipy|numba|cloudpickle|_\w+"
)
"""Packages that an engine or a model needs, whatever the flags are."""

_ATTENTION = (
    r"/attention/|/(?:vllm_)?flash_attn(?:_interface)?\b|/flash_mla\b|"
    r"/flashinfer/(?:attention|cascade|decode|mla|page|pod|prefill|sparse|xqa)\b"
)
"""Source files of attention backends. What they assert of head size, block size or cache depends on the flags."""

CAUSES: tuple[FailurePattern, ...] = (
    *rows(FailureKind.ENGINE_CRASH, r"illegal memory access|device-side assert|misaligned address"),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"NCCL[\s\S]*(?:/dev/shm|shared memory).*No space left|NCCL[\s\S]*No space left.*/dev/shm",
        message="NCCL has no room in /dev/shm; enlarge it (in a container `--ipc=host` or `--shm-size`)",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"/dev/shm.*No space left|No space left on device: '/?(?:dev/shm/|psm_|torch_|mp-)|shared memory ?\(shm\)",
        r"</?torch_\w+>[\w -]*: No space left|insufficient shared memory|Insufficient space in /dev/shm",
        r"shared memory limit|Fatal Python error: Bus error",
        message="no room in /dev/shm; enlarge it (in a container `--ipc=host` or `--shm-size`)",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"ibv_\w+ failed.*Cannot allocate memory",
        message="RDMA may not lock enough memory; raise the limit (`ulimit -l`, in a container `--ulimit memlock=-1`)",
    ),
    *rows(
        FailureKind.PORT_TAKEN,
        r"address already in use|EADDRINUSE",
        r"Errno 98\b",
        message="another program took the port",
    ),
    *rows(
        FailureKind.DISK_FULL,
        r"No space left on device|Not enough free disk space",
        r"Disk quota exceeded",
        r"Errno (?:28|122)\b|os error 28\b",
        message="no space left on disk",
    ),
    *rows(FailureKind.SERVER_KILLED, r"node running low on memory|by OOM killer"),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        *_DEVICE,
        *_INTERCONNECT,
        r"Cannot assign requested address",
        *_HUB,
        *_MODEL,
    ),
    *rows(FailureKind.ENVIRONMENT_BROKEN, *_NETWORK, phases=STARTING),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"Too many open files",
        r"Errno 24\b",
        message="too many open files; raise the limit (`ulimit -n`)",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"can't start new thread",
        r"Errno 11\b",
        message="no more processes or threads are allowed; raise the limit (`ulimit -u`, or the container's)",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:\S+ )*error: (?:unrecognized arguments|argument |ambiguous option|the following)",
        r"is required for suffix decoding",
        r"(?:ImportError|ModuleNotFoundError): .*(?:arctic|bitsandbytes|torchao|flashinfer|deep_gemm|lmcache)",
        r"(?:ImportError|ModuleNotFoundError): .*(?:nixl|mooncake|tensorizer|runai|fastsafetensors|instanttensor)",
        r"(?:ImportError|ModuleNotFoundError): .*(?:deep_?ep|deepgemm)",
        r"Failed to find a kernel that can implement|too old to be supported by the triton",
        r"Unknown quantization method|^AttributeError: Model \S+ does not support \S+ quantization",
        r"quantization method .* (?:is not supported|does not match)",
        r"is not supported for quantization method",
        r"Cannot find the config file for",
        r"Unknown attention backend",
        r"Selected backend .* is not valid for this configuration",
        r"No valid attention backend found",
        r"No common block size for",
        r"Bfloat16 is only supported on GPUs with compute capability",
        r"KV cache is not supported (?:by|on)",
        r"fp8e4nv not supported in this architecture",
        r"out of resource: |Quantization scheme is not supported",
        r"CPU Offloading is currently only supported on",
        r"No compiled \w+ for|FlashAttention only supports Ampere",
        r"is larger than the number of available GPUs|is greater than max_lora_rank",
        r"requires you to execute the configuration file",
        r"build does not support headdim|Expect \(\d+ <= headDim|Device does not support multicasting",
        r"^TypeError: \w*(?:Engine|Server)Args\.__init__\(\) got an unexpected keyword",
        r"local rank \d+ is out of bounds|must (?:be )?divisible by",
        r"is not divisible by|greater than the derived max_model_len|not aligned with the quantized weight shape",
        r"chat template string appears path-like|invalid (?:tool call|reasoning) parser",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"^ImportError: (?:cannot import name|DLL load failed|numpy)|found in your environment|DistributionNotFound",
        r"^(?:Import|Value)Error: .*please (?:(?:re)?install|upgrade)|Descriptors cannot be created directly",
        r"^\S*python[\d.]*: (?:No module named|Error while finding module specification)",
        r"Numpy is not available|may indicate binary incompatibility",
        rf"^ModuleNotFoundError: No module named '(?:{_PACKAGES})|module '(?:{_PACKAGES})[\w.]*' has no attribute",
        r"^AttributeError: '?\w*(?:Tokenizer|Processor)\w*'? (?:object )?has no attribute",
        r"^AttributeError: '(?!(?:Model|Cache|Parallel|Scheduler)C)\w+Config' object has no attribute "
        r"'(?:(?:vocab|hidden|\w+_hidden|intermediate)_size|num_\w+|\w+_layers|rope_\w+|(?:text|vision|audio)_config)'",
        r"^json\.decoder\.JSONDecodeError\b|^EOFError: Ran out of input",
        phases=STARTING,
    ),
    *rows(FailureKind.INVALID_CONFIGURATION, r"ValidationError: \d+ validation error", general=True),
    *rows(FailureKind.INVALID_CONFIGURATION, r"^AssertionError\b", phases=STARTING, general=True, file=_ATTENTION),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^NotImplementedError: ",
        r"^ValueError: .*(?:(?:not|only) support|not compatible|incompatible|must be|cannot be|should have)",
        r"^ValueError: .*(?:larg|great|small)er than",
        phases=STARTING,
        general=True,
    ),
)
