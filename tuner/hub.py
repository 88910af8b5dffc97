"""Find files that the Hugging Face hub's library has cached on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cached_config(name: str) -> Path | None:
    """Return the path of a downloaded hub model's config.json; None if the model was not downloaded."""
    return cached_file(name, "config.json")


def cached_file(name: str, file: str) -> Path | None:
    """Return the path of a file of a downloaded hub model; None if it was not downloaded."""
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    found = sorted((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{file}"))
    return found[-1] if found else None
