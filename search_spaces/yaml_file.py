"""Read a file from outside: a regular one, within limits of size, and for YAML of depth, aliases and numbers.

YAML lets a small file describe an enormous document: an alias repeats a whole branch, and aliases within aliases do so
exponentially. Its parser recurses once a level, and its numbers have any length. The limits are far above what a search
space, a workload or a card needs.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


def read_regular_file(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    A FIFO without a writer would block the reader, and a device such as `/dev/zero` has no end.

    Raises:
        OSError: if there is no such file, if it is a folder, FIFO, device or socket, or if it is larger.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a null character in the path", str(path))
    if not stat.S_ISREG(path.stat().st_mode):  # to open a device may have an effect
        raise _not_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {_size(limit)}", str(path))
    return content


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"


SIZE_LIMIT = 2**20
"""The largest file in bytes."""

_DEPTH_LIMIT = 40
"""The deepest nesting of lists and mappings."""

_NODE_LIMIT = 20_000
"""The most values in a document, each alias counted with all that it repeats."""

_NUMBER_LIMIT = 2**63
"""Whole numbers are below this, and above its negative."""

_NUMBER_CHARS = 1000
"""Characters of a number at most: the time to read one of base 60, such as 1:30:00, grows with their square."""

INCLUDE = "include"

_NAMING_FILES = ("file", INCLUDE)
"""Keys of traffic files and search spaces whose values are names of files."""

_SHOWN_CHARS = 200
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_LINE_WIDTH = 2**20
"""Columns of written YAML: no text is folded."""


class YamlError(ValueError):
    """A file is not valid YAML within the limits: at `place`, `FILE:LINE`, for a `reason` on one line."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        self.place = f"{path}:{line}"
        self.reason = " ".join(reason.split())[:_SHOWN_CHARS]
        super().__init__(f"{self.place}: {self.reason}")


@dataclass(frozen=True)
class YamlFile:
    """The content of a file: its data, and the nodes with their lines; None and None for an empty file."""

    data: Any
    node: yaml.Node | None


def read_yaml(path: Path) -> YamlFile:
    """Return the content of a YAML file.

    Raises:
        OSError: if it cannot be read, is not a regular file, or is larger than `SIZE_LIMIT`.
        YamlError: with file and line, if it is not valid YAML within the limits.
    """
    return parse_yaml(read_regular_file(path, SIZE_LIMIT), path)


def parse_yaml(content: bytes, path: Path) -> YamlFile:
    """Return the content of a YAML file whose bytes are known already; `path` names it in errors.

    Raises:
        YamlError: as `read_yaml`.
    """
    try:
        loader = _Loader(content.decode())
        node = loader.get_single_node()
        return YamlFile(None if node is None else loader.construct_document(node), node)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(path, line, f"byte {content[error.start]:#04x} is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(path, 1 if mark is None else mark.line + 1, str(error.problem or error.context)) from None
    except yaml.YAMLError as error:
        raise YamlError(path, 1, str(error).splitlines()[0]) from None


def yaml_text(data: Mapping[str, Any]) -> str:
    """Return data as YAML in ASCII, which `read_yaml` reads again; keys keep their order."""
    text: str = yaml.safe_dump(dict(data), sort_keys=False)
    return text


def plain_yaml(data: Mapping[str, Any]) -> str:
    """Return data as ASCII that parsers of YAML 1.1 and 1.2 read alike, without aliases; keys keep their order."""
    text: str = yaml.dump(dict(data), Dumper=_PlainDumper, sort_keys=False, width=_LINE_WIDTH)
    return text


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0
        self._sizes: dict[int, int] = {}
        """The number of values of each composed node, by its id; a node that is still open has none."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, with a check of depth, aliases and number of values."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._count
        self._depth += 1
        self._count += 1
        if self._depth > _DEPTH_LIMIT:
            raise _refused(f"more than {_DEPTH_LIMIT} levels of nesting", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._sizes[id(node)] = self._count - before
        elif id(node) in self._sizes:
            self._count += self._sizes[id(node)]
        else:
            raise _refused(f"the alias {event.anchor!r} is within its own anchor", event)
        if self._count > _NODE_LIMIT:
            raise _refused(f"more than {_NODE_LIMIT} values, aliases counted with all that they repeat", event)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct an object; a scalar that Python refuses, such as a month 13, is an error at its line."""
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > _NUMBER_CHARS:
            raise _refused(f"{_start(node)} is a number of more than {_NUMBER_CHARS} characters", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
            raise _refused(f"{_start(node)} is not a valid {kind} ({error})", node) from None
        if isinstance(value, int) and not -_NUMBER_LIMIT < value < _NUMBER_LIMIT:
            raise _refused(f"{_start(node)} is not a number below 2^63", node)
        if isinstance(value, float) and math.isnan(value):
            raise _refused(f"{_start(node)} is not a number", node)
        return value


def _refused(reason: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, reason, where.start_mark)


def _start(node: yaml.Node) -> str:
    text = str(node.value)
    return repr(text if len(text) <= 30 else text[:30] + "…")


class _PlainDumper(yaml.SafeDumper):
    """PyYAML's safe dumper without aliases, and with quotes around each text that a parser may take for a number.

    YAML 1.2 reads `1e3` and `0o17` as numbers, and some parsers `y` as a boolean; PyYAML writes them without quotes.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full."""
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Quote a text unless it starts with a letter and is no word of YAML."""
        plain = _PLAIN.fullmatch(data) and data.lower() not in _YAML_WORDS
        style = None if plain else ("'" if data.isascii() and data.isprintable() else '"')
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


def named_files(value: object) -> Iterator[tuple[str, object]]:
    """Yield each key that names a file, at any depth of a document, and its value; the values of a list one by one."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key in _NAMING_FILES:
                yield from ((key, name) for name in (each if isinstance(each, list) else [each]))
            else:
                yield from named_files(each)
    elif isinstance(value, list):
        for each in value:
            yield from named_files(each)
