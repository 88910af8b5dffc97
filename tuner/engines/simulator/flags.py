"""Reads the command line of `vllm serve` as vLLM 0.15 to 0.32 do, and refuses what they refuse.

A prediction depends on some flags. Others have no effect on speed and are accepted, and the rest is not simulated;
`flags.yaml` lists all of them.

The search space is the only place where these defaults are written down.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from search_spaces import Context, HardwareProfile, load_space
from search_spaces.argv import VLLM_NAMES, completed, dotted_object, one_spelling, whole_number
from search_spaces.yaml_file import read_yaml

_FILE = Path(__file__).with_name("flags.yaml")
_NOT_NEGATIVE = ("whole_numbers", "sizes", "numbers", "optional_numbers")
"""Forms of the flags that are read, each of which has a rule of its own in vLLM for negative numbers."""
_NONE = ("", "None")
"""The values by which vLLM's parser leaves out a flag that may have none."""
_MOST_DOTS = 20
_LIKENESS = 0.8
"""How alike two flags are at least, of 0 to 1, for one to be a misspelling of the other."""


class FlagError(ValueError):
    """An argument that vLLM would refuse; the message is one line."""


class UnknownFlagError(FlagError):
    """A flag that the simulator does not read, although vLLM may have it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the value of each flag under its name with underscores; None for a flag that is not given.

    Args:
        arguments: the arguments after `vllm serve MODEL`.

    Raises:
        UnknownFlagError: for a flag or a value that is not simulated, which vLLM may have.
        FlagError: for a value of the wrong type.
    """
    words = _joined_keys(_without_neutral(one_spelling(arguments)))
    flags, rest = _parser().parse_known_args(words)
    if rest:
        _check_switch(words, rest[0])
        reason = _document()["reasons"].get(rest[0].partition(".")[0].removeprefix("--"))
        because = "" if reason is None else f", because {reason}"
        raise UnknownFlagError(f"{' '.join(rest)}: not simulated{because}; {_hint(rest[0])}")
    values = vars(flags)
    for name in (name for form in _NOT_NEGATIVE for name in _document()["read"][form]):
        value = values[name.replace("-", "_")]
        if value is not None and value < 0:
            raise UnknownFlagError(f"--{name} {value}: a negative number is not simulated; give another")
    local, copies = values.pop("data_parallel_size_local"), values["data_parallel_size"] or 1
    if local not in (None, copies):
        rule = f"--data-parallel-size-local {local}: copies of the model on other machines are not simulated"
        raise UnknownFlagError(f"{rule}; give {copies}, or leave it out")
    return values


def _check_switch(words: Sequence[str], value: str) -> None:
    """Refuse the value of a switch, such as `--enable-chunked-prefill=False`, by the name of the switch."""
    before = words[: words.index(value)] if value in words and not value.startswith("-") else ()
    switch = before[-1] if before else ""
    if isinstance(_actions().get(switch), argparse.BooleanOptionalAction):
        positive = f"--{switch.removeprefix('--').removeprefix('no-')}"
        rule = f"{switch} {value}: a switch of vLLM takes no value"
        raise UnknownFlagError(f"{rule}; write {positive} or --no-{positive.removeprefix('--')}")


def _without_neutral(words: Sequence[str]) -> list[str]:
    """Return the words without flags that are not simulated and whose value is what vLLM does anyway."""
    neutral: dict[str, list[str]] = _document()["neutral"]
    kept, waiting = [], [*words]
    while waiting:
        word = waiting.pop(0)
        values = neutral.get(word.removeprefix("--")) if word.startswith("--") else None
        if values is None or (values and not {*waiting[:1]} & {*values}):
            kept.append(word)
        elif values:
            del waiting[0]
    return kept


def _hint(word: str) -> str:
    """Return the next step for a word that is not read: a flag that is like it, if no vLLM has the word."""
    name = word.partition(".")[0].removeprefix("--")
    measure = "measure that with the engine vllm"
    if {name, name.removeprefix("no-")} & {*_document()["not_simulated"]}:
        return measure
    if name == "model":
        return "give it as the tuner's own --model"
    long_names = sorted(known for known in flag_names() if known.startswith("--"))
    others = (f"--{each}" for each in _document()["not_simulated"])
    if (longer := completed(word.partition(".")[0], {*long_names, *others})) is not None:
        return f"write {longer} in full"
    near = difflib.get_close_matches(word, long_names, n=1, cutoff=_LIKENESS)
    unknown = "vLLM 0.15 to 0.32 has no such flag" if word.startswith("--") else measure
    return f"did you mean {near[0]}?" if near else unknown


@cache
def flag_names(version: tuple[int, ...] | None = None) -> frozenset[str]:
    """Return every option string that the simulator reads of a version of vLLM, or of any; short names included."""
    lacking = () if version is None else flags_without(version)
    options = {
        option for option, action in _actions().items() if action.dest not in lacking and option not in ("-h", "--help")
    }
    return frozenset(options | {name for name, long in VLLM_NAMES.items() if long in options})


def _actions() -> dict[str, argparse.Action]:
    return _parser()._option_string_actions


@cache
def flags_without(version: tuple[int, ...]) -> frozenset[str]:
    """Return the names, with underscores, of flags that the simulator reads and a version of vLLM lacks."""
    return frozenset(name.replace("-", "_") for name in _lacking(_document(), version))


def _lacking(section: Mapping[str, Any], version: tuple[int, ...]) -> set[str]:
    """Return the names in `since` and `until` of a section that a version of vLLM lacks."""
    newer = {name for name, since in section["since"].items() if version < tuple(since)}
    return newer | {name for name, until in section["until"].items() if version >= tuple(until)}


def check_keys(flags: Mapping[str, Any], version: tuple[int, ...]) -> None:
    """Raise a `FlagError` for a key of a JSON flag that the version of vLLM refuses."""
    for flag, keys in _document()["keys"].items():
        known = {*keys["always"], *keys["since"], *keys["until"]} - _lacking(keys, version)
        for key in flags[flag.replace("-", "_")] or {}:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=_LIKENESS)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise FlagError(f"argument --{flag}: {key}: Unexpected keyword argument{hint}")


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = read_yaml(_FILE).data
    return document


@cache
def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", allow_abbrev=False, add_help=False)
    switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    read: dict[str, dict[str, Any]] = {
        "switches": switch,
        "texts": {"type": _text},
        "lengths": {"type": _length},
        "whole_numbers": {"type": _integer},
        "sizes": {"type": _suffixed},
        "numbers": {"type": float},
        "optional_numbers": {"type": lambda text: None if text in _NONE else float(text)},
        "objects": {"type": _json_object},
        "lists": {"type": _integer, "nargs": "+"},
    }
    ignored = {"switches": switch, "values": {}, "lists": {"nargs": "+"}, "optional": {"nargs": "?"}}
    for section, forms in (("read", read), ("without_effect", read | ignored)):
        for form, names in _document()[section].items():
            for name in names:
                parser.add_argument(f"--{name}", default=None, **forms[form])
    return parser


def _joined_keys(words: Sequence[str]) -> list[str]:
    """Return the words, with all `--flag.key VALUE` of a flag joined to one `--flag {"key": VALUE}` at the end.

    vLLM joins them for every flag; a flag that has no keys then refuses the object. Flags that are not read stay.
    """
    others: list[str] = []
    flags: dict[str, None] = {}
    known, rest = flag_names(), iter(words)
    for word in rest:
        flag, dot, key = word.partition(".")
        if not dot or flag not in known:
            others.append(word)
            continue
        if next(rest, None) is None:
            raise FlagError(f"argument {word}: expected one argument")
        if key.count(".") > _MOST_DOTS:
            raise FlagError(f"argument {flag}: a key with more than {_MOST_DOTS} dots")
        flags[flag] = None
    return [*others, *(word for flag in flags for word in (flag, json.dumps(dotted_object(flag, words))))]


def _text(text: str) -> str | None:
    return None if text in _NONE else text


def _length(text: str) -> int | None:
    """Return the value of `--max-model-len`: -1 stands for `auto`."""
    return -1 if text.lower() in ("auto", "-1") else _suffixed(text)


def _suffixed(text: str) -> int | None:
    """Return a whole number, with vLLM's suffixes or as Python reads it."""
    value = None if text in _NONE else whole_number(text)
    return _integer(text) if value is None else value


def _integer(text: str) -> int | None:
    """Return a whole number as Python reads it."""
    try:
        return None if text in _NONE else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None


def _json_object(text: str) -> dict[str, Any] | None:
    if text in _NONE:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to JSON.")
    return value


def key_integer(key: str, value: Any) -> int | None:
    """Return the whole number of a key of a JSON flag as pydantic reads it, which may be text; None if it is not given.

    Raises:
        ValueError: with pydantic's message, for another value.
    """
    try:
        if value is None or int(value) == float(value):
            return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{key}: Input should be a valid integer")


@cache
def vllm_default(parameter: str, card: HardwareProfile, version: tuple[int, ...]) -> float:
    """Return vLLM's default for a numeric parameter of the space `vllm`, on a card and in a version of vLLM.

    Raises:
        LookupError: if the space has no default of that parameter for the card and the version.
    """
    context = Context(card, engine_version=".".join(map(str, version)))
    value = load_space("vllm").engine_default(parameter, context)
    if not isinstance(value, int | float):
        raise LookupError(f"the space vllm has no default of {parameter} for {card.name} and vLLM {version}")
    return value


TURING_VERSION = "0.15.1"
"""The last release whose default attention kernels run on compute capability 7.5; the published T4 runs used it."""

DEFAULT_VERSION = "0.25.1"
"""The release of the H200 measurements."""

SIMULATED_PACKAGES = frozenset({"arctic_inference", "bitsandbytes", "deep_gemm", "flashinfer", "haproxy"})
"""Packages that count as installed. vLLM depends on FlashInfer, its wheel has DeepGEMM, pip installs the others, and
HAProxy is a package of every distribution."""


def default_version(card: HardwareProfile) -> str:
    """Return the release that is simulated on a card if `--vllm-version` is not given."""
    return TURING_VERSION if (card.compute_capability or (0, 0)) < (8, 0) else DEFAULT_VERSION
