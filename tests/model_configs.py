"""Contents of `config.json` of models, and folders of models that only a fake server loads."""

import json
from collections.abc import Mapping
from pathlib import Path

CONFIG_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SMALL_QWEN = {
    **QWEN,
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
TINY_QWEN = {
    **QWEN,
    "vocab_size": 41,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def write_folder(folder: Path, config: Mapping[str, object]) -> Path:
    """Write a model's configuration, a file without weights, and the sign of a tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder
