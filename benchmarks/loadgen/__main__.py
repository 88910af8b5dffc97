"""Which load generator sends on time and keeps a record of every request? No vLLM server is needed: it is a fake.

    python -m benchmarks.loadgen [--vllm VENV/bin/vllm] [--aiperf VENV/bin/aiperf] [--guidellm VENV/bin/guidellm]
        [--tokenizer FOLDER] [--only NAME] [--json FILE]

Each generator that is given, one after another, against `tests/fakes/streaming_server.py` on the same cores:

1. 10,000 requests at Poisson times, 200 a second, 8 tokens each: the dispersion of arrivals, how late they were, what
   the generator used. Its processor time is that of all processes that it started, without the server's.
2. 300 requests, 20 a second, eight of them with a fault each, given up after 10 s where the generator has a limit for
   a request. Two stall: one early, and one that is the last to end. A generator that still runs 40 s after the server
   saw the last request is ended, and run again without stalls.

How late: the n-th arrival in the server's log against the n-th scheduled time. A generator that keeps no scheduled
times draws them from its seed; they are drawn again here, and the request that was sent most promptly sets their
origin. Run it on an otherwise idle machine; on one of more cores, under `taskset -c 0,1`. Exits 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.loadgen.candidates import ROOT, AiPerf, Candidate, GuideLlm, Load, Ours, Vllm
from benchmarks.loadgen.figures import Faulty, Result, Run, faults_of, steady_of
from benchmarks.loadgen.table import print_table

STEADY = Load(requests=10_000, rate=200.0, poisson=True, tokens=8, timeout_s=30.0)
FAULTY = Load(requests=300, rate=20.0, poisson=False, tokens=8, timeout_s=10.0)
KINDS = ("stall", "reset", "half", "short", "malformed", "429", "500")
FAULTS = {str(10 + 20 * place): kind for place, kind in enumerate(KINDS)} | {str(FAULTY.requests - 5): "stall"}
LONGEST_S = 400.0
AFTER_LAST_S = 40.0
POLL_S = 0.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("vllm", "aiperf", "guidellm"):
        parser.add_argument(f"--{name}", type=Path, help="its executable; left out without")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer's folder, for all but ours")
    parser.add_argument("--only", help="just the generator of this name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = [measure(each) for each in candidates(arguments)]
    cores = len(os.sched_getaffinity(0))
    print_table(results, cores)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": cores, "results": [asdict(each) for each in results]}, indent=1))


def candidates(arguments: argparse.Namespace) -> list[Candidate]:
    """Return the generators that were given; say which are left out."""
    given: list[Candidate] = [Ours(Path(sys.executable), arguments.tokenizer)]
    for kind, program in ((Vllm, arguments.vllm), (AiPerf, arguments.aiperf), (GuideLlm, arguments.guidellm)):
        if program is None or arguments.tokenizer is None:
            print(f"{kind.name}: left out, it needs --{kind.package} and --tokenizer", file=sys.stderr)
        else:
            given.append(kind(program.absolute(), arguments.tokenizer.absolute()))
    return [each for each in given if arguments.only in (None, each.name)]


def measure(candidate: Candidate) -> Result:
    """Run a generator twice, a third time if stalls held it up."""
    result = Result(candidate.name, candidate.version(), os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="tuner-loadgen-") as name:
        folder = Path(name)
        run = one_run(candidate, STEADY, {}, folder / "steady")
        try:
            result.steady = steady_of(candidate.read(STEADY, folder / "steady", run.arrivals), run)
        except (OSError, ValueError, LookupError) as error:
            result.steady_error = said(run, error)
        result.faulty.append(faults_run(candidate, FAULTS, folder / "faulty"))
        if not result.faulty[-1].ended:
            calm = {number: kind for number, kind in FAULTS.items() if kind != "stall"}
            result.faulty.append(faults_run(candidate, calm, folder / "calm"))
    return result


def faults_run(candidate: Candidate, faults: dict[str, str], folder: Path) -> Faulty:
    """Run a generator into faults and return what its records say of them."""
    run = one_run(candidate, FAULTY, faults, folder)
    try:
        return faults_of(candidate.read(FAULTY, folder, run.arrivals), run, FAULTY.requests, faults)
    except (OSError, ValueError, LookupError) as error:
        return Faulty(FAULTY.requests, 0, run.ended, run.wall_s, error=said(run, error))


def said(run: Run, error: Exception) -> str:
    """Return why there is no result."""
    return f"exit code {run.exit_code}, {type(error).__name__}: {str(error).strip()[-120:]}"


def one_run(candidate: Candidate, load: Load, faults: dict[str, str], folder: Path) -> Run:
    """Run a generator once against a server of its own; the making of its input counts as its own."""
    folder.mkdir()
    log = folder / "server.log"
    with server(faults, log) as url:
        begun, processor = time.monotonic(), time.process_time()
        words = candidate.prepare(load, url, folder)
        processor = time.process_time() - processor
        before = children_cpu_s()
        exit_code, ended = watched(candidate, words, load, folder, log)
        wall, used = time.monotonic() - begun, processor + children_cpu_s() - before
    arrivals = np.array([float(line.split()[1]) for line in log.read_text().splitlines()], dtype=float)
    first = float(arrivals[0]) - begun if len(arrivals) else wall
    return Run(exit_code, ended, wall, first, used, arrivals)


def watched(candidate: Candidate, words: list[str], load: Load, folder: Path, log: Path) -> tuple[int, bool]:
    """Run a generator, and end it if it does not end; return its exit code and whether it ended by itself."""
    hidden = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    output = folder / "output.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=ROOT if candidate.name == Ours.name else folder,
            env={**kept, **candidate.environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = wait(process, load, log)
        finally:
            end(process)
    if ended and process.returncode != 0:
        print(f"{candidate.name} ended with {process.returncode}:\n{output.read_text()[-2000:]}", file=sys.stderr)
    return process.returncode, ended


def wait(process: subprocess.Popen[bytes], load: Load, log: Path) -> bool:
    """Wait for the end of a generator; return False if it is still there long after the server saw the last request."""
    begun = last = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        now = time.monotonic()
        if log.read_bytes().count(b"\n") < load.requests:
            last = now
        if now - last > AFTER_LAST_S or now - begun > LONGEST_S:
            return process.poll() is not None
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """End a generator that still runs, and what it started: as Ctrl-C would, then for good."""
    if process.poll() is not None:
        return
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def children_cpu_s() -> float:
    """Return the processor time of all children that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def server(faults: dict[str, str], log: Path) -> Iterator[str]:
    """Run the fake server; yield its address."""
    words = [sys.executable, str(ROOT / "tests" / "fakes" / "streaming_server.py"), "--log", str(log)]
    process = subprocess.Popen([*words, "--faults", json.dumps(faults)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
