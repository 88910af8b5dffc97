"""Derive a typed `Failure` from a log of TensorRT-LLM's server, an exit code and a phase.

The texts are those of its sources and of logs in its public issues (docs/engines.md names them); no server was run. The
process that holds the model logs its traceback after "Executor worker initialization error". The server then raises
"Executor worker returned error", which is a consequence. An error of the command line is click's, with exit code 2.
"""

from __future__ import annotations

import re

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures import classify as python_logs
from tuner.engines.server.failures.table import CAUSES as PYTHON_CAUSES
from tuner.engines.server.failures.table import CONSEQUENCES as PYTHON_CONSEQUENCES
from tuner.engines.server.failures.table import STARTING, LogTexts, rows

CAUSES = (
    *rows(
        FailureKind.PORT_TAKEN,
        r"Failed to bind socket to",
        message="another program took the port",
    ),
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"Impossible to fit in any sequence in kvCache",
        phases=STARTING,
    ),
    *rows(
        FailureKind.OUT_OF_MEMORY_STARTUP,
        r"Executor creation failed due to insufficient GPU memory",
        phases=STARTING,
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"No GPU devices found on the node",
        r"No module named 'tensorrt_llm",
        r"No package metadata was found for tensorrt.llm",
        r"MPI_Init|MPI_Comm_spawn|libmpi\.so",
    ),
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^Error: (?:No such option|Invalid value|Option .* requires|Got unexpected extra argument|Missing argument)",
        r"Failed to parse the arguments for the LLM constructor",
        r"got invalid argument",
        phases=STARTING,
    ),
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
        rf"{PYTHON_CONSEQUENCES.pattern}|worker initialization error: Traceback|Executor worker returned error|"
        r"Executor worker died during initialization"
    ),
    died=re.compile(r"Executor worker died during initialization|Executor worker returned error"),
    prefix=re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\] (?:\[RANK \d+\] )?\[[A-Z]\] ?"),
    anchor=re.compile(r"Executor worker initialization error"),
)

_CLICK = re.compile(r"^Error: .+", re.MULTILINE)
_USAGE = re.compile(r"^Usage: trtllm-serve", re.MULTILINE)

_TOO_LONG = re.compile(
    r"The sum of prompt length \([\d.]+\),? (?:and )?query length \(\d+\),?[^\"]{0,40}? should not exceed "
    r"max_(?:num_tokens|seq_len) \(\d+\)"
)


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    refused = _CLICK.search(log_text)
    if exit_code == 2 and refused is not None and _USAGE.search(log_text) is not None:
        return Failure(FailureKind.INVALID_CONFIGURATION, phase, refused[0], refused[0], exit_code)
    return python_logs.classify(log_text, exit_code, phase, TEXTS)


def length_problem(error: str) -> str | None:
    """Return why the server refused a request for its length, as its answer says; None if it was not that."""
    found = _TOO_LONG.search(error)
    return None if found is None else found[0]
