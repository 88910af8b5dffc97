"""Make a LoRA adapter of the tiny model: random matrices of rank 8 for its attention's queries and values."""

import json
from pathlib import Path

import numpy as np

from tests.two_formats import write_safetensors

RANK = 8
LAYERS = 4
WIDTH = 256
OUTPUTS = {"q_proj": 256, "v_proj": 128}
"""Rows of each matrix: four heads of 64, and two heads of keys and values."""


def make_adapter(folder: Path, seed: int = 0) -> Path:
    """Write adapter_config.json and adapter_model.safetensors to `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, rows in OUTPUTS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (RANK, WIDTH)), ("lora_B", (rows, RANK))):
                weights[f"{place}.{part}.weight"] = (0.1 * random.standard_normal(shape)).astype(np.float16)
    write_safetensors(folder / "adapter_model.safetensors", weights)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 16, "bias": "none"}
    modules = {"target_modules": list(OUTPUTS), "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, **modules}))
    return folder
