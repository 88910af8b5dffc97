"""The command of the engine `openai`: the user's words, with placeholders, and relative paths made absolute.

The command is split into words as a shell does, and no shell runs it. `{port}`, `{host}` and `{model}` are replaced
wherever they stand in a word; a word `{flags}` is replaced by the flags of the trial, which otherwise come last.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from tuner.errors import SettingError

HOST, PORT, MODEL, FLAGS = "{host}", "{port}", "{model}", "{flags}"
_FIELD = "server_command"
_PLACEHOLDER = re.compile(r"\{(?:host|port|model)\}")


def read_command(text: str) -> tuple[str, ...]:
    """Return the words of a command.

    Raises:
        SettingError: for a text that is no command, one without `{port}`, or with more than one place for flags.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise SettingError(_FIELD, text, f"no words of a command ({error})", "close the quotation") from None
    if not words:
        raise SettingError(_FIELD, text, "no program is named", "give a program and its arguments")
    if not any(PORT in word for word in words[1:]):
        rule = "no argument has {{port}}, and each trial has a port of its own"
        raise SettingError(_FIELD, text, rule, "add it, such as '--port {{port}}'")
    if any(FLAGS in word and word != FLAGS for word in words) or words.count(FLAGS) > 1 or words[0] == FLAGS:
        rule = "{{flags}} stands for several words"
        raise SettingError(_FIELD, text, rule, "write it once, as an argument of its own")
    return words


def filled(words: Sequence[str], flags: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words of a command with the flags in their place and values for placeholders.

    Args:
        words: of the command, with or without its program.
        flags: of the server.
        values: of the placeholders; others remain.
    """
    before, after = _around(words)

    def replaced(word: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values.get(match[0], match[0]), word)

    return (*map(replaced, before), *flags, *map(replaced, after))


def words_after_flags(words: Sequence[str]) -> int:
    """Return how many words follow the flags."""
    return len(_around(words)[1])


def flags_in(words: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the flags in an argument list that `filled` returned for the same words."""
    before, after = _around(words)
    return tuple(argv[len(before) : len(argv) - len(after)])


def _around(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before and after the flags."""
    place = words.index(FLAGS) if FLAGS in words else len(words)
    return words[:place], words[place + 1 :]


def api_key_in(words: Sequence[str]) -> str | None:
    """Return the value of the last API key in a command; None without one."""
    key: str | None = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--api-key":
            key = value if equals else following
    return key


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
