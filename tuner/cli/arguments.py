"""The arguments of the command itself: hide their secrets, and repeat those that say where studies are."""

from __future__ import annotations

import ctypes
import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.processes.secrets import REFERENCE, is_secret_variable, mask_url_passwords, url_passwords

NAME_OPTION = "--secret"
PLACES = ("--storage", "--server")
"""Options that say where studies are."""

INSECURE = "--insecure"
_ASSIGNMENT = re.compile(r"(?:--env=)?([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_START, _END = 45, 46
"""Fields 48 and 49 of /proc/PID/stat, counted after the command's name: the memory with the arguments."""


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return the arguments with `NAME=${NAME}` for a secret variable, and `***` for the password of a URL."""
    names = _named(words)
    shown = []
    for word in words:
        match = _secret_assignment(word, names)
        shown.append(mask_url_passwords(word[: match.start(2)] + f"${{{match[1]}}}" if match else word))
    return shown


def command(*words: str) -> str:
    """Return a command of `tuner` to paste, with this command's options that say where studies are."""
    given = without_secrets(sys.argv[1:])
    places = [word for pair in itertools.pairwise(given) if pair[0] in PLACES for word in pair]
    places += [word for word in given if word == INSECURE or word.startswith(tuple(f"{each}=" for each in PLACES))]
    return shlex.join(["tuner", *words, *places])


def hide_secrets(words: Sequence[str]) -> None:
    """Overwrite the secrets in this process's arguments with `*`, as /proc/PID/cmdline and `ps` show them.

    Without /proc they stay visible.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_START]), int(fields[_END])
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return
    if not start or len(shown) != end - start:
        return
    for secret in {word.encode(errors="surrogateescape") for word in _secrets(words)} - {b""}:
        place = shown.find(secret)
        while place >= 0:
            ctypes.memset(start + place, ord("*"), len(secret))
            place = shown.find(secret, place + len(secret))


def _secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield the values of secret variables and the passwords of URLs."""
    names = _named(words)
    for word in words:
        match = _secret_assignment(word, names)
        if match is not None:
            yield match[2]
        yield from url_passwords(word)


def _secret_assignment(word: str, names: set[str]) -> re.Match[str] | None:
    """Return the parts of `NAME=VALUE` if it is a secret with a literal value."""
    match = _ASSIGNMENT.fullmatch(word)
    if match is None or REFERENCE.search(match[2]):
        return None
    return match if is_secret_variable(match[1]) or match[1] in names else None


def _named(words: Sequence[str]) -> set[str]:
    """Return the names that the arguments declare as secrets."""
    spaced = {name for option, name in itertools.pairwise(words) if option == NAME_OPTION}
    return spaced | {word.removeprefix(f"{NAME_OPTION}=") for word in words if word.startswith(f"{NAME_OPTION}=")}
