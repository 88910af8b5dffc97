"""Make a small Qwen2 model folder (config and tokenizer, no weights) for vLLM's dummy loader.

    python tests/real/tiny_model.py OUT_DIR

Four layers of width 256, a 4,096-word byte-level BPE tokenizer trained on made text: small enough for two CPU cores,
real enough that vLLM runs every step it runs for a large model. Needs the package `tokenizers`.
"""

import json
import random
import sys
from pathlib import Path

VOCABULARY = 4096
CONSONANTS, VOWELS = "bcdfghjklmnprstvz", "aeiou"


def made_text(words: int, seed: int) -> list[str]:
    """Return lines of pronounceable made-up words, so that no text of others is needed."""
    rng = random.Random(seed)
    lexicon = [
        "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 4))) for _ in range(6000)
    ]
    return [" ".join(rng.choices(lexicon, k=20)) for _ in range(words // 20)]


def make_tokenizer(folder: Path) -> int:
    """Train and save the tokenizer; return the id of its end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(made_text(60_000, seed=7), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} words, {VOCABULARY} were wanted")
    end = tokenizer.token_to_id("<|endoftext|>")
    assert isinstance(end, int)
    return end


def make_model(folder: Path) -> Path:
    """Write config.json, generation_config.json and the tokenizer's files to `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    end = make_tokenizer(folder)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "max_window_layers": 4,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": end,
        "eos_token_id": end,
        "use_cache": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": end, "eos_token_id": end}))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1))
    return folder


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1])))
