"""Make a user's relative paths absolute: each server runs in a folder of its own, and a script in any folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

_BEGINNINGS = ("./", "../", "~/")


def absolute_path(name: str) -> str:
    """Return the absolute path of an existing file or folder; any other name, such as a hub's, as it is."""
    path = os.path.expanduser(name)
    return os.path.realpath(path) if os.path.exists(path) else name


def absolute_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a server's flags with absolute paths: `--chat-template my.jinja` names the file in the current folder.

    A word is a path if it begins with `./`, `../` or `~/`, or if it has a slash or a dot and such a file exists. A word
    without both, such as `auto`, is a path only in `NAME=PATH`, as in `--lora-modules`: a folder called `auto` must not
    change `--dtype auto`.
    """
    return tuple(map(_absolute_word, arguments))


def _absolute_word(word: str) -> str:
    head, equals, value = word.partition("=")
    if not equals or "/" in head:
        head, equals, value = "", "", word
    if value.startswith(_BEGINNINGS):
        return head + equals + os.path.realpath(os.path.expanduser(value))
    names_a_path = "/" in value or "." in value or (equals and not head.startswith("-"))
    return head + equals + (absolute_path(value) if names_a_path else value)
