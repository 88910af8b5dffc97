"""The table from texts of a log to kinds of failure, which engines of Python share.

The texts are those of the libraries that these engines have in common, and of what the engines took over from one
another; an engine's own rows come before. A row that names phases applies only in those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from records.trials import FailureKind, Phase
from tuner.errors import FREE_SPACE

STARTING = frozenset({Phase.CHECK, Phase.LAUNCH, Phase.READY})
LOADED = frozenset({Phase.WARMUP, Phase.BENCHMARK, Phase.COLLECT, Phase.STOP})


@dataclass(frozen=True)
class FailurePattern:
    """One row. `message` is shown to the user; None shows the causal line itself. `step` follows: what to do about it.

    A general row names a form of error that can have any cause. It applies where no other row applies to any exception
    of the chain. A row with a `file` applies only to an exception that was raised in such a source file.
    """

    kind: FailureKind
    pattern: re.Pattern[str]
    message: str | None = None
    phases: frozenset[Phase] | None = None
    general: bool = False
    file: re.Pattern[str] | None = None
    step: str | None = None

    def shown(self, line: str) -> str:
        """Return the message of a failure whose causal line was shortened to `line`."""
        text = self.message or line
        return text if self.step is None else f"{text.removesuffix('.')}; {self.step}"

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
    step: str | None = None,
) -> tuple[FailurePattern, ...]:
    """Return one row for each pattern; patterns ignore case."""
    compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    place = None if file is None else re.compile(file)
    return tuple(FailurePattern(kind, pattern, message, phases, general, place, step) for pattern in compiled)


_OUT_OF_MEMORY = (
    r"OutOfMemoryError|\bout of memory\b|\bbad_alloc\b",
    r"cudaErrorMemoryAllocation",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"DefaultCPUAllocator: can't allocate memory",
    r"Cannot allocate memory",
    r"Not enough memory (?:for|to)",
    r"^(?:[\w.]*Array)?MemoryError\b",
    r"RESOURCE_EXHAUSTED\b.*(?:alloc|reserve|memory)|ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY",  # TPUs, Intel's GPUs
)

MODEL_FILES = "the model's files are missing or cut off: download them with `hf download`, or give a folder with them"
MODEL_VERSION = "install versions of the engine and of Transformers that know this model, or give another form of it"
RIGHTS = "give this user the right to read the model's files and to write the cache (HF_HOME)"
DRIVER = "install a newer NVIDIA driver, or a build of the engine for this one"
CARD = "install a build of the engine, or a newer one, that knows this card"
COMPILER = "install a compiler, Python's headers and the CUDA toolkit, with which the engine builds its kernels"
GPUS = "check that `nvidia-smi` shows the GPUs, that CUDA_VISIBLE_DEVICES has them, and that a container may use them"
REINSTALL = "install the engine anew, in an environment of its own; `tuner doctor` names what does not fit"
MISSING_PACKAGE = "install the package into the engine's environment; see `tuner doctor`"
MAIN_GUARD = "the program that starts the engine lacks `if __name__ == '__main__':`; name the one that pip installed"
PROXY = "a proxy may answer the server's own first request: set NO_PROXY=127.0.0.1,localhost"
_DOWNLOAD = "download the model with `hf download` where the hub is reached, or check HF_HUB_OFFLINE and the proxy"

broken = partial(rows, FailureKind.ENVIRONMENT_BROKEN)
"""Returns rows for what no flag can mend."""

_HUB = (
    *broken(
        r"Gated ?Repo|gated repo|is restricted and you are not in the authorized list|awaiting a review",
        r"Invalid (?:username or password|credentials|user token)|(?:401|403) Client Error|Client error '(?:401|403)",
        step="ask for access on the model's page of the hub, and set HF_TOKEN",
    ),
    *broken(
        r"Invalid repository ID or local directory|HFValidationError|HfUriError|is not a valid git identifier",
        r"is not a local folder (?:and is not a valid model identifier|or a valid repository name)",
        r"Repo(?:sitory)?NotFound|RevisionNotFound|404 Client Error|Client error '404",
        step="check the model's name, or set HF_TOKEN for a private model",
    ),
    *broken(
        r"(?:429|50\d) (?:Client|Server) Error|Client error '429|Server error '50|Too Many Requests|rate limit",
        step="wait until the hub answers again, or set HF_TOKEN: it allows more requests",
    ),
    *broken(
        r"couldn't connect to|specific connection error|error happened while trying to locate the file",
        r"outgoing traffic has been disabled|OfflineMode|offline mode is enabled",
        r"cannot find (?:the requested files|an appropriate cached snapshot)|LocalEntryNotFound|in the cached files",
        step=_DOWNLOAD,
    ),
    *broken(
        r"PermissionError at .* when downloading|\.cache.*Permission denied|Permission denied.*\.cache",
        step=RIGHTS,
    ),
    *broken(
        r"Consistency check failed|does not appear to have (?:a )?files? named|IncompleteSnapshot",
        step=MODEL_FILES,
    ),
    *broken(
        r"EntryNotFoundError|HfHubHTTPError|DisabledRepo|XetDownloadError|CAS (?:service|client) error|hf_xet",
        r"^(?:huggingface_hub|modelscope|botocore|s3fs|gcsfs|azure|google\.(?:auth|api_core|cloud))\.[\w.]+(?::|$)",
        r"runai\w* request|libstreamer|error downloading or loading vocab file",
    ),
)
"""The hub does not have the model, does not give it, or is not reached."""

_NETWORK = (
    *broken(
        r"Max retries exceeded|NameResolutionError|getaddrinfo failed|nodename nor servname",
        r"Name or service not known|Temporary failure in name resolution|No address associated with hostname",
        r"ProxyError|Tunnel connection failed|Cannot connect to proxy|CERTIFICATE_VERIFY_FAILED|SSLError|SSL: ",
        r"Network is unreachable|No route to host|Connection (?:refused|timed out)",
        phases=STARTING,
        step=_DOWNLOAD,
    ),
    *broken(
        r"^(?:requests|httpx|httpcore|urllib3|aiohttp|http\.client)\.[\w.]+(?::|$)",
        r"ConnectTimeout|ReadTimeout|NewConnectionError",
        phases=STARTING,
    ),
)

_WEIGHT = r"^KeyError: '(?!\S*\b(?:qkv_proj|gate_up_proj)\.)\w+(?:\.\w+)+'"
"""A weight that the model's code lacks. The names that are left out are vLLM's own, which a flag such as that of
bitsandbytes makes."""
_MODELS = r"/models/(?!\w*(?:eagle|mtp|medusa|dflash|dspark))\w+\.py$|/weight_utils\.py$"
"""Source files that load a model's weights; those of draft models depend on the flags."""

_MODEL = (
    *broken(
        r"Cannot find any (?:safetensors )?model weights|Error no file named .*(?:safetensors|bin)",
        r"SafetensorError|SafetensorsParsingError|Error while deserializing header|incomplete metadata, file not fully",
        r"PytorchStreamReader failed|UnpicklingError|invalid load key|not a ZIP archive",
        r"No such file or directory: \S*(?:safetensors|\.bin|\.json|\.model|\.gguf|\.pt)",
        r"(?:safetensors|\.model)\b.*No such file or directory|Could not find checkpoint files",
        r"weights (?:are|were) not initialized from checkpoint|Missing keys .* in loaded",
        r"Weight files referenced in index but missing|Unable to load weights from",
        step=MODEL_FILES,
    ),
    *broken(
        r"in loading state_dict|Trying to set a tensor of shape|size mismatch for |Attempted to load weight",
        r"There is no module or parameter named|Tokenizer class \S+ does not exist|Cannot find model module",
        r"Unrecognized model in|does not recognize this architecture|Unrecognized configuration class",
        r"Model architectures? .* (?:not supported (?:for now|anymore|in-tree)|failed to be inspected|was supported)",
        r"No model architectures are specified|`?rope_scaling`? must be a dictionary with|Unknown RoPE scaling",
        r"GGUF (?:model with architecture|magic)|Unknown gguf",
        step=MODEL_VERSION,
    ),
    *broken(_WEIGHT, phases=STARTING, file=_MODELS, step=MODEL_VERSION),
    *broken(
        r"can't load the (?:configuration|model|image processor|feature extractor)|Can't load (?:tokenizer|processor)",
        r"Couldn't instantiate the backend tokenizer|Unable to load vocabulary|No tokenizer file found",
        r"Could not find tiktoken|(?:tokenizer|vocab|merges|tiktoken)\S* (?:is missing|not found|does not exist)",
        r"no config file found|No supported config format found",
        step="check that the model's folder or name has a config.json and a tokenizer",
    ),
    *broken(
        r"Permission denied|Read-only file system|(?:Errno|os error) (?:13|30)\b",
        step=RIGHTS,
    ),
    *broken(
        r"(?:config|tokenizer|index|params)\S*\.json\S* is not a valid JSON|It looks like the config file at",
        r"Unable to parse config\.json|Failed to load mistral '|No adapter found for|could not parse ModelProto",
        r"sentencepiece_processor|^google\.protobuf\.message\.DecodeError",
        r"^Exception: (?:data did not match any variant|\S.* at line \d+ column)",
        r"Stale file handle|\bI/O error|Input/output error|(?<!CUDA error: )Operation not permitted|Errno 1\b",
        r"Transport endpoint is not connected|(?:Errno|os error) (?:5|16|17|20|21|70|107|116|121)\b",
        r"getpwuid\(\): uid not found|is longer than \d+ characters \(sizeof|AF_UNIX path too long",
    ),
)
"""The model's files are missing, cut off or broken, or are of an architecture that the installed versions lack."""

_DEVICE = (
    *broken(
        r"NVIDIA driver on your system is too old|driver version is insufficient|InsufficientDriver",
        step=DRIVER,
    ),
    *broken(
        r"Driver/library version mismatch|NVML.*(?:Not Found|Uninitialized|Unknown Error)|Failed to initialize NVML",
        r"No (?:CUDA|HIP|XPU) (?:GPU|device)s are available|Found no NVIDIA driver|Failed to infer device type",
        r"Torch not compiled with CUDA|no CUDA-capable device|NVMLError|NVML_SUCCESS ==",
        r"(?:CUDA|HIP) (?:driver )?error: invalid device ord",
        r"CUDA unknown error|CUDA error: initialization error|CUDA driver initialization failed",
        step=GPUS,
    ),
    *broken(
        r"no kernel image is available|device kernel image is invalid|PTXAS error|NoBinaryForGpu",
        r"HIP error: invalid device function|Unsupported gpu architecture '|invalid value for --gpu-architecture",
        r"is not defined for option 'gpu-name'",
        step=CARD,
    ),
    *broken(
        r"Could not find nvcc|CUDA_HOME environment variable is not set|Cannot find CUDA_HOME",
        r"Failed to find C compiler|Ninja build failed|Ninja is required|Python\.h: No such file",
        r"Command '\['\S*(?:gcc|g\+\+|cc|clang|nvcc|ninja|ldconfig)'",
        r"No such file or directory: '\S*(?:gcc|nvcc|ninja|ldconfig|ptxas)'",
        step=COMPILER,
    ),
    *broken(
        r"cannot open shared object file|undefined symbol|version `\w+_[\d.]+' not found",
        r"\(\d[\w.]+\) does not match|^TypeError: (?:jit|flash_attn\w*|\w*Wrapper\.\w+)\(\) got an unexpected",
        r"^AttributeError: type object '\w+' has no attribute|Either a revision or a version must be specified",
        r"^TypeError: (?:type '[\w.]+'|'type' object) is not subscriptable",
        step=REINSTALL,
    ),
    *broken(
        r"unsupported display driver|forward compatibility was attempted|Unexpected error from cudaGetDeviceCount",
        r"Cannot re-initialize CUDA in forked subprocess|compiled with an unsupported toolchain",
        r"were compiled with different CUDA|CUDNN_STATUS_(?:NOT_INITIALIZED|\w*VERSION_MISMATCH)",
        r"is already used by a Transformers config|Failed to import \S+ because|partially initialized module",
        r"Cannot get CUDA generator without ATen_cuda|detected CUDA version .* mismatches",
        r"'_OpNamespace' '\w+' object has no attribute|operator \w+::\w+ does not exist",
        r"CUDA (?:driver )?error: (?:unknown error|system not yet initialized|.*device.* busy)",
        r"CUDA call failed lazily at initialization|driver mismatch",
        r"not supported in the installed CUDA driver|no ROCm-capable device",
        r"uncorrectable (?:ECC|NVLink) error|ECC error",
        r"fallen off the bus|GPU is lost|ERROR_DEVICE_LOST|Unable to determine the device handle",
        r"Cannot find a working triton|libcuda\.so cannot found|\bexec format error",
        r"FlashInfer requires GPUs with|UVA is not available",
        r"Please provide architecture for which code is to be generated",  # HIP's, without a device
        r"not supported on this OS|CUDA (?:\w+ )?error: operation not supported",
    ),
)

_INTERCONNECT = (
    *broken(
        r"NCCL error|nccl\w*Error|NCCL WARN|ProcessGroupNCCL|Failed to load (?:the )?NCCL",
        r"NCCL communicator|nccl\w+ failed|oneCCL: |Dist(?:Backend|Network|Store)Error|Rendezvous\w*Error",
        r"connectFullMesh failed|Gloo.*(?:timed? ?out|failed|(?:closed|reset) by peer|Unable to find address)",
        step="the server's processes do not reach each other: start one by hand with NCCL_DEBUG=INFO, which says why",
    ),
    *broken(
        r"Watchdog caught collective operation timeout|milliseconds before timing out",
        r"peer access is not supported|peer mapping resources|ibv_\w+ failed|NVSHMEM.*(?:error|failed)",
        r"Could not find any running Ray instance|Current node has no \w+ available|Ray workers have not started",
        r"Cannot provide a placement group|Not enough resources to allocate|should have a unique IP address",
        r"exceeds the total number of available GPUs in the placement group|can fulfill resource request|NodeDiedError",
        r"Failed to connect to GCS",
        r"Timed out (?:after \d+ seconds )?waiting for (?:clients|other ranks)|Barrier (?:departure )?timed out",
        r"store[ _]based[ _]barrier|Cannot assign requested address",
    ),
)
"""The processes of a server do not reach each other."""

_ATTENTION = (
    r"/attention/|/(?:vllm_)?flash_attn(?:_interface)?\b|/flash_mla\b|"
    r"/flashinfer/(?:attention|cascade|decode|mla|page|pod|prefill|sparse|xqa)\b"
)
"""Source files of attention backends. What they assert of head size, block size or cache depends on the flags."""

CAUSES: tuple[FailurePattern, ...] = (
    *rows(FailureKind.ENGINE_CRASH, r"illegal memory access|memory access fault|device-side assert|misaligned address"),
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
        step=FREE_SPACE,
    ),
    *rows(
        FailureKind.SERVER_KILLED,
        r"node running low on memory|by OOM killer",
        r"(?:STEP|JOB) \S+ ON \S+ CANCELLED|: task \S+: Killed|oom_kill event",  # Slurm
    ),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *_DEVICE,
    *_INTERCONNECT,
    *_HUB,
    *_MODEL,
    *_NETWORK,
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
        r"(?:ImportError|ModuleNotFoundError): .*(?:arctic|bitsandbytes|torchao|flashinfer|deep_gemm|lmcache)",
        r"(?:ImportError|ModuleNotFoundError): .*(?:nixl|mooncake|tensorizer|runai|fastsafetensors|instanttensor)",
        r"(?:ImportError|ModuleNotFoundError): .*(?:deep_?ep|deepgemm|humming|quark|moonep|mori|pplx)",
        step="install the package into the engine's environment, or leave out the flag that needs it",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:\S+ )*error: (?:unrecognized arguments|argument |ambiguous option|the following)",
        r"is required for suffix decoding",
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
        r"NUMA binding was requested|chat template string appears path-like|invalid (?:tool call|reasoning) parser",
    ),
    *broken(r"An attempt has been made to start a new process before", phases=STARTING, step=MAIN_GUARD),
    *broken(
        r"^ImportError: (?:cannot import name|DLL load failed|numpy)",
        r"^(?:Import|Value)Error: .*please (?:(?:re)?install|upgrade)|Descriptors cannot be created directly",
        r"Numpy is not available|may indicate binary incompatibility",
        phases=STARTING,
        step=REINSTALL,
    ),
    *broken(
        r"found in your environment|DistributionNotFound",
        r"^\S*python[\d.]*: (?:No module named|Error while finding module specification)",
        phases=STARTING,
        step=MISSING_PACKAGE,
    ),
    *broken(
        r"^AttributeError: '?\w*(?:Tokenizer|Processor)\w*'? (?:object )?has no attribute",
        r"^AttributeError: '(?!(?:Model|Cache|Parallel|Scheduler)C)\w+Config' object has no attribute "
        r"'(?:(?:vocab|hidden|\w+_hidden|intermediate)_size|num_\w+|\w+_layers|rope_\w+|(?:text|vision|audio)_config)'",
        phases=STARTING,
        step=MODEL_VERSION,
    ),
    *broken(r"^json\.decoder\.JSONDecodeError\b.*Expecting value", phases=STARTING, step=PROXY),
    *broken(r"^json\.decoder\.JSONDecodeError\b|^EOFError: Ran out of input", phases=STARTING),
    *broken(r"^ModuleNotFoundError: ", phases=STARTING, step=MISSING_PACKAGE, general=True),
    *broken(r"^AttributeError: module '", phases=STARTING, step=REINSTALL, general=True),
    *rows(FailureKind.INVALID_CONFIGURATION, r"ValidationError: \d+ validation error", general=True),
    *rows(FailureKind.INVALID_CONFIGURATION, r"^AssertionError\b", phases=STARTING, general=True, file=_ATTENTION),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:NotImplemented|Value)Error\b",
        r"^RuntimeError: .*(?:not (?:\w+ )?(?:support|available)|unsupported|only support|supported only|unavailable)",
        phases=STARTING,
        general=True,
    ),
)
