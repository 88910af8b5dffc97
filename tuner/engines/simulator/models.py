"""What is simulated: the model's shape by name or folder, and which vLLM on which card."""

from __future__ import annotations

import json
import os
from pathlib import Path

from search_spaces import HardwareProfile, ModelShape, SpaceError, known_model
from tuner.engines.simulator.precision import ConfigRefused

ON_TURING = "0.15.1"
"""The last version whose default attention kernels ran on compute capability 7.5, and the one that was published on."""

ELSEWHERE = "0.25.1"
"""The version that the H200 measurements were made with."""


def default_version(card: HardwareProfile) -> str:
    """Return the vLLM that is simulated on a card where nobody said which."""
    return ON_TURING if (card.compute_capability or (0, 0)) < (8, 0) else ELSEWHERE


PACKAGES = frozenset({"arctic_inference", "bitsandbytes", "flashinfer"})
"""What is taken to be installed beside vLLM: FlashInfer comes with it, the others by pip."""


def version_tuple(version: str) -> tuple[int, ...]:
    """Return a version's numbers."""
    return tuple(int(part) for part in version.split("."))


def find_shape(name: str) -> ModelShape:
    """Return the shape of a known model, of a folder's config.json, or of one that was downloaded before.

    Raises:
        ConfigRefused: when there is none.
    """
    known = known_model(name)
    if known is not None:
        return known
    file = _config_file(name)
    try:
        return ModelShape.from_config_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, SpaceError) as error:
        raise ConfigRefused(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None


def _config_file(name: str) -> Path:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / "config.json"
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    found = sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    return found[-1] if found else folder / "config.json"
