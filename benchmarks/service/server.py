"""A real `tuner serve` for benchmarks, and the memory of a process."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

READY_S = 120.0


class Memory:
    """The largest resident memory of a process, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self.most = max(self.most, self._process.memory_info().rss)


@contextmanager
def service(folder: Path, url: str, *options: str, first: bool = True) -> Iterator[tuple[int, str, str]]:
    """Run `tuner serve`; yield its process id, address and token.

    Args:
        folder: where it works.
        url: of its database.
        options: further ones of the command.
        first: whether the database has no token yet; else the token is empty.
    """
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", "--storage", url, "--folder", str(folder / "s")]
    command += options
    pattern = re.compile(r"serves (\S+);.*?(tnr_\w+)" if first else r"serves (\S+);()", re.DOTALL)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while (found := pattern.search(text)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the server did not start: {text}")
            text += line
        _wait_until_ready(urlsplit(found[1]).port or 0, process)
        yield process.pid, found[1], found[2]
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("a server did not start") from None
            time.sleep(0.2)
