"""A table from texts of vLLM's logs to failure kinds. For each causal line of a log, the first matching row applies.

The texts are those of vLLM 0.15 to 0.32. A row that names phases applies only in those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage.records import FailureKind, Phase

STARTING = frozenset({Phase.CHECK, Phase.LAUNCH, Phase.READY})
LOADED = frozenset({Phase.WARMUP, Phase.BENCHMARK, Phase.COLLECT, Phase.STOP})


@dataclass(frozen=True)
class FailurePattern:
    """One row. `message` is shown to the user; None shows the causal line itself."""

    kind: FailureKind
    pattern: re.Pattern[str]
    message: str | None = None
    phases: frozenset[Phase] | None = None

    def matches(self, line: str, phase: Phase) -> bool:
        """Return whether the row applies to `line` in `phase`."""
        return (self.phases is None or phase in self.phases) and self.pattern.search(line) is not None


def rows(
    kind: FailureKind, *patterns: str, message: str | None = None, phases: frozenset[Phase] | None = None
) -> tuple[FailurePattern, ...]:
    """Return one row for each pattern; patterns ignore case."""
    return tuple(FailurePattern(kind, re.compile(pattern, re.IGNORECASE), message, phases) for pattern in patterns)


_OUT_OF_MEMORY = (
    r"OutOfMemoryError",
    r"CUDA out of memory",
    r"CUDA error: out of memory",
    r"cudaErrorMemoryAllocation",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"DefaultCPUAllocator: can't allocate memory",
    r"Cannot allocate memory",
    r"is less than desired CPU memory",
    r"less than requested memory for kv",
    r"Not enough memory (?:for|to)",
)

CAUSES: tuple[FailurePattern, ...] = (
    *rows(
        FailureKind.GPU_BUSY,
        r"Free memory on device .* is less than desired",
        r"Error in memory profiling\. Initial free memory",
    ),
    *rows(
        FailureKind.PORT_TAKEN,
        r"address already in use",
        r"Errno 98\b",
        message="another program took the port",
    ),
    *rows(
        FailureKind.DISK_FULL,
        r"No space left on device",
        r"Disk quota exceeded",
        r"Errno (?:28|122)\b",
        message="no space left on disk",
    ),
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"To serve at least one request with the models?'s max seq len",
        r"No available memory for the cache blocks",
    ),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, r"Insufficient space in \S+ for CPU KV offload", phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_STARTUP, *_OUT_OF_MEMORY, phases=STARTING),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient",
        r"no kernel image is available",
        r"Found no NVIDIA driver",
        r"Failed to infer device type",
        r"CUDA error: (?:unknown error|no CUDA-capable device|system not yet initialized|device.* busy)",
        r"uncorrectable ECC error",
        r"fallen off the bus",
        r"No package metadata was found for vllm",
        r"No module named 'vllm",
        r"cannot open shared object file",
        r"undefined symbol",
        r"is not a local folder and is not a valid model identifier",
        r"Repo(?:sitory)?NotFound|GatedRepo",
        r"We couldn't connect to",
        r"outgoing traffic has been disabled",
        r"LocalEntryNotFound|OfflineMode",
        r"Cannot find any model weights",
        r"can't load the configuration of|Can't load tokenizer",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"Too many open files",
        r"Errno 24\b",
        message="too many open files; raise the limit (`ulimit -n`)",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:\S+ )*error: (?:unrecognized arguments|argument |ambiguous option|the following)",
        r"ValidationError: \d+ validation error",
        r"is required for suffix decoding",
        r"(?:ImportError|ModuleNotFoundError): .*(?:arctic|bitsandbytes|torchao|flashinfer|deep_gemm|lmcache)",
        r"Unknown quantization method",
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
        r"out of resource: shared memory",
        r"CPU Offloading is currently only supported on",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^NotImplementedError: ",
        r"^ValueError: .*(?:not supported|not compatible|incompatible|must be|cannot be)",
        phases=STARTING,
    ),
)

CONSEQUENCES = re.compile(
    r"Engine core initialization failed|EngineDeadError|WorkerProc initialization failed|died unexpectedly|"
    r"EngineCore encountered an issue|Executor failed|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|"
    r"EngineGenerateError|ConnectionResetError|cancelled|Failed core proc|leaked (?:semaphore|shared_memory)"
)
"""Lines that are consequences of a failure and never its cause."""

DIED = re.compile(r"died unexpectedly|EngineDeadError|Engine core initialization failed")
"""Lines that state the end of a child process without its cause."""


@dataclass(frozen=True)
class LogTexts:
    """How an engine of Python logs a failure.

    Attributes:
        causes: the table; the first row that matches a causal line applies.
        consequences: lines that are never the cause.
        died: lines that state the end of a child process without its cause.
        prefix: what stands before the text of a line.
        anchor: the line after which the cause stands; lines before it are errors that were handled.
    """

    causes: tuple[FailurePattern, ...]
    consequences: re.Pattern[str]
    died: re.Pattern[str]
    prefix: re.Pattern[str]
    anchor: re.Pattern[str]


VLLM_TEXTS = LogTexts(
    CAUSES,
    CONSEQUENCES,
    DIED,
    re.compile(
        r"^(?:\([^()]*pid=\d+\)\s)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
    ),
    re.compile(r"failed to start|encountered a fatal error|hit an exception"),
)
