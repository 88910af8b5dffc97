"""The shipped recipes: which hold for a model, a card and a load, and that each is valid where it holds."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from search_spaces import Context, SpaceError, hardware_named, join, known_model, load_space

NOT_HELD: dict[str, set[str]] = {
    "vllm-extra": {"awq", "awq-int8-marlin", "mtp", "eagle3", "draft", "hybrid-prefix-caching"},
    "kv-offload": set(),
    "sglang": {"throughput"},
    "llama.cpp": {"slots-8"},
}
"""Recipes that hold in no context here, by space."""

MODELS = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
)
CARDS = ("t4", "a100", "h200", "rtx5090")
PACKAGES = frozenset({"haproxy", "arctic_inference", "flashinfer"})

ONE_USER: dict[str, Any] = {"concurrency": 1, "input_len": 512, "output_len": 128, "repetitive": True, "prefix_len": 0}
FIFTY: dict[str, Any] = {
    "concurrency": 50, "input_len": 512, "output_len": 512, "repetitive": False, "prefix_len": 0, "tpot_ms": 50.0
}  # fmt: skip
MIX: dict[str, Any] = {
    "request_rate": 20.0, "input_len": 6000, "output_len": 256, "repetitive": False, "prefix_len": 0, "tpot_ms": 40.0
}  # fmt: skip
DOCUMENTS: dict[str, Any] = {
    "concurrency": 256, "input_len": 12_000, "output_len": 200, "repetitive": False, "prefix_len": 12_000, "tpot_ms": 50
}  # fmt: skip

MANY: dict[str, Any] = {
    "request_rate": 100.0, "input_len": 300, "output_len": 100, "repetitive": False, "prefix_len": 0
}  # fmt: skip


def context(model: str, card: str, version: str | None = "0.25.1", gpus: int = 1, **load: Any) -> Context:
    return Context(
        hardware_named(card),
        engine_version=version,
        model=known_model(model),
        packages=PACKAGES,
        gpus=gpus,
        host_memory_gib=512.0,
        shm_gib=256.0,
        **load,
    )


def tried(space: str, facts: Context, **choices: Any) -> list[str]:
    return [name for name, reason in load_space(space).resolve(facts, **choices).recipes.items() if reason is None]


@pytest.mark.parametrize(
    ("model", "card", "gpus", "load", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", "t4", 1, FIFTY, ["steps-of-8192", "exact-graphs"]),
        ("Qwen/Qwen2.5-0.5B", "t4", 1, {**FIFTY, "temperature": 0.0}, ["suffix", "steps-of-8192", "exact-graphs"]),
        ("Qwen/Qwen2.5-7B-Instruct", "h200", 1, FIFTY, ["fp8-weights", "graphs-of-prompts"]),
        ("Qwen/Qwen2.5-7B-Instruct", "h200", 1, MANY, ["fp8-weights", "api-servers-2", "graphs-of-prompts"]),
        ("Qwen/Qwen2.5-7B-Instruct", "a100", 1, FIFTY, ["steps-of-8192"]),
        (
            "Qwen/Qwen2.5-7B-Instruct", "a100", 1, ONE_USER,
            ["fp8-weights-marlin", "suffix", "ngram", "steps-of-8192", "interactivity"],
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            "h200",
            2,
            MIX,
            ["fp8-weights", "tensor-parallel-2", "expert-parallel-2", "data-parallel-2", "data-parallel-experts-2",
             "smaller-steps", "larger-steps", "fp8-kv-cache"],
        ),
        ("Qwen/Qwen3-30B-A3B", "h200", 1, MIX, ["fp8-weights", "smaller-steps", "larger-steps", "fp8-kv-cache"]),
        # Its weights are quantized already (MXFP4), and 256 users of 12,200 tokens fill the cache.
        (
            "openai/gpt-oss-20b", "h100", 1, DOCUMENTS,
            ["smaller-steps", "larger-steps", "fewer-sequences", "fp8-kv-cache"],
        ),
    ],
)  # fmt: skip
def test_what_is_tried(model: str, card: str, gpus: int, load: dict[str, Any], expected: list[str]) -> None:
    version = "0.15.1" if card == "t4" else "0.25.1"
    assert tried("vllm", context(model, card, version, gpus, **load)) == expected


def test_shared_documents_get_a_cache_in_the_hosts_memory() -> None:
    assert "offload-128" in tried("vllm-extra", context("Qwen/Qwen2.5-7B-Instruct", "h100", **DOCUMENTS))
    assert "offload-128" not in tried("vllm-extra", context("Qwen/Qwen2.5-7B-Instruct", "h100", **FIFTY))


def test_hybrids_cache_prefixes_by_default_from_0_27() -> None:
    name = "Qwen/Qwen3.5-9B"
    tries = {each: tried("vllm", context(name, "h200", each, **DOCUMENTS)) for each in ("0.26.0", "0.27.0")}
    assert "hybrid-prefix-caching" in tries["0.26.0"]
    assert "hybrid-prefix-caching" not in tries["0.27.0"]


def test_what_a_study_excludes_is_no_recipe() -> None:
    facts = context("Qwen/Qwen2.5-7B-Instruct", "h200", **FIFTY)
    kept = load_space("vllm").resolve(facts, keep_answers=True)
    assert "fp8-weights" not in kept.recipes
    reason = next(each.reason for each in kept.dropped if each.parameter == "named:fp8-weights")
    assert "it may change the model's answers" in reason
    assert tried("vllm", facts, only=["max_num_seqs"]) == []


def test_an_unknown_fact_tries_nothing() -> None:
    assert tried("vllm", Context(hardware_named("h200"))) == []


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("space", NOT_HELD)
def test_every_recipe_is_valid_where_it_holds_and_holds_somewhere(space: str, every: bool) -> None:
    """A recipe that holds lies in the space, breaks no rule and is not what the engine does by default.

    Drafts and checkpoints need a model that the contexts here do not have. Unless `every` load is tried, each
    combination of model, card and GPUs has one load, so that each load meets each model, card and number of GPUs.
    """
    vllm = space not in ("sglang", "llama.cpp")
    held: set[str] = set()
    loads = (ONE_USER, FIFTY, MIX, DOCUMENTS, MANY)
    for a, b, c in itertools.product(range(len(MODELS)), range(len(CARDS)), range(4)):
        model, card, gpus = MODELS[a], CARDS[b], 2**c
        for load in loads if every else (loads[(a + b + c) % len(loads)],):
            resolved = load_space(space).resolve(context(model, card, "0.25.1" if vllm else None, gpus, **load))
            for name, reason in resolved.recipes.items():
                if reason is None:
                    held.add(name)
                    config = resolved.named[name].config
                    assert 1 <= len(config) <= 3, name
                    assert resolved.contains(config), name
                    assert resolved.violations(config) == [], name
                    assert not resolved.is_reference(config), f"{name} on {card} with {model}"
    declared = {name for name, each in load_space(space).named.items() if each.when is not None}
    assert declared - held == NOT_HELD[space]


def test_recipes_of_a_users_own_space(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    text = """
parameters:
  tokens: {{description: d, type: int, low: 1, high: 9, flag: --tokens, engine_default: 5}}
named:
  few: {{config: {{tokens: 1}}, when: {when}, note: n, source: ours}}
  same: {{config: {{tokens: 5}}, when: 'True', note: n, source: ours}}
  plain: {{config: {{tokens: 2}}, note: n, source: ours}}
"""
    file.write_text(text.format(when="workload.concurrency > 8"))
    for users, expected in ((9, ["few"]), (8, []), (None, [])):
        resolved = load_space(file).resolve(Context(hardware_named("cpu"), concurrency=users))
        assert [name for name, reason in resolved.recipes.items() if reason is None] == expected
        assert resolved.recipes["same"] == "these are the engine's defaults"
    joined = join({"vllm": load_space(file).resolve(Context(hardware_named("cpu"), concurrency=9)), "sglang": resolved})
    assert {name for name, reason in joined.recipes.items() if reason is None} == {"few"}
    assert set(joined.recipes) == {"few", "same", "sglang=few", "sglang=same"}
    file.write_text(text.format(when="workload.concurency > 8"))
    with pytest.raises(SpaceError, match=r"own.yaml:5: when of 'few' uses .*did you mean 'workload.concurrency'"):
        load_space(file)
