"""A made model as a GGUF file: two small llama layers with seeded weights, and a tokenizer of made words.

python -m tests.gguf_model FILE
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

CONSONANTS, VOWELS = "bcdfghjklmnprstvz", "aeiou"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""Types of tokens in a GGUF file."""

SPECIAL = 3
BYTES = 256


@dataclass(frozen=True)
class MadeModel:
    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 2
    kv_heads: int = 1
    inner: int = 128
    vocabulary: int = 1024
    context: int = 2048
    seed: int = 7


def write_model(path: Path, model: MadeModel | None = None) -> Path:
    """Write the model and return its path; the same numbers give the same bytes."""
    made = model or MadeModel()
    writer = gguf.GGUFWriter(str(path), made.architecture)
    writer.add_name("made")
    writer.add_context_length(made.context)
    writer.add_embedding_length(made.width)
    writer.add_block_count(made.layers)
    writer.add_feed_forward_length(made.inner)
    writer.add_head_count(made.heads)
    writer.add_head_count_kv(made.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(made.width // made.heads)
    writer.add_vocab_size(made.vocabulary)
    writer.add_file_type(1)
    _add_tokenizer(writer, made.vocabulary)
    _add_tensors(writer, made)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    words = [f"\u2581{first}{second}".encode() for first, second in itertools.product(syllables, repeat=2)]
    ordinary = size - SPECIAL - BYTES
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(BYTES)), *words[:ordinary]]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * (SPECIAL + BYTES) + [-float(rank) for rank in range(ordinary)])
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * BYTES, *[NORMAL] * ordinary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)


def _add_tensors(writer: gguf.GGUFWriter, made: MadeModel) -> None:
    random = np.random.default_rng(made.seed)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", (0.05 * random.standard_normal((rows, columns))).astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(made.width, np.float32))

    keys = made.kv_heads * (made.width // made.heads)
    matrix("token_embd", made.vocabulary, made.width)
    norm("output_norm")
    matrix("output", made.vocabulary, made.width)
    for layer in range(made.layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        for name, rows in (("attn_q", made.width), ("attn_k", keys), ("attn_v", keys), ("attn_output", made.width)):
            matrix(f"{block}.{name}", rows, made.width)
        for name in ("ffn_gate", "ffn_up"):
            matrix(f"{block}.{name}", made.inner, made.width)
        matrix(f"{block}.ffn_down", made.width, made.inner)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
