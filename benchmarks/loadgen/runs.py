"""Runs one load generator against the fake server and stops it if it does not end."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.loadgen.generators import ROOT, LoadGenerator
from benchmarks.loadgen.records import GeneratorRun, RequestStream

LONGEST_RUN_S = 400.0
AFTER_LAST_S = 40.0
"""A generator is stopped so long after the server received its last request."""
WAIT_S = 0.5
GENERATOR_STOP_S = 10.0
"""How long a stopped generator may take to end before it is killed."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that each generator sets for itself."""
OUTPUT_TAIL = 2000
"""Characters of a failed generator's output that are printed."""


def run_generator(
    generator: LoadGenerator, stream: RequestStream, faults: Mapping[str, str], folder: Path
) -> GeneratorRun:
    """Run a generator once against a server of its own; making its input counts as its processor time.

    Args:
        generator: the generator.
        stream: the requests.
        faults: for the number of an arrival, the kind of its fault.
        folder: a new folder for its files.
    """
    folder.mkdir()
    log = folder / "server.log"
    with _fake_server(faults, log) as url:
        begun, own_begun = time.monotonic(), time.process_time()
        words = generator.prepare(stream, url, folder)
        own_s = time.process_time() - own_begun
        children_begun = _children_cpu_s()
        exit_code, ended = _run_to_end(generator, words, stream, folder, log)
        wall_s, cpu_s = time.monotonic() - begun, own_s + _children_cpu_s() - children_begun
    arrivals = np.array([float(line.split()[1]) for line in log.read_text().splitlines()], dtype=float)
    first_s = float(arrivals[0]) - begun if len(arrivals) else wall_s
    return GeneratorRun(exit_code, ended, wall_s, first_s, cpu_s, arrivals)


def _run_to_end(
    generator: LoadGenerator, words: list[str], stream: RequestStream, folder: Path, log: Path
) -> tuple[int, bool]:
    """Run a generator's command; return its exit code and whether it ended by itself."""
    inherited = {name: value for name, value in os.environ.items() if name not in OFFLINE_VARIABLES}
    output = folder / "output.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=ROOT if generator.runs_in_repository else folder,
            env={**inherited, **generator.environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = _wait(process, stream, log)
        finally:
            _stop(process)
    if ended and process.returncode != 0:
        tail = output.read_text()[-OUTPUT_TAIL:]
        print(f"{generator.name} ended with exit code {process.returncode}:\n{tail}", file=sys.stderr)
    return process.returncode, ended


def _wait(process: subprocess.Popen[bytes], stream: RequestStream, log: Path) -> bool:
    """Wait for the end of a generator; return False if it still runs long after its last request."""
    begun = last = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_S)
        now = time.monotonic()
        if log.read_bytes().count(b"\n") < stream.requests:
            last = now
        if now - last > AFTER_LAST_S or now - begun > LONGEST_RUN_S:
            return process.poll() is not None
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a generator that still runs, with the processes it started: by SIGINT as Ctrl-C does, then by SIGKILL."""
    if process.poll() is not None:
        return
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GENERATOR_STOP_S)


def _children_cpu_s() -> float:
    """Return the processor time of all ended children and their descendants, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def _fake_server(faults: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run the fake server and yield its URL."""
    words = [sys.executable, str(ROOT / "tests" / "fakes" / "streaming_server.py"), "--log", str(log)]
    process = subprocess.Popen([*words, "--faults", json.dumps(faults)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
