"""The flags and variables that a server of a submission may get: a list of what is allowed, see docs/security.md.

A search space, a baseline and raw flags are checked alike, because each of them becomes words of a command line.
Allowed are the flags and variables that the shipped spaces write, `HARMLESS` flags, and what `tuner serve` adds. A
value is a number or a word without dots and slashes, so it names neither a file, nor an address, nor a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from search_spaces import load_space, space_names
from search_spaces.argv import long_name, one_spelling
from search_spaces.render import Written, written
from search_spaces.schema import ParameterSpec
from tuner.errors import SettingError, as_text

HARMLESS = frozenset(
    {
        "--disable-uvicorn-access-log",
        "--enable-auto-tool-choice",
        "--enable-log-requests",
        "--enable-prompt-tokens-details",
        "--generation-config",
        "--language-model-only",
        "--limit-mm-per-prompt.audio",
        "--limit-mm-per-prompt.image",
        "--limit-mm-per-prompt.video",
        "--max-logprobs",
        "--max-num-scheduled-tokens",
        "--reasoning-parser",
        "--seed",
        "--tool-call-parser",
        *(f"--compilation-config.{key}" for key in ("mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")),
    }
)
"""Flags of vLLM, and keys of their objects, that no shipped space has and that neither load code nor read files."""

SHIPPED_WORDS_ONLY = frozenset({"--speculative-config.method", "--speculative-config.model"})
"""Keys whose values choose code or models: vLLM's method `custom_class` imports its model's name as a class."""

FEW_WORDS = {"--generation-config": frozenset({"auto", "vllm"})}
"""Harmless flags whose other values name a folder or a hub's model."""

_WORD = re.compile(r"[A-Za-z0-9_+:,][A-Za-z0-9_+:,-]{0,199}", re.ASCII)
"""A plain word. A parser would take one with a dash in front for a flag."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[kKmMgGtT]?", re.ASCII)
_NO = "--no-"
_ASK = "leave it out, or ask the operator of the server to allow it"


@dataclass(frozen=True)
class Place:
    """A value and where it goes: a flag, or `FLAG.KEY` for a key of the flag's JSON object."""

    name: str
    value: object = None

    @property
    def flag(self) -> str:
        """The flag without keys; a flag that begins with `--no-` is that which it turns off."""
        return _turned_on(self.name.partition(".")[0])


@cache
def shipped() -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Return what vLLM's shipped spaces write: the words of each flag and key, and the variables."""
    words: dict[str, set[str]] = {}
    variables: set[str] = set()
    specs = [spec for name in space_names() for spec in load_space(name).specs.values()]
    for each in (each for spec in specs for each in written(spec)):
        if isinstance(each, Written) and each.variable is not None:
            variables.add(each.variable)
            continue
        for place in _places(each):
            known = words.setdefault(_turned_on(place.name), set())
            known |= {place.value} if isinstance(place.value, str) else set()
    return {name: frozenset(known) for name, known in words.items()}, frozenset(variables)


def check_words(field: str, words: Sequence[str], added: frozenset[str]) -> None:
    """Refuse words of a command line, which the setting `field` has, that a server may not get.

    `added` has the long names of the flags that this server allows beside the list.

    Raises:
        SettingError: with the first flag or value that is not allowed.
    """
    for place in _places(tuple(words)):
        _check(field, place, added)


def check_variable(field: str, name: str, value: object, added: frozenset[str]) -> None:
    """Refuse an environment variable, which the setting `field` has, that a server may not get.

    `added` names the variables that this server allows beside the list, with any value.

    Raises:
        SettingError: with the variable or its value.
    """
    if name in added:
        return
    allowed = shipped()[1]
    if name not in allowed:
        rule = f"this server does not allow the variable; allowed: {', '.join(sorted(allowed | added))}"
        raise SettingError(field, name, rule, "leave it out, or ask the operator of the server to allow it")
    _check_value(field, name, value)


def check_space(specs: Mapping[str, ParameterSpec], flags: frozenset[str], variables: frozenset[str]) -> None:
    """Refuse a search space that can give a server what it may not get, in whatever configuration.

    `specs` are all declared parameters, those of included files too; `flags` and `variables` are what this server adds.

    Raises:
        SettingError: about `space`.
    """
    for spec in specs.values():
        for each in written(spec):
            if isinstance(each, Written) and each.variable is not None:
                check_variable("space", each.variable, each.value, variables)
                continue
            for place in _places(each):
                _check("space", place, flags)


def _check(field: str, place: Place, added: frozenset[str]) -> None:
    if added & {place.flag, _turned_on(place.name)}:
        return
    words, _ = shipped()
    name = _turned_on(place.name)
    if name not in words and name not in HARMLESS:
        if place.value is None and any(known.startswith(f"{name}.") for known in {*words, *HARMLESS}):
            return  # the flag of a JSON object: its keys are checked one by one
        whole = sorted(known for known in {*words, *HARMLESS} if known.startswith(name) and "." not in known)
        remedy = f"write the whole name, such as {whole[0]}" if len(name) > 3 and whole else _ASK
        raise SettingError(field, place.name[:100], "this server does not allow the flag", remedy)
    few = words[name] if name in SHIPPED_WORDS_ONLY else FEW_WORDS.get(name)
    if few is not None and place.value not in (None, *few):
        rule = as_text(f"this server does not allow {str(place.value)[:60]!r} here")
        raise SettingError(field, name, rule, as_text(f"give one of {', '.join(sorted(few))}"))
    if place.value not in words.get(name, ()):
        _check_value(field, place.name, place.value)


def _check_value(field: str, name: str, value: object) -> None:
    if isinstance(value, str) and not (_NUMBER.fullmatch(value) or _WORD.fullmatch(value)):
        rule = as_text(f"this server allows numbers and plain words as values, not {value[:60]!r}")
        raise SettingError(field, name[:100], rule, _ASK)


def _turned_on(name: str) -> str:
    """Return the flag that `--no-FLAG` turns off; any other name as it is."""
    return f"--{name.removeprefix(_NO)}" if name.startswith(_NO) else name


def _places(given: Written | tuple[str, ...]) -> Iterator[Place]:
    """Yield each flag of a command line, and each of its values with its place."""
    if isinstance(given, Written):
        name = "" if given.flag is None else long_name(given.flag)
        yield Place(name if given.key is None else f"{name}.{given.key.removesuffix('[]')}", given.value)
        return
    name = ""
    for word in one_spelling(given):
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            name = word.removesuffix("+")
            yield Place(name)
        else:
            yield from _values(name, word)


def _values(name: str, word: str) -> Iterator[Place]:
    """Yield the leaves of a JSON object or list with their places; any other word is one value."""
    if word.lstrip()[:1] not in ("{", "["):
        yield Place(name, word)
        return
    try:
        content = json.loads(word)
    except (ValueError, RecursionError):
        yield Place(name, word)
        return
    yield from _leaves(name, content)


def _leaves(name: str, content: object) -> Iterator[Place]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _leaves(f"{name}.{key}", value)
    elif isinstance(content, list):
        yield Place(name)
        for value in content:
            yield from _leaves(name, value)
    else:
        yield Place(name, content)
