"""Files of search spaces: mistakes are one line with file and line, and the examples of the pages."""

import os
import re
import time
from pathlib import Path

import pytest

from search_spaces import Context, SpaceError, hardware_from_file, hardware_named, load_space, parse_space
from search_spaces.expressions import FACT_NAMES
from search_spaces.schema import ChoiceSpec, ParameterSpec
from search_spaces.yaml_file import YamlError, read_yaml
from tuner.errors import UserError
from tuner.workloads.presets import load_preset
from tuner.workloads.traffic import load_traffic

GOOD = """\
parameters:
  seqs:
    description: requests
    type: int
    low: 1
    high: 8
    flag: --max-num-seqs
"""


def written(folder: Path, text: str, name: str = "space.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path) -> str:
    with pytest.raises(SpaceError) as caught:
        load_space(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    space = load_space(str(written(tmp_path, GOOD)))
    assert space.name == "space"
    assert space.parameter_names == ("seqs",)


@pytest.mark.parametrize(
    ("change", "line", "message_part"),
    [
        (("low: 1", "low: [1"), 6, "not valid YAML"),
        (("low: 1", "low: 9"), 2, "low 9 is above high 8"),
        (("low: 1", "low: 1\n    low: 2"), 6, "the key 'low' occurs twice"),
        (("low: 1", "lo: 1"), 5, "parameters.seqs.lo: this key does not exist"),
        (("type: int", "typ: int"), 2, "parameters.seqs.type: this key is missing; write it in place of 'typ'"),
        (("    type: int\n", ""), 2, "parameters.seqs.type: this key is missing; add it"),
        (("type: int", "type: integer"), 4, "parameters.seqs.type"),
        (("low: 1", "low: 0.5"), 2, "low, high and step of an int are whole numbers"),
        (("high: 8", "high: .inf"), 2, "low, high and step of an int are whole numbers"),
        (("high: 8", "high: 8\n    step: 0"), 2, "step 0 is not above 0"),
        (("low: 1", "low: 0\n    log: true"), 2, "log needs low above 0"),
        (("    high: 8\n", ""), 2, "int needs low and high"),
        (("type: int", "type: int\n    when: seqs >"), 5, "parameters.seqs.when"),
        (("low: 1", "low: 1\n    choices: [1, 2]"), 2, "exclude each other"),
        (("low: 1", "low: 1\n    env: MAX_SEQS"), 2, "flag, env and json exclude each other"),
        (("--max-num-seqs", "-x"), 7, "parameters.seqs.flag"),
    ],
)
def test_a_mistake_is_an_error_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, message_part: str
) -> None:
    text = message(written(tmp_path, GOOD.replace(*change)))
    assert text.startswith(f"{tmp_path / 'space.yaml'}:{line}: ")
    assert message_part in text


@pytest.mark.parametrize(
    ("addition", "message_part"),
    [
        ("    when: other == 1\n", "when of 'seqs' uses 'other'"),
        ("    when: seqs == 1\n", "a condition may use parameters that are declared above it"),
        ("    requires: [{rule: hardware.memory > 1, why: x}]\n", "did you mean 'hardware.memory_gib'?"),
        ("    requires: [{rule: value > 1, why: x}]\n", "a requirement of 'seqs' uses 'value'"),
        ("rules: [{name: r, forbid: seq > 1, why: x}]\n", "rule 'r' uses 'seq'; did you mean 'seqs'?"),
        ("named: {n: {config: {seqs: 9}, note: x, source: y}}\n", "seqs cannot be 9; it takes 1..8"),
        ("named: {n: {config: {sequences: 8}, note: x, source: y}}\n", "has no parameter 'sequences'"),
    ],
)
def test_names_and_values_are_checked(tmp_path: Path, addition: str, message_part: str) -> None:
    text = message(written(tmp_path, GOOD + addition))
    assert message_part in text
    assert text.startswith(f"{tmp_path / 'space.yaml'}:")


def test_choices_do_not_repeat(tmp_path: Path) -> None:
    text = GOOD.replace("int", "categorical").replace("    low: 1\n    high: 8\n", "    choices: [a, b, a]\n")
    assert "choices repeat a value" in message(written(tmp_path, text))


def test_one_and_true_are_two_choices(tmp_path: Path) -> None:
    text = GOOD.replace("int", "categorical").replace("    low: 1\n    high: 8\n", "    choices: [1, true]\n")
    assert load_space(written(tmp_path, text)).parameter_names == ("seqs",)


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_a_space_is_a_mapping(tmp_path: Path, text: str) -> None:
    assert "a search space is a mapping" in message(written(tmp_path, text))


def test_a_space_has_parameters(tmp_path: Path) -> None:
    assert "has no parameters" in message(written(tmp_path, "description: nothing\n"))


def test_no_object_is_built_from_yaml(tmp_path: Path) -> None:
    assert "not valid YAML" in message(written(tmp_path, "parameters: !!python/object/apply:os.getcwd []\n"))


def test_included_files_come_first(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "part.yaml")
    path = written(tmp_path, "include: [part.yaml]\n" + GOOD.replace("seqs:", "more:"))
    assert load_space(path).parameter_names == ("seqs", "more")


def test_a_parameter_is_declared_once(tmp_path: Path) -> None:
    part = written(tmp_path, GOOD, "part.yaml")
    text = message(written(tmp_path, "include: [part.yaml]\n" + GOOD))
    assert f"space.yaml:3: 'seqs' is already in parameters at {part}:2" in text


def test_includes_do_not_go_in_a_circle(tmp_path: Path) -> None:
    assert "includes itself" in message(written(tmp_path, "include: [space.yaml]\n" + GOOD))


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"no search space is called 'vlm'; give a \.yaml file or one of cpu, "):
        load_space("vlm")
    assert "cannot be read" in message(tmp_path / "none.yaml")


def test_an_expression_that_overflows_is_an_error_with_its_line(tmp_path: Path) -> None:
    rules = f"rules:\n- {{name: r, forbid: seqs > 1 and {'9' * 400} / 1 > 2, why: x}}\n"
    text = message(written(tmp_path, GOOD + rules))
    assert text.startswith(f"{tmp_path / 'space.yaml'}:9: rule 'r': the expression")
    assert "overflows" in text


DEFAULT = "    engine_default: [{expression: EXPRESSION}]\n"


def test_a_default_does_not_depend_on_itself(tmp_path: Path) -> None:
    other = GOOD.removeprefix("parameters:\n").replace("seqs:", "more:")
    text = GOOD + DEFAULT.replace("EXPRESSION", "effective.more + 1") + other
    text += DEFAULT.replace("EXPRESSION", "effective.seqs")
    assert "engine_default of 'seqs' depends on itself by `effective.seqs`" in message(written(tmp_path, text))


def test_defaults_that_multiply_are_refused(tmp_path: Path) -> None:
    text = "parameters:\n"
    for n in range(40):
        text += GOOD.removeprefix("parameters:\n").replace("seqs:", f"p{n:02}:")
        text += DEFAULT.replace("EXPRESSION", f"effective.p{n - 1:02} + effective.p{n - 1:02}" if n else "1 + 0")
    assert "depends on more than 1000 other defaults" in message(written(tmp_path, text))


def test_a_condition_on_many_choices_is_resolved_at_once(tmp_path: Path) -> None:
    text = "parameters:\n"
    for n in range(12):
        text += f"  p{n:02}: {{description: d, type: categorical, choices: {list(range(1, 60))}}}\n"
    condition = " or ".join(f"p{n:02} == 99" for n in range(12))
    text += f"  last: {{description: d, type: bool, when: {condition}}}\n"
    space = load_space(written(tmp_path, text)).resolve(Context(hardware_named("t4")))
    assert space.cardinality() is None


def test_a_large_range_is_counted_without_listing_it(tmp_path: Path) -> None:
    space = load_space(written(tmp_path, GOOD.replace("high: 8", "high: 1000000000000")))
    assert space.resolve(Context(hardware_named("t4"))).cardinality() == 10**12


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("high: 8", "high: 9000000000000000000"), "low, high and step are at most 1e+15"),
        (
            ("type: int\n    low: 1\n    high: 8", "type: float\n    low: 0.0\n    high: 1.0\n    step: 1.0e-300"),
            "more than 1e+09",
        ),
    ],
)
def test_a_range_has_limits(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    assert reason in message(written(tmp_path, GOOD.replace(*change)))


def test_a_space_has_a_largest_number_of_parameters(tmp_path: Path) -> None:
    each = "{description: d, type: bool}"
    text = "parameters:\n" + "".join(f"  p{n}: {each}\n" for n in range(201))
    assert "201 parameters, and 200 are possible" in message(written(tmp_path, text))


def test_a_text_is_a_space_that_includes_no_file(tmp_path: Path) -> None:
    assert parse_space(GOOD, "mine").parameter_names == ("seqs",)
    secret = written(tmp_path, "a secret", "secret.yaml")
    for text in (f"include: [{secret}]\n{GOOD}", f"{GOOD}include: [secret.yaml]\n"):
        with pytest.raises(SpaceError, match=r"^space:\d+: a text can include no file; write all in one$"):
            parse_space(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "space:1: a search space is a mapping"),
        ("parameters: {", "space:1: not valid YAML"),
        (GOOD.replace("low: 1", "low: 9"), "space:2: parameters.seqs: low 9 is above high 8"),
        ("a: \ud800", "space"),
        (f"# {'x' * 2**20}", "space: the text has 1,048,578 bytes, and 1,048,576 are possible; shorten it"),
    ],
)
def test_a_mistake_in_a_text_is_an_error_with_its_line(text: str, part: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_space(text)
    assert str(caught.value).startswith(part)


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
    "a month 13": ("a:\n  b: 2026-13-01", ":2: '2026-13-01' is not a valid timestamp (month must be in 1..12"),
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
def test_each_reader_refuses_it_on_one_line(reader: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    path = tmp_path / "x.yaml"
    path.write_text(BAD["an unknown alias"][0])
    with pytest.raises(error, match=r"found undefined alias 'b'") as caught:
        read(path)
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


PAGE = (Path(__file__).parents[3] / "docs" / "search-space.md").read_text(encoding="utf-8")


def test_the_page_names_every_key_and_fact() -> None:
    keys = [field.alias or name for model in (ParameterSpec, ChoiceSpec) for name, field in model.model_fields.items()]
    assert [key for key in keys if not re.search(rf"`[^`]*\b{key}\b[^`]*`", PAGE)] == []
    assert [fact for fact in FACT_NAMES if f"`{fact}`" not in PAGE] == []


def test_a_study_stores_what_its_offered_parameters_mean() -> None:
    text = """
parameters:
  seqs:
    description: A.
    type: categorical
    choices: [8, {value: 16, note: B., requires: [{rule: hardware.memory_gib > 1, why: C.}]}]
    flag: --seqs
  absent: {description: D., type: bool, flag: --absent, requires: [{rule: hardware.memory_gib > 99, why: E.}]}
rules:
  - {name: few, forbid: effective.seqs < 9, why: F.}
  - {name: none, forbid: absent, why: G.}
"""
    assert parse_space(text, "own").resolve(Context(hardware_named("t4"))).to_dict() == {
        "name": "own",
        "parameters": {"seqs": {"type": "categorical", "choices": [{"value": 8}, {"value": 16}], "flag": "--seqs"}},
        "rules": {"few": "effective.seqs < 9"},
    }
