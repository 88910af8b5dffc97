"""The importance of a study's parameters, computed by another process while this one draws the rest of a report.

`python -m tuner.use_cases.report.background` imports the libraries, which takes longest, reads a line of JSON with the
database's URL and the study's name, and answers with one. It ends when its input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType


class BackgroundImportance:
    """Another process that computes, so start it early. Leaving the context ends it."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", __name__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._asked: tuple[str, str] | None = None

    def __enter__(self) -> BackgroundImportance:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, url: str, study: str) -> None:
        """Say which study; the URL does not become part of a command line, because it may have a password."""
        self._asked = url, study
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([url, study]) + "\n")
            self._process.stdin.flush()
        except OSError:  # it has ended; `answer` computes without it
            return

    def answer(self) -> Mapping[str, tuple[float, float, float]]:
        """Return what `tuner.sampler.importance.stored_importance` returns for the study."""
        assert self._asked is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:  # it has failed: the reason is raised here
            from tuner.sampler.importance import stored_importance

            return stored_importance(*self._asked)
        return {name: (mean, low, high) for name, (mean, low, high) in json.loads(line).items()}


def main() -> None:
    """Answer one question."""
    from tuner.sampler.importance import load, stored_importance

    load()
    line = sys.stdin.readline()
    if line:
        print(json.dumps(stored_importance(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
