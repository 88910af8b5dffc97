"""The options of TensorRT-LLM's LLM API, which `trtllm-serve` reads from a YAML file, as words of a command line.

A trial, its record and a user's arguments name an option as `--config.KEY VALUE`, such as
`--config.kv_cache_config.dtype fp8`. The program has no such flags: where a server is started, the words become the
file of `--extra_llm_api_options`. Its newer name is `--config`; every version whose sources were read takes the older
one. An option of the file overrides the flag of the same meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_spaces.yaml_file import YamlError, parse_yaml
from tuner.errors import SettingError
from tuner.processes.secrets import referenced

FILE_FLAG = "--extra_llm_api_options"
FILE_FLAGS = ("--config", FILE_FLAG)
PREFIX = "--config."

METRICS_OPTIONS = ("--config.return_perf_metrics", "--config.enable_iter_perf_stats")
"""Options without which a server has no page of metrics, or not those of its iterations."""


def split_options(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the words that are no options, and the options as nested mappings. The last value of an option counts.

    Raises:
        SettingError: for an option without a value or with one that is no YAML, and for one within another's value.
    """
    plain: list[str] = []
    options: dict[str, Any] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith(PREFIX):
            plain.append(word)
            continue
        flag, given, text = word.partition("=")
        if not given:
            if position == len(words) or words[position].startswith("--"):
                raise _refused(flag, "a value is missing")
            text = words[position]
            position += 1
        _set(options, flag, _value(flag, text))
    return tuple(plain), options


def _value(flag: str, text: str) -> Any:
    try:
        return parse_yaml(text.encode(), Path(flag)).data
    except (YamlError, UnicodeEncodeError):
        raise _refused(flag, f"{text!a} is not a value in YAML") from None


def _set(options: dict[str, Any], flag: str, value: Any) -> None:
    *path, last = flag.removeprefix(PREFIX).split(".")
    place = options
    for key in path:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise _refused(flag, f"{key} has a value of its own")
    if not all((*path, last)):
        raise _refused(flag, "a key is empty")
    if isinstance(place.get(last), dict) and not isinstance(value, dict):
        raise _refused(flag, f"options within {last} are given, too")
    place[last] = value


def check_options(arguments: Sequence[str]) -> None:
    """Refuse a user's options that no file can hold.

    Raises:
        SettingError: as `split_options`, and for a secret, which a file would show.
    """
    plain, _ = split_options(arguments)
    if referenced(arguments) - referenced(plain):
        rule = "an option is written to a file, and a secret is not"
        raise SettingError("server_arguments", PREFIX + "…", rule, "give a variable of the server by {env}")


def _refused(flag: str, rule: str) -> SettingError:
    return SettingError("server_arguments", flag, rule, "give it as --config.KEY VALUE")
