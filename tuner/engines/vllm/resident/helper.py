"""Import vLLM once, then run each request in a forked child. Runs in vLLM's own interpreter.

    python helper.py LOG

Requests are JSON lines on standard input, answers are JSON lines on the original standard output. The output of vLLM
goes to files. The script imports only the standard library and vLLM; the tuner imports `die_with_parent` alone from it.

    {"id": 1, "op": "run", "task": "cli", "argv": ["bench", "serve", …], "log": PATH, "environment": {…}, "cwd": PATH}
    {"id": 2, "op": "run", "task": "info", "check" or "prompts", "out": PATH, …}
    {"id": 1, "op": "cancel"}

With `"hold": true` the child makes its process group and waits for `{"id": 1, "op": "release"}`. After its end it stays
in the process table until `{"id": 1, "op": "reap"}`, so that its id is not recycled.

Answers: `{"event": "ready", …}` once vLLM is imported, `{"id": 1, "event": "started", "pid": …}` and
`{"id": 1, "event": "done", "exit_code": …}` (-N if signal N ended it). Each child leads a process group of its own in
the tuner's session: see `tuner.processes.supervisor`. When standard input ends, because the tuner has ended, the script
kills its children and ends.

The parent has no thread and no event loop and opens no device, so that each fork is in the state of a new interpreter
that has just imported vLLM.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

PR_SET_PDEATHSIG = 1

# what the commands import in their first seconds; names that a version lacks are skipped
_COMMANDS = (
    "main serve openai launch run_batch collect_env benchmark.main benchmark.latency benchmark.mm_processor "
    "benchmark.serve benchmark.startup benchmark.sweep benchmark.throughput"
)
PRELOAD = (
    *(f"vllm.entrypoints.cli.{name}" for name in _COMMANDS.split()),
    *("vllm.benchmarks.serve", "vllm.engine.arg_utils", "vllm.tokenizers"),
    *("transformers.models.auto.tokenization_auto", "aiohttp"),
)


@contextlib.contextmanager
def ending_with_input() -> Iterator[None]:
    """End this process, also in the middle of an import, when standard input ends. The thread ends with the context."""
    done, finish = os.pipe()
    poll = select.poll()
    poll.register(0, 0)
    poll.register(done, 0)

    def watch() -> None:
        if any(descriptor == 0 for descriptor, _ in poll.poll()):
            os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(finish)
        thread.join()
        os.close(done)


def preload() -> tuple[float, list[str]]:
    """Import the modules that the commands need; return the seconds, and the modules that could not be imported."""
    begun = time.monotonic()
    missing: list[str] = []
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    return time.monotonic() - begun, missing


def write_info(request: dict[str, Any]) -> int:
    """Write every flag of `vllm serve` to the file `out`."""
    write(request["out"], importlib.import_module("introspection").info())
    return 0


def write_check(request: dict[str, Any]) -> int:
    """Write the result of vLLM's own check of the arguments of `vllm serve` to the file `out`."""
    write(request["out"], importlib.import_module("introspection").check(request["argv"]))
    return 0


def call_cli(request: dict[str, Any]) -> int:
    """Call the function of the command `vllm ARGV…`."""
    sys.argv = ["vllm", *request["argv"]]
    if request["argv"][:1] == ["serve"]:
        importlib.import_module("api_servers").fork_api_servers()
    importlib.import_module("vllm.entrypoints.cli.main").main()
    return 0


def write_prompts(request: dict[str, Any]) -> int:
    """Write the prompts of the file `plan` to the file `out`; see `tuner/engines/server/prompts/prompts.py`."""
    sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "server", "prompts"))
    write(request["out"], importlib.import_module("prompts").run(request["plan"]))
    return 0


TASKS = {"info": write_info, "check": write_check, "cli": call_cli, "prompts": write_prompts}


def write(path: str, data: object) -> None:
    """Write JSON in one step: a reader sees the whole file or none."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(path + ".tmp", path)


def redirect(log: str) -> None:
    """Send standard output and error to the file `log`, and make standard input empty."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nowhere, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
    os.close(target)
    os.close(nowhere)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def forks_die_with_their_parents() -> None:
    """Make the kernel kill each fork of this process, and their forks, when the process that forked it ends.

    /proc shows forks with the environment of the helper, without the mark of their server, so they could not be found
    once the server has ended. Programs that are executed have the mark.
    """
    forking = 0

    def remember() -> None:
        nonlocal forking
        forking = os.getpid()

    os.register_at_fork(before=remember, after_in_child=lambda: die_with_parent(forking))


def child(request: dict[str, Any], parent: int, gate: int | None) -> NoReturn:
    """Run one task in the forked child once the gate is open, and end the child; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        redirect(request["log"])
        if gate is not None and os.read(gate, 1) == b"":
            os._exit(125)
        forks_die_with_their_parents()
        if request.get("environment") is not None:
            os.environ.clear()
            os.environ.update(request["environment"])
        if request.get("cwd"):
            os.chdir(request["cwd"])
        code = TASKS[request["task"]](request)
        atexit._run_exitfuncs()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  a forked child must never return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Helper:
    """The parent process: reads requests, forks children and writes answers."""

    def __init__(self, answers: TextIO) -> None:
        self.answers = answers
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, tuple[int, int]] = {}
        self.gates: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.buffer = b""

    def answer(self, **message: object) -> None:
        """Write one answer."""
        self.answers.write(json.dumps(message) + "\n")
        self.answers.flush()

    def run(self, request: dict[str, Any]) -> None:
        """Fork a child for the request."""
        me = os.getpid()
        gate, opener = os.pipe() if request.get("hold") else (None, None)
        pid = os.fork()
        if pid == 0:
            self.answers.close()
            self.selector.close()
            if opener is not None:
                os.close(opener)
            child(request, me, gate)
        if gate is not None and opener is not None:
            os.close(gate)
            self.gates[request["id"]] = opener
        handle = os.pidfd_open(pid)
        self.running[request["id"]] = (pid, handle)
        self.selector.register(handle, selectors.EVENT_READ, request["id"])
        self.answer(id=request["id"], event="started", pid=pid)

    def finish(self, number: int) -> None:
        """Write the answer for a child that ended; one with `hold` stays a zombie until `reap`."""
        pid, handle = self.running.pop(number)
        self.selector.unregister(handle)
        os.close(handle)
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert result is not None  # without WNOHANG it waits
        self.ended[number] = pid
        if number in self.gates:
            self.release(number)
        else:
            self.reap(number)
        ended = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.answer(id=number, event="done", exit_code=ended)

    def release(self, number: int) -> None:
        """Open the gate of a child with `hold`."""
        opener = self.gates.get(number, -1)
        if opener >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(opener, b"\n")
            os.close(opener)
            self.gates[number] = -1

    def reap(self, number: int) -> None:
        """Reap a child that has ended."""
        self.gates.pop(number, None)
        pid = self.ended.pop(number, None)
        if pid is not None:
            os.waitpid(pid, 0)

    def cancel(self, number: int) -> None:
        """Kill the child of a request if it runs."""
        if number in self.running:
            self.kill(self.running[number][0])

    def kill(self, pid: int) -> None:
        """Kill a child and its group."""
        for ending in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                ending(pid, signal.SIGKILL)

    def read(self) -> bool:
        """Handle the requests that standard input has; return False at its end."""
        data = os.read(0, 65536)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["op"] == "run":
                self.run(request)
            else:
                {"cancel": self.cancel, "release": self.release, "reap": self.reap}[request["op"]](request["id"])
        return bool(data)

    def loop(self) -> None:
        """Serve requests until standard input ends."""
        self.selector.register(0, selectors.EVENT_READ, None)
        alive = True
        while alive:
            for key, _ in self.selector.select():
                if key.data is not None:
                    self.finish(key.data)
                elif not self.read():
                    alive = False
        for pid, _ in self.running.values():
            self.kill(pid)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    stdin = os.dup(0)
    redirect(sys.argv[1])
    os.dup2(stdin, 0, inheritable=False)
    os.close(stdin)
    with ending_with_input():
        seconds, missing = preload()
        vllm = importlib.import_module("vllm")
    torch = sys.modules.get("torch")
    gc.collect()
    gc.freeze()  # otherwise a child's first collection copies all pages of this heap, in the middle of its benchmark
    helper = Helper(answers)
    helper.answer(
        event="ready",
        version=str(getattr(vllm, "__version__", "")),
        import_s=round(seconds, 2),
        missing=missing,
        threads=len(os.listdir("/proc/self/task")),
        device_touched=bool(torch is not None and torch.cuda.is_initialized()),
    )
    helper.loop()


if __name__ == "__main__":
    main()
