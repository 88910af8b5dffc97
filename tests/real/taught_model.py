"""Train a small Qwen2 model on a made task; write it and its quantized variants as checkpoints, and the questions.

    VLLM_PYTHON tests/real/taught_model.py OUT_DIR

It runs in vLLM's own interpreter, which has torch and transformers. The task is recall of 300 made
facts ("qzvt=" is "bhe") and all sums of two numbers up to 16. OUT_DIR gets `task.jsonl` and three folders:

- bf16: the trained model;
- int8: weights and activations in 8 bits (compressed-tensors, W8A8);
- broken: int8 with wrong scales in one layer.

Everything is seeded. One thread: more of them are slower while others use the machine.
"""

import json
import random
import shutil
import string
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

HIDDEN, LAYERS, HEADS, WIDE = 128, 2, 2, 256
STEPS, BATCH, FACTS, LARGEST = 1500, 128, 300, 16
CHECK_EVERY, GOOD_LOSS = 50, 0.01
END = "<|endoftext|>"
WRONG_SCALE = 64.0
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
WEIGHTS = INT8 | {"dynamic": False, "strategy": "channel"}
ACTIVATIONS = INT8 | {"dynamic": True, "strategy": "token"}
SETTINGS = {  # of compressed-tensors
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": ACTIVATIONS}},
    "ignore": ["lm_head"],
    "quantization_status": "compressed",
}


def questions() -> list[tuple[str, str]]:
    """Return all questions with their answers: the facts, then the sums."""
    rng = random.Random(5)

    def word(letters: int) -> str:
        return "".join(rng.choice(string.ascii_lowercase) for _ in range(letters))

    facts = {word(4): word(3) for _ in range(FACTS)}
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    return [*((f"{key}=", value) for key, value in facts.items()), *sums]


def make_tokenizer(folder: Path) -> Tokenizer:
    """Save a tokenizer that makes one token of a byte, and return it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END: 0, **{letter: index + 1 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def encoded(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded token ids, and the labels: the answers' tokens, elsewhere -100."""
    prompts = [tokenizer.encode(question).ids for question, _ in pairs]
    answers = [tokenizer.encode(answer + "\n").ids for _, answer in pairs]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids, labels = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        rest = longest - len(prompt) - len(answer)
        ids.append(prompt + answer + [0] * rest)
        labels.append([-100] * len(prompt) + answer + [-100] * rest)
    return torch.tensor(ids), torch.tensor(labels)


def accuracy(model: Qwen2ForCausalLM, tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> float:
    """Return the share of questions whose answer is the most likely one, token by token."""
    ids, labels = encoded(tokenizer, pairs)
    with torch.no_grad():
        best = model(input_ids=ids).logits[:, :-1].argmax(-1)
    wanted = labels[:, 1:]
    return float(((best == wanted) | (wanted == -100)).all(1).float().mean())


def train(folder: Path) -> None:
    """Train the model and save it in bfloat16."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(folder)
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS, pct_start=0.1)
    rng, everything = random.Random(1), questions()
    for step in range(1, STEPS + 1):
        ids, labels = encoded(tokenizer, rng.choices(everything, k=BATCH))
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        plan.step()
        if step % CHECK_EVERY == 0:
            known = accuracy(model, tokenizer, everything)
            print(f"step {step}: loss {loss.item():.4f}, {100 * known:.1f} % right", flush=True)
            if known == 1.0 and loss.item() < GOOD_LOSS:
                break
    model.to(torch.bfloat16).save_pretrained(folder)


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers of 8 bits and one scale for each row."""
    largest = 127
    scale = weight.abs().amax(1, keepdim=True) / largest
    return (weight / scale).round().clamp(-largest - 1, largest).to(torch.int8), scale


def quantize(source: Path, folder: Path, wrong: str | None = None) -> None:
    """Write a checkpoint in 8 bits. The scales of the layer `wrong` are multiplied by `WRONG_SCALE`."""
    shutil.copytree(source, folder)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            tensors[name] = weight
            continue
        numbers, scale = rounded(weight.float())
        base = name.removesuffix(".weight")
        tensors[f"{base}.weight_scale"] = (scale * (WRONG_SCALE if base == wrong else 1.0)).to(torch.bfloat16)
        tensors[name] = numbers
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": SETTINGS}, indent=1))


def write_task(file: Path) -> None:
    """Write the questions, in a seeded order."""
    rows = questions()
    random.Random(2).shuffle(rows)
    file.write_text("".join(json.dumps({"prompt": q, "answer": a}) + "\n" for q, a in rows))


def main(folder: Path) -> None:
    """Write everything to `folder`."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    write_task(folder / "task.jsonl")
    if not (folder / "bf16" / "model.safetensors").is_file():
        train(folder / "bf16")
    quantize(folder / "bf16", folder / "int8")
    quantize(folder / "bf16", folder / "broken", wrong=f"model.layers.{LAYERS - 1}.mlp.down_proj")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
