"""Places of this server in texts for its users: paths of its own files become relative ones."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import tuner
from tuner.use_cases.places import home

OF_DATABASE = ("artifacts", "mlartifacts", "mlflow.db", "quality")
"""What lies beside an SQLite file; the folder itself may be that of a user's models, which keep their paths."""


class Places:
    """Hides where a server has its files.

    Args:
        folder: of the service.
        url: of the database.
    """

    def __init__(self, folder: Path, url: str) -> None:
        places = {os.path.abspath(each) for each in _places(folder, url)}
        found = {each for each in places if os.path.dirname(each) != "/"}  # `/usr` says nothing
        self._roots = {each.encode(): os.path.dirname(each).encode() + b"/" for each in found}
        longest_first = b"|".join(re.escape(each) for each in sorted(self._roots, key=len, reverse=True))
        self._pattern = re.compile(rb"(?<![\w.~-])(" + longest_first + rb")(?![\w-])")

    def hidden(self, content: bytes) -> bytes:
        """Return a text whose paths begin with the name of the server's folder that they are in."""
        return self._pattern.sub(lambda found: found[1].removeprefix(self._roots[found[1]]), content)

    def hidden_text(self, text: str) -> str:
        """Return a text, see `hidden`."""
        return self.hidden(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def masked(self, content: bytes) -> bytes:
        """Return as many bytes, with asterisks in the place of the server's folders: a reader counts the bytes."""

        def mask(found: re.Match[bytes]) -> bytes:
            root = self._roots[found[1]]
            return b"*" * len(root) + found[1].removeprefix(root)

        return self._pattern.sub(mask, content)

    @property
    def longest(self) -> int:
        """Most bytes of a place."""
        return max(map(len, self._roots))


def _places(folder: Path, url: str) -> Iterable[str]:
    """Yield files and folders of the server."""
    yield from (os.path.join(folder, name) for name in ("submissions", "mlflow.db", "mlartifacts"))
    file = url.removeprefix("sqlite:///")
    if file != url:
        yield file
        yield from (os.path.join(os.path.dirname(file), name) for name in OF_DATABASE)
    yield from (sys.prefix, os.path.dirname(tuner.__file__), str(home()))
