"""The check of arguments against the dump of the installed parser."""

from pathlib import Path
from typing import Any

import pytest

from tuner.engines.server.flags import cached_flags, flags_from_dump, load_flags


def entry(*names: str, **known: Any) -> dict[str, Any]:
    return {"names": list(names), "choices": None, "type": "str", "nargs": None, **known}


DUMP = [
    entry(dest="model_tag", nargs="?"),
    entry("--max-num-seqs", type="int"),
    entry("--gpu-memory-utilization", "--device-memory-utilization", type="float"),
    entry("--kv-cache-dtype", choices=["auto", "fp8"]),
    entry("--enforce-eager", "--no-enforce-eager", nargs=0, type=None),
    entry("--cudagraph-capture-sizes", nargs="+", type="int"),
    entry("--compilation-config", "-cc", type="union"),
    entry("--optimization-level"),
    entry("--max-model-len", type="human_readable_int_or_auto"),
    entry("--hf-token", nargs="?"),
]
FLAGS = flags_from_dump(DUMP, "vLLM")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--max-num-seqs", "32"],
        ["--max-num-seqs=32", "--enforce-eager", "--no-enforce-eager"],
        ["--max_num_seqs", "32"],
        ["--device-memory-utilization", ".95"],
        ["--cudagraph-capture-sizes", "1", "2", "4", "--enforce-eager"],
        ["-cc", '{"cudagraph_mode": "NONE"}', "-cc.mode=3", "--compilation-config.mode", "3"],
        ["-O2", "-O", "3", "--optimization-level", "1"],
        ["--max-model-len", "-1"],
        ["--max-model-len", "16k", "--hf-token", "--enforce-eager"],
    ],
)
def test_arguments_that_the_parser_accepts_pass(words: list[str]) -> None:
    assert FLAGS.problem(words) is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--swap-space", "4"], "--swap-space is not a flag of the installed vLLM"),
        (["--gpu-memory", "0.9"], "--gpu-memory is short for --gpu-memory-utilization; write it in full"),
        (["--no-enforce"], "--no-enforce is short for --no-enforce-eager; write it in full"),
        (["--max-num-seqs", "many"], "--max-num-seqs: 'many' is not a whole number"),
        (["--max-num-seqs=1.5"], "--max-num-seqs: '1.5' is not a whole number"),
        (["--max-num-seqs"], "--max-num-seqs: a value is missing"),
        (["--max-num-seqs", "--enforce-eager"], "--max-num-seqs: a value is missing"),
        (["--gpu-memory-utilization", "most"], "--gpu-memory-utilization: 'most' is not a number"),
        (["--kv-cache-dtype", "fp4"], "--kv-cache-dtype: 'fp4' is not one of auto, fp8"),
        (["--cudagraph-capture-sizes", "1", "x"], "--cudagraph-capture-sizes: 'x' is not a whole number"),
        (["--cudagraph-capture-sizes"], "--cudagraph-capture-sizes: a value is missing"),
        (["--enforce-eager=yes"], "--enforce-eager: it takes no value, but 'yes' was given"),
        (["--enforce-eager", "yes"], "'yes' is in the place of a flag"),
        (["-sc.method=ngram"], "-sc.method is not a flag of the installed vLLM"),
    ],
)
def test_an_argument_that_the_parser_would_refuse_is_named(words: list[str], reason: str) -> None:
    assert FLAGS.problem(words) == reason


def test_names_contains_every_name_of_each_flag() -> None:
    assert {"--no-enforce-eager", "-cc", "--device-memory-utilization"} <= FLAGS.names
    assert "model_tag" not in FLAGS.names


def test_a_dump_is_cached_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "vllm" / "flags.json"
    assert cached_flags(path, "vLLM", lambda: None) is None
    assert cached_flags(path, "vLLM", lambda: {"flags": DUMP}) == FLAGS
    assert cached_flags(path, "vLLM", lambda: None) == load_flags(path, "vLLM") == FLAGS
    path.write_text("{")
    assert load_flags(path, "vLLM") is None
