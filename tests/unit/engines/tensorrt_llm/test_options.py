"""Options as words of a command line, and as the file that `trtllm-serve` reads."""

from __future__ import annotations

import pytest
import yaml

from search_spaces.yaml_file import plain_yaml
from tuner.engines.command_line import check_server_arguments
from tuner.engines.tensorrt_llm.options import check_options, split_options
from tuner.errors import SettingError

ENGINE = "tensorrt-llm"


def test_words_become_nested_options_of_their_types_and_the_last_value_counts() -> None:
    words = ("--max_batch_size", "8", "--config.a.b", "fp8", "--config.a.c=0.5", "--flag", "--config.a.b", "8")
    more = ("--config.on", "true", "--config.none", "null", "--config.sizes", "[1, 2]", "--config.shift", "-1")
    plain, options = split_options((*words, *more))
    assert plain == ("--max_batch_size", "8", "--flag")
    assert options == {"a": {"b": 8, "c": 0.5}, "on": True, "none": None, "sizes": [1, 2], "shift": -1}
    assert yaml.safe_load(plain_yaml(options)) == options
    assert list(options) == ["a", "on", "none", "sizes", "shift"]


def test_words_without_options_give_an_empty_file() -> None:
    assert split_options(("--max_batch_size", "8")) == (("--max_batch_size", "8"), {})
    assert yaml.safe_load(plain_yaml({})) == {}


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--config.a",), "--config.a: a value is missing"),
        (("--config.a", "--config.b", "1"), "--config.a: a value is missing"),
        (("--config.a", "[1"), "--config.a: '[1' is not a value in YAML"),
        (("--config.a", "1", "--config.a.b", "1"), "--config.a.b: a has a value of its own"),
        (("--config.a.b", "1", "--config.a", "null"), "--config.a: options within a are given, too"),
        (("--config.a..b", "1"), "--config.a..b: a key is empty"),
        (("--config.", "1"), "--config.: a key is empty"),
    ],
)
def test_what_no_file_can_hold_is_refused(words: tuple[str, ...], rule: str) -> None:
    with pytest.raises(SettingError, match=r"give it as --config\.KEY VALUE") as caught:
        check_options(words)
    assert f"{caught.value.value}: {caught.value.rule}" == rule


def test_a_secret_in_an_option_is_refused_and_in_a_flag_is_not() -> None:
    check_options(("--custom", "${HF_TOKEN}"))
    with pytest.raises(SettingError, match="an option is written to a file, and a secret is not"):
        check_options(("--config.a", "${HF_TOKEN}"))


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--config", "give each option as --config.KEY VALUE, such as --config.kv_cache_config.dtype fp8"),
        ("--extra_llm_api_options", "give each option as --config.KEY VALUE"),
        ("--config.return_perf_metrics", "leave it out"),
        ("--backend", "leave it out"),
        ("--tp_size", "leave it out: a trial of TensorRT-LLM has one GPU"),
    ],
)
def test_a_flag_that_the_tuner_sets_is_refused_with_a_remedy(flag: str, remedy: str) -> None:
    for words in ((flag, "x"), (f"{flag}=x",)):
        with pytest.raises(SettingError) as caught:
            check_server_arguments(words, ENGINE)
        assert caught.value.value == flag
        assert remedy in str(caught.value)


def test_options_of_a_user_pass() -> None:
    check_server_arguments(("--config.kv_cache_config.dtype", "fp8", "--max_seq_len", "4096"), ENGINE)
