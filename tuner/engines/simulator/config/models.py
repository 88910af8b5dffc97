"""What is simulated: the model's shape by name or folder, and which vLLM on which card."""

from __future__ import annotations

import json
from pathlib import Path

from search_spaces import HardwareProfile, ModelShape, SpaceError, known_model
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.hub import cached_config

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
    folder = Path(name).expanduser()
    file = (None if folder.is_dir() else cached_config(name)) or folder / "config.json"
    try:
        return ModelShape.from_config_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, SpaceError) as error:
        raise ConfigRefused(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None
