"""The expression language: values, three-valued logic, and refused syntax."""

import contextlib

import pytest

from search_spaces import SpaceError
from search_spaces.expressions import UNKNOWN, Expression, version_tuple

FACTS: dict[str, object] = {
    "a": 3,
    "b": 4.0,
    "text": "suffix",
    "left": None,
    "secret": UNKNOWN,
    "hardware.compute_capability": (7, 5),
    "engine.version": (0, 32, 0),
    "engine.packages": frozenset({"arctic_inference"}),
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("a < b", True),
        ("a + 2 * b", 11.0),
        ("-a // 2", -2),
        ("a % 2 == 1", True),
        ("1 < a < 3", False),
        ('text == "suffix"', True),
        ('text in ("ngram", "suffix")', True),
        ('text not in ["ngram", None]', True),
        ("left == None", True),
        ("left == 3", False),
        ("left < 3", UNKNOWN),
        ("left + 1 == 2", UNKNOWN),
        ("secret == None", UNKNOWN),
        ("secret == 1 and a == 3", UNKNOWN),
        ("secret == 1 and a == 4", False),
        ("secret == 1 or a == 3", True),
        ("secret == 1 or a == 4", UNKNOWN),
        ("not secret", UNKNOWN),
        ("not left", True),
        ("known(secret)", False),
        ("known(left)", True),
        ("min(a, 2)", 2),
        ("max(a, secret)", UNKNOWN),
        ("a / 0", UNKNOWN),
        ("hardware.compute_capability >= capability(7, 5)", True),
        ("hardware.compute_capability >= capability(8, 0)", False),
        ('engine.version >= version("0.25")', True),
        ('engine.version < version("0.32.1")', True),
        ('"arctic_inference" in engine.packages', True),
        ('"flashinfer" in secret', UNKNOWN),
    ],
)
def test_values(source: str, value: object) -> None:
    result = Expression(source).evaluate(FACTS.__getitem__)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "source",
    [
        "a.__class__",
        "_a",
        "a._private",
        "__import__('os')",
        "open('file')",
        "a.upper()",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "{x: 1 for x in (1, 2)}",
        "(x for x in (1, 2))",
        "a[0]",
        "a ** b",
        "a << 2",
        "a if b else 1",
        "f'{a}'",
        "(a := 3)",
        "min(*a)",
        "min(a, key=b)",
        "b'bytes'",
        "1j",
        "...",
        "{1, 2}",
        "a is b",
        "~a",
        "await a",
    ],
)
def test_forbidden_syntax_is_refused(source: str) -> None:
    with pytest.raises(SpaceError, match="not allowed in the expression"):
        Expression(source)


@pytest.mark.parametrize("source", ["a <", "", "a = 3", "import os", "a; b"])
def test_invalid_syntax_is_refused(source: str) -> None:
    with pytest.raises(SpaceError, match="does not parse"):
        Expression(source)


def test_length_is_limited() -> None:
    with pytest.raises(SpaceError, match="shorten it to at most 500"):
        Expression(" + ".join(["a"] * 200))


@pytest.mark.parametrize("source", ['"a" < 3', '"a" * 3', "3 in a"])
def test_mixed_types_are_an_error(source: str) -> None:
    with pytest.raises(SpaceError, match="mixes types"):
        Expression(source).evaluate(FACTS.__getitem__)


def test_names_are_dotted_and_without_functions() -> None:
    expression = Expression('min(a, b) < engine.version or known(hardware.memory_gib) and text in ("x", left)')
    assert expression.names == {"a", "b", "engine.version", "hardware.memory_gib", "text", "left"}


def test_holds_is_none_for_an_unknown_value() -> None:
    assert Expression("secret > 1").holds(FACTS.__getitem__) is None
    assert Expression("a > 1").holds(FACTS.__getitem__) is True


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.32.0+cpu", (0, 32, 0)), ("0.25", (0, 25, 0)), ("v1.2.3rc1", (1, 2, 3)), ("0.15.1.dev3+g12", (0, 15, 1))],
)
def test_versions(text: str, numbers: tuple[int, int, int]) -> None:
    assert version_tuple(text) == numbers


def test_a_version_starts_with_a_number() -> None:
    with pytest.raises(SpaceError, match="'main' is not a version"):
        version_tuple("main")


@pytest.mark.parametrize("source", [f"{'9' * 400} / 1", f"{'9' * 400} * 1.5 > 2", "a + 0.5 > 1"])
def test_a_number_that_is_too_large_to_compute_with_is_an_error(source: str) -> None:
    with pytest.raises(SpaceError, match=r"overflows \(int.* too large"):
        Expression(source).evaluate({"a": 10**400}.__getitem__)


@pytest.mark.parametrize(
    "source", ["-" * 499 + "1", "not " * 120 + "a", "~" + "-" * 450 + "a", "(" * 240 + "1" + ")" * 240]
)
def test_deep_nesting_is_an_error_or_a_value(source: str) -> None:
    with contextlib.suppress(SpaceError):
        Expression(source).evaluate(FACTS.__getitem__)
