"""A made-up package `vllm` with just the entry points that the helper uses."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from records.trials import Failure
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.errors import TrialFailed
from tuner.specs import TrialSpec
from tuner.workloads.spec import ClosedLoop

NEVER = threading.Event()
LOAD = ClosedLoop(max_concurrency=4, num_prompts=12, input_len=16, output_len=8, seed=100)
FILES = {
    "vllm/__init__.py": "__version__ = '1.2.3'\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/main.py": """
import os, sys, time

def main():
    what = sys.argv[1]
    print("argv", sys.argv[1:], flush=True)
    if what == "sleep":
        time.sleep(float(sys.argv[2]))
    elif what == "fork-and-sleep":
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        with open(sys.argv[2], "w") as file:
            file.write(str(pid))
        os.rename(sys.argv[2], sys.argv[2] + ".done")
        time.sleep(600)
    elif what == "exit":
        sys.exit(int(sys.argv[2]))
    elif what == "say":
        sys.exit("the last word")
    elif what == "raise":
        raise RuntimeError("made to fail")
    elif what == "environment":
        print("HELLO", os.environ.get("HELLO"), os.environ.get("VLLM_LEFT"), os.getcwd(), flush=True)

if __name__ == "__main__":
    main()
""",
    "vllm/entrypoints/cli/serve.py": """
class Command:
    name = "serve"

    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        for name in ("host", "served-model-name"):
            parser.add_argument("--" + name)
        parser.add_argument("--port", "-p", type=int)
        parser.add_argument("--max-num-seqs", type=int)
        parser.add_argument("--dtype", choices=["auto", "half"])
        return parser

    def validate(self, arguments):
        if arguments.max_num_seqs == 13:
            raise ValueError("13 is not supported")

def cmd_init():
    return [Command()]
""",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "vllm/platforms/__init__.py": "class current_platform:\n    device_type = 'cpu'\n",
    "vllm/usage/__init__.py": "",
    "vllm/usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'api'\n",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/models/__init__.py": "",
    "vllm/model_executor/models/registry.py": """
def _run_in_subprocess(inspect):
    raise OSError(28, "a new process")

def inspect_model_cls():
    return _run_in_subprocess(lambda: "text generation")
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
import os

from vllm.model_executor.models import registry

class AsyncEngineArgs:
    def __init__(self, arguments):
        self.arguments = arguments

    @classmethod
    def from_cli_args(cls, arguments):
        return cls(arguments)

    def create_engine_config(self, usage):
        registry.inspect_model_cls()
        if os.environ.get("SLOW"):
            import time
            time.sleep(600)
        if self.arguments.max_num_seqs == 14:
            raise RuntimeError("an odd state of affairs")
        if self.arguments.max_num_seqs == 15:
            raise OSError(28, "No space left on device")
""",
    "vllm-1.2.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3\n",
}


@dataclass(frozen=True)
class MadeVllm:
    """The folder of the made-up package, its console script, and an environment in which Python finds it."""

    folder: Path
    executable: Path
    environment: dict[str, str]


@pytest.fixture
def made_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeVllm:
    folder = tmp_path / "site"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    executable = tmp_path / "bin" / "vllm"
    executable.parent.mkdir()
    executable.write_text(f"#!{sys.executable}\nfrom vllm.entrypoints.cli.main import main\nmain()\n")
    executable.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return MadeVllm(folder, executable, {**os.environ, "PYTHONPATH": str(folder)})


@contextlib.contextmanager
def child_ended_by(number: signal.Signals, word: str, parent: bool = False) -> Iterator[None]:
    """Send a signal to the first descendant whose command line contains `word`, once there is one, or to its parent."""

    def end() -> None:
        while not stop.wait(0.01):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if word in " ".join(child.cmdline()):
                        os.kill(child.ppid() if parent else child.pid, number)
                        return

    stop = threading.Event()
    thread = threading.Thread(target=end)
    thread.start()
    yield
    stop.set()
    thread.join()


def started(engine: VllmEngine, spec: TrialSpec) -> VllmServer:
    server = engine.launch(spec, spec.limits)
    server.wait_ready(NEVER)
    return server


def failure_of(call: Callable[[], object]) -> Failure:
    with pytest.raises(TrialFailed) as caught:
        call()
    return caught.value.failure
