"""Options that need reading."""

import pytest

from tuner.cli.values import bound_load, pairs, seconds
from tuner.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("45s", 45), ("2h", 7200), ("1h30m", 5400), ("10min", 600), ("0.5h", 1800), ("1h30", 3630)],
)
def test_seconds(text: str, expected: float) -> None:
    assert seconds("--timeout", text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "2x", "h", "0", "1 hour"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(UserError, match="--timeout"):
        seconds("--timeout", text)


def test_pairs() -> None:
    assert pairs("--env", ["A=1", "B_C=x=y", "D="]) == {"A": "1", "B_C": "x=y", "D": ""}
    assert pairs("--env", None) == {}


@pytest.mark.parametrize("texts", [["A"], ["=1"], ["A B=1"], ["A=1", "A=2"]])
def test_bad_pairs(texts: list[str]) -> None:
    with pytest.raises(UserError, match="--env"):
        pairs("--env", texts)


def test_only_what_was_said_binds_the_load() -> None:
    said = bound_load(users=5, prompts=None, input_len=None, output_len=7, temperature=0.0)
    assert said == {"max_concurrency": 5, "output_len": 7, "temperature": 0.0}
