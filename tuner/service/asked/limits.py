"""The limits of each setting of a submission, so that what no study needs is refused before it is queued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tuner.errors import SettingError
from tuner.study.specification.settings import read_duration
from tuner.use_cases.keywords import Keywords

LARGEST_CONTENT = 1_000_000
"""Most characters of one file's content."""

MOST_GPUS = 1024
"""Most GPUs of a study."""


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`, both included."""

    least: float
    most: float


@dataclass(frozen=True)
class Text:
    """A text of at most `longest` characters."""

    longest: int


@dataclass(frozen=True)
class Entries:
    """A list, or a mapping, of at most `most` texts, each of at most `longest` characters; a name counts as one."""

    most: int
    longest: int


NAME = Text(300)
LIMITS: Mapping[str, Number | Text | Entries] = {
    "trials": Number(1, 10_000),
    "preset": NAME,
    "model": Text(4096),
    "tokenizer": Text(4096),
    "objective": Entries(20, 200),
    "slo": Entries(50, 200),
    "quality_task": Text(LARGEST_CONTENT),
    "workload": Entries(20, LARGEST_CONTENT),
    "rate": Number(0, 1e6),
    "max_concurrency": Number(1, 100_000),
    "num_prompts": Number(1, 1_000_000),
    "input_len": Number(1, 10_000_000),
    "output_len": Number(1, 10_000_000),
    "temperature": Number(0, 100),
    "space": Text(LARGEST_CONTENT),
    "only": Entries(500, 300),
    "enqueue": Entries(200, 10_000),
    "baseline": Text(10_000),
    "server_arguments": Entries(200, 10_000),
    "env": Entries(100, 10_000),
    "secret": Entries(50, 300),
    "engine": NAME,
    "gpu": NAME,
    "vllm_version": NAME,
    "price": Number(0, 1e6),
    "gpus_per_trial": Number(1, MOST_GPUS),
    "nodes_per_trial": Number(1, MOST_GPUS),
    "timeout": Number(0, 366 * 86400.0),
    "seed": Number(0, 2**63 - 1),
    "sampler": NAME,
    "learn_from": Entries(20, 300),
    "finalists": Number(1, 100),
    "confirm_rounds": Number(0, 100),
    "search_load": Number(0, 1),
    "min_gain": Number(0, 1000),
}
"""By keyword; a switch needs none, and `study` is the submission's id."""


def check_limits(keywords: Keywords) -> None:
    """Refuse values beyond the limits.

    Raises:
        SettingError: with the first setting that is.
    """
    for each in fields(keywords):
        value, limit = getattr(keywords, each.name), LIMITS.get(each.name)
        if value is None or limit is None:
            continue
        if each.name == "timeout" and isinstance(value, str):
            _check_text(each.name, value, NAME.longest)
            value = read_duration(each.name, value)
        if isinstance(limit, Number):
            _check_number(each.name, value, limit)
        elif isinstance(limit, Text):
            _check_text(each.name, value, limit.longest)
        else:
            _check_entries(each.name, value, limit)


def _check_number(name: str, value: float, limit: Number) -> None:
    if not limit.least <= value <= limit.most:  # NaN is not, either
        rule = f"a service takes {limit.least:,.0f} to {limit.most:,.0f}"
        raise SettingError(name, value, rule, "lower it" if value > limit.most else "give one of these")


def _check_text(name: str, value: str, longest: int) -> None:
    if len(value) > longest:
        rule = f"{name} has {len(value):,} characters, and {longest:,} are the most"
        raise SettingError(name, None, rule, "shorten it")


def _check_entries(name: str, value: Mapping[str, str] | tuple[str, ...], limit: Entries) -> None:
    if len(value) > limit.most:
        rule = f"{name} has {len(value):,} entries, and {limit.most:,} are the most"
        raise SettingError(name, None, rule, "leave some out")
    texts = [text for pair in value.items() for text in pair] if isinstance(value, Mapping) else value
    for text in texts:
        _check_text(name, text, limit.longest)
