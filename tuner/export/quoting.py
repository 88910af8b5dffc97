"""Quote words for the generated bash script, so that no name or value can run as code.

Each word is quoted by `shlex.quote`; text in comments is escaped to one line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tuner.processes.secrets import shell_word

PORT_PLACEHOLDER = "\0port\0"
"""Stands for the server's port, as a word of the client's arguments or within one; no real argument can contain NUL."""

RESULTS_PLACEHOLDER = "\0results\0"
"""Stands for the folder of the benchmark's result file."""

SEED_PLACEHOLDER = "\0seed\0"
"""Stands for the seed of one repeat of the benchmark, as a whole word."""

TRAFFIC_PLACEHOLDER = "\0traffic\0"
"""Stands for the folder of the traffic that the script carries."""

VLLM_PLACEHOLDER = "\0vllm\0"
"""Stands for the vllm executable that the script runs, as a name or a path."""

_PLACEHOLDER_VALUES = {
    PORT_PLACEHOLDER: '"$port"',
    RESULTS_PLACEHOLDER: '"$results"',
    SEED_PLACEHOLDER: '"$seed"',
    TRAFFIC_PLACEHOLDER: '"$work/traffic"',
    VLLM_PLACEHOLDER: '"$VLLM"',
}
_PLACEHOLDERS = re.compile(f"({'|'.join(_PLACEHOLDER_VALUES)})")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names of variables that a shell, systemd and Ray can set."""

_UNQUOTED = re.compile(r"[\w./:-]+", re.ASCII)
_KEYWORDS = frozenset(
    {
        *("case", "do", "done", "elif", "else", "esac", "fi", "for", "function"),
        *("if", "in", "select", "then", "time", "until", "while"),
    }
)


def escape_unprintable(text: str) -> str:
    """Return `text` with unprintable characters escaped, so that it stays on the line of a comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def byte_escapes(character: str) -> str:
    """Return the bytes of a character as escapes that bash's `$'…'` and systemd read."""
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def quote_word(word: str, references: Collection[str] = ()) -> str:
    """Quote one word for bash; the placeholders and `references` in it become variables of the script."""
    parts = _PLACEHOLDERS.split(word)
    return "".join(_PLACEHOLDER_VALUES.get(part) or quoted_text(part, references) for part in parts if part) or "''"


def quoted_text(text: str, references: Collection[str] = ()) -> str:
    """Quote like shlex, and also words such as `a=b` and `a,b`, for which shellcheck warns."""
    quoted = shell_word(text, references)
    plain = _UNQUOTED.fullmatch(text) and text not in _KEYWORDS
    return f"'{text}'" if quoted == text and not plain else quoted


def quoted_within(text: str) -> str:
    """Quote a text that stands in `"${NAME:-TEXT}"` of bash."""
    return re.sub(r'([\\"$`}])', r"\\\1", text)


def array_lines(words: Iterable[str], indent: str, references: Collection[str] = ()) -> str:
    """Format words as the lines of a bash array: one word on each line, a flag and its value together."""
    lines: list[list[str]] = []
    for word in words:
        previous = lines[-1][-1] if lines else ""
        value_of_flag = bool(lines) and len(lines[-1]) == 1 and previous.startswith("--") and not word.startswith("--")
        if value_of_flag:
            lines[-1].append(word)
        else:
            lines.append([word])
    return "\n".join(indent + " ".join(quote_word(word, references) for word in line) for line in lines)
