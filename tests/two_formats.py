"""The made model of `tests.gguf_model` in two formats with the same weights: a GGUF file, and a folder for vLLM.

python -m tests.two_formats FOLDER

It writes FOLDER/made.gguf and FOLDER/made. The tokenizer of the folder has the words of the GGUF file as they are: it
serves prompts of token ids, and decodes answers. Needs the packages `gguf` and `tokenizers`.
"""

import json
import re
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.gguf_model import MadeModel, write_model

MODEL = MadeModel(layers=4, width=256, heads=4, kv_heads=2, inner=1024, vocabulary=4096, context=2048)
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of tensors in a GGUF file of the architecture llama, and those of transformers."""

Weights = NDArray[np.float16]


def write_both(folder: Path, model: MadeModel = MODEL) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    file, made = write_model(folder / "made.gguf", model), folder / "made"
    made.mkdir(exist_ok=True)
    reader = gguf.GGUFReader(str(file))
    weights = {}
    for tensor in reader.tensors:
        name, values = transformers_name(tensor.name), np.asarray(tensor.data).astype(np.float16)
        heads = {"q_proj": model.heads, "k_proj": model.kv_heads}.get(name.split(".")[-2])
        weights[name] = values if heads is None else unpermuted(values, heads)
    write_safetensors(made / "model.safetensors", weights)
    (made / "config.json").write_text(json.dumps(config_of(model), indent=1))
    write_tokenizer(made, [bytes(part).decode() for part in words_of(reader)])
    return file, made


def transformers_name(name: str) -> str:
    """Return the name of a GGUF file's tensor in transformers: `blk.3.attn_q.weight`."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer is None:
        return f"{NAMES[name.removesuffix('.weight')]}.weight"
    return f"model.layers.{layer[1]}.{NAMES[layer[2]]}.weight"


def unpermuted(values: Weights, heads: int) -> Weights:
    """Return the rows of a query or key matrix in the order of transformers, which rotates halves and not pairs."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_safetensors(path: Path, weights: dict[str, Weights]) -> None:
    """Write tensors of 16 bits."""
    head: dict[str, object] = {}
    offset = 0
    for name, values in weights.items():
        head[name] = {"dtype": "F16", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in weights.values():
            file.write(np.ascontiguousarray(values).tobytes())


def config_of(model: MadeModel) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.context,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def words_of(reader: gguf.GGUFReader) -> list[NDArray[np.uint8]]:
    """Return the bytes of each token of a GGUF file."""
    field = reader.fields["tokenizer.ggml.tokens"]
    return [field.parts[index] for index in field.data]


def write_tokenizer(folder: Path, words: list[str]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": words[1], "eos_token": words[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    print(*write_both(Path(sys.argv[1])))
