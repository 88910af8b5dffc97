"""The identity of a checkpoint: a digest of its files."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path

from tuner.hub import cached_config

_LEFT_OUT = {".md", ".png", ".jpg", ".gitattributes", ".gitignore"}


def weights_digest(model: str) -> str:
    """Return a digest of a model's files, or of the name of a hub model that is not on this machine.

    Files of the hub's cache are links to files that are named by their digest; other files are read whole.
    """
    folder = Path(os.path.expanduser(model))
    config = folder / "config.json" if folder.is_dir() else cached_config(model)
    if config is None:
        return sha256(model.encode()).hexdigest()
    files = sorted(file for file in config.parent.iterdir() if file.is_file() and file.suffix not in _LEFT_OUT)
    lines = [f"{file.name} {_file(file.resolve(), *_state(file))}" for file in files]
    return sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _state(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4096)
def _file(path: Path, size: int, modified: int) -> str:
    """Return the digest of one file; of its size and time of change, it depends for the cache only."""
    if path.parent.name == "blobs":
        return path.name
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
