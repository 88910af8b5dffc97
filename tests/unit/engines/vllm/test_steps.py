"""What to do about a failure that no configuration avoids, for texts of the hub, vLLM and SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.trials import FailureKind, Phase
from tuner.engines.server.failures import read_log
from tuner.engines.vllm.texts import classify

LOGS = Path(__file__).parents[3] / "data" / "logs"
GATED = (
    "OSError: You are trying to access a gated repo.\n"
    "Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n"
    "401 Client Error. (Request ID: Root=1-6)\n"
)
UNKNOWN = (
    "OSError: Qwen/Qwen9 is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token\n"
)
SHARD = "ValueError: Following weights were not initialized from checkpoint: {'model.layers.1.mlp.down_proj.weight'}\n"
CUT = (
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered\n"
)
OFFLINE = (
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached\n"
)
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/models/m/model-00002-of-00004.safetensors'\n"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (GATED, "ask for access on the model's page of the hub, and set HF_TOKEN"),
        (UNKNOWN, "check the model's name, or set HF_TOKEN for a private model"),
        (SHARD, "the model's files are missing or cut off: "),
        (CUT, "the model's files are missing or cut off: "),
        (MISSING, "the model's files are missing or cut off: "),
        (OFFLINE, "download the model with `hf download` where the hub is reached"),
    ],
)
def test_a_model_that_cannot_be_read_has_a_next_step(text: str, step: str) -> None:
    failure = classify(f"EngineCore failed to start.\nTraceback (most recent call last):\n{text}", 1, Phase.READY)
    assert failure.kind is FailureKind.ENVIRONMENT_BROKEN
    assert f"; {step}" in failure.message


@pytest.mark.parametrize(
    ("log", "step"),
    [
        ("no_weights", "the model's files are missing or cut off: "),
        ("disk_full", "free some space, or name folders on another disk"),
        ("gpu_driver_too_old", "install a newer NVIDIA driver"),
    ],
)
def test_a_recorded_failure_has_a_next_step(log: str, step: str) -> None:
    failure = classify(read_log(LOGS / f"{log}.log"), 1, Phase.READY)
    assert f"; {step}" in failure.message


@pytest.mark.parametrize(
    ("error", "step"),
    [
        ("RuntimeError: Ninja build failed. Ninja output:", "install a compiler"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution", "install a build of the"),
        ("ValueError: Model architectures ['X'] are not supported for now.", "install versions of the engine and of"),
        ("ImportError: vllm/_C.abi3.so: undefined symbol: _ZN3c10", "install the engine anew"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "install the engine anew"),
        ("RuntimeError: No CUDA GPUs are available", "check that `nvidia-smi` shows the GPUs"),
        ("RuntimeError: NCCL error: unhandled cuda error", "the server's processes do not reach each other"),
        ("ModuleNotFoundError: No module named 'triton'", "install the package into the engine's environment"),
    ],
)
def test_an_installation_that_is_broken_has_a_next_step(error: str, step: str) -> None:
    failure = classify(f"EngineCore failed to start.\nTraceback (most recent call last):\n{error}\n", 1, Phase.READY)
    assert failure.kind is FailureKind.ENVIRONMENT_BROKEN
    assert f"; {step}" in failure.message
