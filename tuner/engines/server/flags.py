"""Check arguments against the flags of an installed server, which are read once from its parser and cached.

This check needs no process of the engine. It covers names, choices, numbers and how many values a flag takes. The
engine's own parser and configuration check the arguments that pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.argv import completed
from tuner.files import write_atomically

_DOTTED = re.compile(r"^(--?[\w-]+?)\.[\w.-]+(?:=|$)")
_LEVEL = re.compile(r"^-O\.?\d*$")


@dataclass(frozen=True)
class Flag:
    """One flag: its names and argparse's properties of its values. `nargs` "0" is a switch."""

    names: tuple[str, ...]
    choices: tuple[str, ...] | None
    type: str | None
    nargs: str | None

    @property
    def switch(self) -> bool:
        """True if it takes no value."""
        return self.nargs == "0"


@dataclass(frozen=True)
class ServeFlags:
    """Every flag of one installed server, by each of its names; `engine` is its name in texts."""

    by_name: Mapping[str, Flag]
    engine: str

    @property
    def names(self) -> frozenset[str]:
        """Every name, short ones and `--no-…` included."""
        return frozenset(self.by_name)

    def problem(self, argv: Sequence[str]) -> str | None:
        """Return why the parser would refuse the arguments, with the flag's name; None if it would accept them."""
        position = 0
        while position < len(argv):
            word = argv[position]
            position += 1
            if not _is_flag(word):
                return f"{word!r} is in the place of a flag"
            name, given, inline = word.partition("=")
            flag = self._find(name)
            if flag is None:
                dotted = _DOTTED.match(word)
                if dotted is not None and self._find(dotted[1]) is not None:
                    position += 0 if given else 1
                    continue
                if _LEVEL.match(word) and "--optimization-level" in self.by_name:
                    position += 1 if word == "-O" else 0
                    continue
                if (longer := completed(name, self.by_name)) is not None:
                    return f"{name} is short for {longer}; write it in full"
                return f"{name} is not a flag of the installed {self.engine}"
            values = [inline] if given else _values(argv[position:], flag)
            position += 0 if given else len(values)
            refused = _refused(flag, values)
            if refused is not None:
                return f"{name}: {refused}"
        return None

    def _find(self, name: str) -> Flag | None:
        long = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        return self.by_name.get(long) or self.by_name.get(name)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and word[1] != "."


def _values(words: Sequence[str], flag: Flag) -> list[str]:
    taken: list[str] = []
    limit = {None: 1, "0": 0, "?": 1}.get(flag.nargs, len(words))
    for word in words[:limit]:
        if _is_flag(word):
            break
        taken.append(word)
    return taken


def _refused(flag: Flag, values: Sequence[str]) -> str | None:
    if not values and flag.nargs in (None, "+"):
        return "a value is missing"
    if values and flag.switch:
        return f"it takes no value, but {values[0]!r} was given"
    for value in values:
        if flag.choices is not None and value not in flag.choices:
            return f"{value!r} is not one of {', '.join(flag.choices)}"
        if flag.type == "int" and not _converts(int, value):
            return f"{value!r} is not a whole number"
        if flag.type == "float" and not _converts(float, value):
            return f"{value!r} is not a number"
    return None


def _converts(kind: type[int] | type[float], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def flags_from_dump(dump: Iterable[Mapping[str, Any]], engine: str) -> ServeFlags:
    """Return the flags of a dump of a parser's actions, without positional arguments."""
    by_name: dict[str, Flag] = {}
    for entry in dump:
        names = tuple(str(name) for name in entry["names"])
        choices, nargs = entry["choices"], entry["nargs"]
        chosen = None if choices is None else tuple(choices)
        flag = Flag(names, chosen, entry["type"], None if nargs is None else str(nargs))
        by_name.update(dict.fromkeys(names, flag))
    return ServeFlags(by_name, engine)


def load_flags(path: Path, engine: str) -> ServeFlags | None:
    """Return the flags of a cached dump; None if there is none or it cannot be read."""
    try:
        return flags_from_dump(json.loads(path.read_text(encoding="utf-8"))["flags"], engine)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cached_flags(path: Path, engine: str, dump: Callable[[], Mapping[str, Any] | None]) -> ServeFlags | None:
    """Return the flags of a cached dump, else those of a new one, which is cached; None if there is none.

    Other workers read the cache at the same time.
    """
    known = load_flags(path, engine)
    made = dump() if known is None else None
    if made is None:
        return known
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"flags": made["flags"]}))
    return flags_from_dump(made["flags"], engine)
