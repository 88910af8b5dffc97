"""Derive a typed `Failure` from a log of SGLang's server, an exit code and a phase.

The texts are those of the sources of SGLang 0.5.17 and 0.5.23; `tests/data/logs/sglang` has recordings. A scheduler
that fails logs its traceback after "Scheduler hit an exception"; the server then kills itself and all its processes by
SIGKILL, so that its exit code says nothing. An error in the arguments is a traceback of the main process.
"""

from __future__ import annotations

import re

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures import classify as python_logs
from tuner.engines.server.failures.table import CAUSES as PYTHON_CAUSES
from tuner.engines.server.failures.table import CONSEQUENCES as PYTHON_CONSEQUENCES
from tuner.engines.server.failures.table import LOADED, STARTING, LogTexts, rows

CAUSES = (
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        r"Loaded weights leave no GPU memory for the KV cache",
        r"leaves no room for the full KV pool",
        phases=STARTING,
    ),
    *rows(
        FailureKind.OUT_OF_MEMORY_LOAD,
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        r"alloc_req_slots runs out of memory",
        phases=LOADED,
    ),
    *rows(
        FailureKind.PORT_TAKEN,
        r"\bat \d+ is not available",
        r"Port is already in use",
        message="another program took the port",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"No module named 'sglang",
        r"No package metadata was found for (?:sglang|flashinfer)",
        r"is not installed correctly|Please (?:re)?install|Please uninstall the old version",
        r"Could not load any common_ops library",
        r"Could not find CUDA installation|Error building extension|[Nn]inja (?:build|error)|ninja exited",
    ),
    *rows(FailureKind.GPU_BUSY, r"The memory capacity is unbalanced\. Some GPUs may be occupied by other processes"),
    *PYTHON_CAUSES,
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:ValueError|AssertionError|NotImplementedError)\b",
        phases=STARTING,
        general=True,
    ),
)
"""For each causal line of a log, the first matching row applies; those of every server in Python are vLLM's."""

TEXTS = LogTexts(
    causes=CAUSES,
    consequences=re.compile(
        rf"{PYTHON_CONSEQUENCES.pattern}|scheduler died during initialization|Received sigquit|SIGQUIT received|"
        r"EOFError"
    ),
    died=re.compile(r"Received sigquit|SIGQUIT received|scheduler died during initialization|crashed with exit code"),
    prefix=re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?"),
    anchor=re.compile(r"hit an exception"),
)

_TOO_LONG = re.compile(
    r"The input \(\d+ tokens\) is longer than the model's context length \(\d+ tokens\)|"
    r"Requested token count exceeds the model's maximum context length of \d+ tokens|"
    r"Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)|"
    r"Request prompt exceeds the KV memory budget"
)


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    return python_logs.classify(log_text, exit_code, phase, TEXTS)


def length_problem(error: str) -> str | None:
    """Return why the server refused a request for its length, as its answer says; None if it was not that."""
    found = _TOO_LONG.search(error)
    return None if found is None else found[0]
