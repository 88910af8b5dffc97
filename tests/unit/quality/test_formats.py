"""Which flags and variables of a server change the answers."""

from __future__ import annotations

import pytest

from tuner.quality.examiner import FORMAT_FLAGS, formats_of, split_flags, without_format_variables


@pytest.mark.parametrize(
    ("argv", "kept", "taken"),
    [
        ("--quantization fp8 --block-size 32", "--block-size 32", "--quantization fp8"),
        ("--block-size 32 --quantization=fp8 --seed 1", "--block-size 32 --seed 1", "--quantization=fp8"),
        ("-q awq --enforce-eager", "--enforce-eager", "-q awq"),
        ("--kv_cache_dtype fp8", "", "--kv_cache_dtype fp8"),
        ("--speculative-config.method=ngram --seed 1", "--seed 1", "--speculative-config.method=ngram"),
        ("--seed 1", "--seed 1", ""),
    ],
)
def test_flags_are_taken_with_their_values(argv: str, kept: str, taken: str) -> None:
    assert split_flags(argv.split(), FORMAT_FLAGS) == (tuple(kept.split()), tuple(taken.split()))


def test_servers_with_the_same_formats_have_the_same_name() -> None:
    variables = {"VLLM_MARLIN_INPUT_DTYPE": "int8", "HF_HUB_OFFLINE": "1"}
    one = formats_of("m", ["--max-num-seqs", "8", "--quantization", "fp8"], variables)
    assert one == formats_of("m", ["--quantization", "fp8"], {"VLLM_MARLIN_INPUT_DTYPE": "int8"})
    assert one == "m --quantization fp8 VLLM_MARLIN_INPUT_DTYPE=int8"
    assert without_format_variables(variables) == {"HF_HUB_OFFLINE": "1"}
