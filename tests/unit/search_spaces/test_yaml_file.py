"""What a YAML file may not have: each is one line with file and line, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from search_spaces import SpaceError, hardware_from_file, load_space
from search_spaces.yaml_file import YamlError, read_yaml
from tuner.errors import UserError
from tuner.workloads.presets import load_preset
from tuner.workloads.traffic import load_traffic

SOON = 20.0


def nested_aliases(levels: int) -> str:
    """Return a document in which each level repeats the one above ten times."""
    lines = ["a0: &a0 [1, 2]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BAD = {
    "aliases ten deep": (nested_aliases(10), ":5: more than 20000 values"),
    "merged aliases": (
        "a0: &a0 {k: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)),
        ": more than 20000 values",
    ),
    "an alias of itself": ("a: &a\n  b: *a\n", ":2: the alias 'a' is within its own anchor"),
    "deep lists": ("a: " + "[" * 100_000, ":1: more than 40 levels"),
    "deep blocks": ("- " * 100_000, ":1: more than 40 levels"),
    "deep keys": ("? " * 100_000, ":1: more than 40 levels"),
    "many values": ("[" + "1," * 100_000 + "]", ":1: more than 20000 values"),
    "an integer of 5,000 digits": ("\na: " + "9" * 5000, f":2: '{'9' * 30}…' is a number of more than 1000"),
    "base 60 without an end": ("a: " + "1:" * 499_000 + "1", f":1: '{'1:' * 15}…' is a number of more than 1000"),
    "base 60 with a fraction": ("a: " + "1:" * 499_000 + "1.5", f":1: '{'1:' * 15}…' is a number of more than 1000"),
    "an integer of 400 digits": ("a: " + "9" * 400, f":1: '{'9' * 30}…' is not a number below 2^63"),
    "a negative one in octal": ("a: -0" + "7" * 400, ":1: '-0"),
    "a sexagesimal one": ("a: 1" + ":59" * 400, ":1: '1:59:"),
    "not a number": ("a: .nan", ":1: '.nan' is not a number"),
    "a month 13": ("a:\n  b: 2026-13-01", ":2: '2026-13-01' is not a valid timestamp (month must be in 1..12)"),
    "an hour 99": ("a: 2026-01-01 99:00:00", ":1: '2026-01-01 99:00:00' is not a valid timestamp"),
    "binary that is none": ("a: !!binary é", ":1: failed to convert base64 data into ascii"),
    "a bool that is none": ("a: !!bool maybe", ":1: 'maybe' is not a valid bool"),
    "an int that is none": ("a: !!int x", ":1: 'x' is not a valid int"),
    "an int that is empty": ("a: !!int", ":1: '' is not a valid int"),
    "an unknown alias": ("a: *b", ":1: found undefined alias 'b'"),
    "a list as a key": ("? [a]\n: b", ":1: found unhashable key"),
    "a null character": ("a: \0", ":1: unacceptable character"),
    "two documents": ("a: 1\n---\nb: 2\n", ":2: but found another document"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_exceeds_a_limit_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    text, reason = BAD[name]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    begun = time.monotonic()
    with pytest.raises(YamlError) as caught:
        read_yaml(path)
    assert time.monotonic() - begun < SOON
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_what_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(YamlError, match=r"x\.yaml:2: byte 0xff is not UTF-8"):
        read_yaml(path)


def test_a_document_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {b: [1, 2.5, true, null, text, .inf]}\nc: *a\nd: {<<: *a, e: -1}\n")
    branch = {"b": [1, 2.5, True, None, "text", float("inf")]}
    assert read_yaml(path).data == {"a": branch, "c": branch, "d": {**branch, "e": -1}}
    path.write_text("")
    assert read_yaml(path) == read_yaml(path)
    assert read_yaml(path).data is None


READERS = {
    "space": (load_space, SpaceError),
    "card": (hardware_from_file, SpaceError),
    "traffic": (load_traffic, UserError),
    "preset": (lambda path: load_preset(str(path)), UserError),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", BAD)
def test_each_reader_refuses_it_on_one_line(reader: str, name: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    path = tmp_path / "x.yaml"
    path.write_text(BAD[name][0])
    with pytest.raises(error) as caught:
        read(path)
    assert BAD[name][1].partition(" ")[2] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "large", "missing"])
def test_each_reader_refuses_what_is_no_file(reader: str, kind: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    path = tmp_path / "x.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_text("#" * 2**21)
    with pytest.raises(error) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert reader == "preset" or any(
        part in str(caught.value) for part in ("not a regular file", "larger than 1 MiB", "No such file")
    )


@pytest.mark.parametrize("part", ["/dev/zero", "fifo", ".", "none.yaml", '"a\\0b"', '"' + "x" * 5000 + '"'])
def test_an_include_of_what_is_no_file_is_refused(part: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / "x.yaml"
    path.write_text(f"include: [{part}]\n")
    with pytest.raises(SpaceError, match=r"x\.yaml:1: the included '.*' cannot be read \("):
        load_space(path)


def test_includes_that_multiply_are_refused(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"{n}.yaml").write_text(f"include: [{n + 1}.yaml, {n + 1}.yaml]\n")
    (tmp_path / "30.yaml").write_text("description: the end\n")
    with pytest.raises(SpaceError, match="more than 50 files"):
        load_space(tmp_path / "0.yaml")
