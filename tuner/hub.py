"""What the Hugging Face hub left on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cached_config(name: str) -> Path | None:
    """Return config.json of a hub model that was downloaded before; None if it was not."""
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    found = sorted((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    return found[-1] if found else None
