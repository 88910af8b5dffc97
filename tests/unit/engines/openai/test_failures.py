"""The failure table of a server of unknown make."""

from __future__ import annotations

import signal

import pytest

from records.trials import FailureKind, Phase
from tuner.engines.openai.engine import classify


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", FailureKind.PORT_TAKEN),
        ("listen tcp 127.0.0.1:80: bind: address already in use", FailureKind.PORT_TAKEN),
        ('Error: Os { code: 98, kind: AddrInUse, message: "Address in use" }', FailureKind.PORT_TAKEN),
        ("write error: No space left on device", FailureKind.DISK_FULL),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", FailureKind.OUT_OF_MEMORY_STARTUP),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
            FailureKind.OUT_OF_MEMORY_STARTUP,
        ),
        ('DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")', FailureKind.OUT_OF_MEMORY_STARTUP),
        ("serve.sh: line 3: vllm: command not found", FailureKind.ENVIRONMENT_BROKEN),
        ("ModuleNotFoundError: No module named 'sglang'", FailureKind.ENVIRONMENT_BROKEN),
        ("serve.py: error: unrecognized arguments: --slotz 3", FailureKind.INVALID_CONFIGURATION),
        ("error: unexpected argument '--slotz' found", FailureKind.INVALID_CONFIGURATION),
        ("something else happened", FailureKind.ENGINE_CRASH),
    ],
)
def test_a_line_names_the_kind(line: str, kind: FailureKind) -> None:
    failure = classify(f"starting\n{line}\n", 1, Phase.READY)
    assert (failure.kind, failure.exit_code) == (kind, 1)
    assert failure.evidence == f"starting\n{line}"


def test_memory_that_runs_out_under_load_is_another_kind() -> None:
    assert classify("CUDA out of memory", 1, Phase.BENCHMARK).kind is FailureKind.OUT_OF_MEMORY_LOAD


def test_the_last_known_line_is_the_cause() -> None:
    text = "CUDA out of memory: trying with fewer slots\nlistening\nbind: address already in use\ngood bye"
    failure = classify(text, 3, Phase.READY)
    assert (failure.kind, failure.message) == (FailureKind.PORT_TAKEN, "another program took the port")


def test_evidence_is_the_last_six_lines() -> None:
    failure = classify("\n".join(f"line {number}" for number in range(10)), 7, Phase.READY)
    assert failure.evidence == "\n".join(f"line {number}" for number in range(4, 10))
    assert failure.message == "the server ended with exit code 7; its last line: line 9"


@pytest.mark.parametrize(
    ("exit_code", "kind", "name"),
    [
        (-signal.SIGKILL, FailureKind.SERVER_KILLED, "SIGKILL"),
        (128 + signal.SIGKILL, FailureKind.SERVER_KILLED, "SIGKILL"),
        (128 + signal.SIGSEGV, FailureKind.ENGINE_CRASH, "SIGSEGV"),
    ],
)
def test_a_signal_is_read_from_the_exit_code_also_of_a_shell(exit_code: int, kind: FailureKind, name: str) -> None:
    failure = classify("serve.sh: line 4: 12 Killed  vllm serve\n", exit_code, Phase.BENCHMARK)
    assert (failure.kind, failure.exit_code) == (kind, exit_code)
    assert name in failure.message


def test_an_empty_log_is_no_cause() -> None:
    failure = classify("", 1, Phase.READY)
    assert (failure.kind, failure.evidence) == (FailureKind.ENGINE_CRASH, None)
    assert failure.message == "the server ended with exit code 1 and its log has no cause"
