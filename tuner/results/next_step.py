"""What to do about a machine or a model that no configuration mends, by the words of the failure."""

from __future__ import annotations

import re

from records.trials import Failure, FailureKind

_STEPS = (
    (
        r"gated|401 Client|403 Client|'40[13]|authorized list|awaiting a review|"
        r"Invalid (?:username|credentials|user token)",
        "ask for access on the model's page of the hub, and set HF_TOKEN",
    ),
    (
        r"RepositoryNotFound|RepoNotFound|RevisionNotFound|not a valid model identifier|404 Client|'404|"
        r"Invalid repository ID|HFValidationError",
        "check the model's name, or set HF_TOKEN for a private model",
    ),
    (
        r"\b429 |Too Many Requests|rate limit|50\d Server Error",
        "wait until the hub answers again, or set HF_TOKEN: it allows more requests",
    ),
    (
        r"couldn't connect to|offline|OfflineMode|LocalEntryNotFound|appropriate cached snapshot|outgoing traffic|"
        r"Max retries exceeded|name resolution|Name or service not known|Network is unreachable|"
        r"Connection (?:refused|timed)",
        "download the model with `hf download` where the hub is reached, or check HF_HUB_OFFLINE and the proxy",
    ),
    (
        r"model weights|no file named|does not appear to have|referenced in index|not initialized from checkpoint|"
        r"Safetensor|deserializing header|incomplete metadata|PytorchStreamReader|Consistency check|"
        r"No such file or directory: \S*(?:safetensors|\.bin|\.json|\.model|\.gguf)|failed to open GGUF",
        "the model's files are missing or cut off: download them with `hf download`, or give a folder that has them",
    ),
    (
        r"Permission denied|Read-only file system",
        "give this user the right to read the model's files and to write the cache (HF_HOME)",
    ),
    (
        r"driver on your system is too old|driver version is insufficient|InsufficientDriver|too old \(found version",
        "install a newer NVIDIA driver, or a build of the engine for this one",
    ),
    (
        r"C compiler|nvcc|CUDA_HOME|\bninja|Python\.h|/(?:gcc|cc|g\+\+|clang)'",
        "install a compiler, Python's headers and the CUDA toolkit, with which the engine builds its kernels",
    ),
    (
        r"no kernel image|kernel image is invalid|PTXAS|gpu architecture|NoBinaryForGpu|invalid device function",
        "install a build of the engine, or a newer one, that knows this card",
    ),
    (
        r"not supported for now|does not recognize|Unrecognized (?:model|configuration)|no module or parameter named|"
        r"Attempted to load weight|size mismatch|Cannot find model module|does not exist or is not currently imported|"
        r"(?:Tokenizer\w*|Config)'? (?:object )?has no attribute",
        "install versions of the engine and of Transformers that know this model, or give another form of it",
    ),
    (
        r"can't load|Can't load|no config file found|No tokenizer file",
        "check that the model's folder or name has a config.json and a tokenizer",
    ),
    (
        r"undefined symbol|shared object file|common_ops library|version `|binary incompatibility|"
        r"not installed with the minimum|please (?:re)?install|cannot import name|does not match flashinfer|"
        r"got an unexpected keyword|type object '|Either a revision|is not subscriptable",
        "install the engine anew, in an environment of its own; `tuner doctor` names what does not fit",
    ),
    (
        r"No (?:CUDA|HIP|XPU) (?:GPU|device)s|infer device type|not compiled with CUDA|no CUDA-capable|NVML|"
        r"invalid device ord|Found no NVIDIA driver|CUDA unknown error|initialization error",
        "check that `nvidia-smi` shows the GPUs, that CUDA_VISIBLE_DEVICES has them, and that a container may use them",
    ),
    (
        r"NCCL|Gloo|DistNetworkError|Rendezvous",
        "the processes of a server do not reach each other: start one by hand with NCCL_DEBUG=INFO, which says why",
    ),
    (
        r"res=<Response|JSONDecodeError: Expecting value",
        "a proxy may answer the server's own first request: set NO_PROXY=127.0.0.1,localhost",
    ),
    (r"No module named|No package metadata", "install the package into the engine's environment; see `tuner doctor`"),
)


def next_step(failure: Failure) -> str | None:
    """Return what the user has to mend before the study continues; None where the message alone has to say it."""
    if failure.kind is FailureKind.DISK_FULL:
        return "free some space, or name folders on another disk by HF_HOME, VLLM_CACHE_ROOT and TUNER_HOME"
    if failure.kind is not FailureKind.ENVIRONMENT_BROKEN:
        return None
    for text in (failure.message, failure.evidence or ""):
        for pattern, step in _STEPS:
            if re.search(pattern, text, re.IGNORECASE):
                return step
    return None
