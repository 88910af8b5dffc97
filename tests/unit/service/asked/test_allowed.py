"""The list of flags and variables that a server of a submission may get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import search_spaces
from search_spaces import load_space, space_names
from search_spaces.loader import parse_space
from tuner.errors import SettingError
from tuner.service.asked.allowed import check_space, check_variable, check_words, shipped

NONE: frozenset[str] = frozenset()


def refused(*words: str) -> SettingError:
    with pytest.raises(SettingError) as caught:
        check_words("server_arguments", words, NONE)
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "8"],
        ["--max_num_seqs=8"],
        ["-tp", "2"],
        ["-O3"],
        ["-cc.mode", "3"],
        ["--compilation-config", '{"mode": 3, "pass_config": {"fuse_norm_quant": true}}'],
        ["--compilation-config.custom_ops+", "+rms_norm"],
        ["--compilation-config", '{"custom_ops": ["+rms_norm", "-quant_fp8"]}'],
        ["--no-enable-prefix-caching"],
        ["--gpu-memory-utilization", ".95"],
        ["--max-model-len", "32k"],
        ["--max-model-len", "-1"],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--attention-backend", "TRITON_ATTN"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["--limit-mm-per-prompt", '{"image": 0}'],
        ["--reasoning-parser", "qwen3", "--seed", "1"],
        ["--generation-config", "vllm"],
    ],
)
def test_flags_of_the_list_are_allowed_in_each_spelling(words: list[str]) -> None:
    check_words("server_arguments", words, NONE)


LOADS_OR_READS = [
    "--trust-remote-code",
    "--trust_remote_code",
    "--trust-remote-code=true",
    "--TRUST-REMOTE-CODE",
    "--tr",
    "-trust-remote-code",
    "--config=/etc/x.yaml",
    "--conf",
    "--hf-overrides.auto_map=x",
    "--hf_overrides={}",
    "--worker-cls=os.system",
    "--worker-extension-cls",
    "--middleware=x.y",
    "--scheduler-cls",
    "--logits-processors",
    "--tool-parser-plugin",
    "--reasoning-parser-plugin",
    "--io-processor-plugin",
    "--distributed-executor-backend",
    "--kv-transfer-config",
    "--chat-template",
    "--lora-modules",
    "--ssl-keyfile",
    "--allowed-local-media-path",
    "--otlp-traces-endpoint",
    "--model",
    "--load-format",
    "--model-loader-extra-config",
    "--compilation-config.backend",
    "-cc.inductor_passes",
    "-O.backend",
    "--speculative-config.draft_load_config",
    "--additional-config",
    "--no-trust-remote-code",
]


@pytest.mark.parametrize("flag", LOADS_OR_READS)
def test_flags_that_load_code_or_read_files_are_not_on_the_list(flag: str) -> None:
    assert refused(flag, "x").rule == "this server does not allow the flag"


def test_an_abbreviation_is_refused_with_the_whole_name() -> None:
    assert refused("--max-model", "5").remedy == "write the whole name, such as --max-model-len"


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "/etc/passwd"],
        ["--attention-backend", "os.path"],
        ["--reasoning-parser", "../x"],
        ["--tool-call-parser", "http://169.254.169.254/"],
        ["--quantization", "${HOME}"],
        ["--compilation-config", '{"cudagraph_mode": "a.B"}'],
        ["--compilation-config", '{"custom_ops": ["--x"]}'],
        ["--seed", ""],
        ["--seed", "1\n--x"],
    ],
)
def test_a_value_names_no_file_no_address_and_no_class(words: list[str]) -> None:
    assert refused(*words).rule.startswith("this server allows numbers and plain words as values")


def test_the_method_of_drafts_is_one_of_the_shipped() -> None:
    found = refused("--speculative-config", '{"method": "custom_class", "model": "evil"}')
    assert (found.field, found.value) == ("server_arguments", "--speculative-config.method")
    assert refused("--generation-config", "gpt2").remedy == "give one of auto, vllm"  # a hub's model
    assert refused("--speculative-config.model", "evil").remedy == "give one of {{draft_model}}"


def test_a_word_before_the_first_flag_is_refused() -> None:
    assert refused("evil").rule == "this server does not allow the flag"


def test_variables_are_on_a_list() -> None:
    check_variable("env", "VLLM_USE_FLASHINFER_SAMPLER", "1", NONE)
    check_variable("env", "ANY", "/x", frozenset({"ANY"}))
    for name, value in (("LD_PRELOAD", "x"), ("PYTHONPATH", "x"), ("VLLM_USE_FLASHINFER_SAMPLER", "/x")):
        with pytest.raises(SettingError):
            check_variable("env", name, value, NONE)


@pytest.mark.parametrize("name", space_names())
def test_every_shipped_space_is_allowed(name: str) -> None:
    check_space(load_space(name).specs, NONE, NONE)


def test_the_list_is_what_the_files_of_the_spaces_name() -> None:
    """Compared with the flags that a search for `--` finds in the texts of the files."""
    texts = [path.read_text() for path in (Path(search_spaces.__file__).parent / "vllm").glob("*.yaml")]
    found = {flag for text in texts for flag in re.findall(r"(?:flag: |args: \[)(--[a-z0-9-]+)", text)}
    assert {f"--{flag.removeprefix('--no-').removeprefix('--')}" for flag in found} | {"--cudagraph-capture-sizes"} == {
        name.partition(".")[0] for name in shipped()[0]
    }


@pytest.mark.parametrize(
    "lines",
    [
        ["type: bool", "flag: --trust-remote-code"],
        ["type: bool", "flag: --enforce-eager", "no_flag: --no-trust-remote-code"],
        ["type: int", "low: 1", "high: 2", "flag: --ssl-keyfile"],
        ["type: int", "low: 1", "high: 2", "env: LD_PRELOAD"],
        ["type: int", "low: 1", "high: 2", "json: {flag: --compilation-config, key: backend}"],
        ["type: categorical", "choices: [{value: a, args: [--trust-remote-code]}]"],
        ["type: categorical", "choices: [{value: a, args: [--max-num-seqs, '1', --tr]}]"],
        ["type: categorical", "choices: [{value: a, env: {LD_PRELOAD: x}}]"],
        ["type: categorical", "choices: [{value: a, env: {VLLM_USE_FLASHINFER_SAMPLER: /x}}]"],
        ["type: categorical", "choices: [/etc/passwd]", "flag: --attention-backend"],
        ["type: categorical", "choices: [--trust-remote-code]", "flag: --attention-backend"],
        ["type: categorical", "choices: [-tr]", "flag: --attention-backend"],
        [
            "type: categorical",
            "json: {flag: --speculative-config, key: method}",
            "choices: [{value: a, json: {model: a/b}}]",
        ],
    ],
)
def test_a_space_with_anything_else_is_refused(lines: list[str]) -> None:
    text = "parameters:\n  own:\n" + "".join(f"    {line}\n" for line in ("description: x", *lines))
    with pytest.raises(SettingError) as caught:
        check_space(parse_space(text).specs, NONE, NONE)
    assert caught.value.field == "space"
