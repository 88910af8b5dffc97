"""Options that need reading, and the names of settings on the command line."""

import pytest
import typer
from typer.core import TyperCommand

from tuner.cli.options import option_of, pairs, server_arguments
from tuner.errors import SettingError, UserError
from tuner.settings.declared import read_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("45s", 45), ("2h", 7200), ("1h30m", 5400), ("10min", 600), ("0.5h", 1800), ("1h30", 3630)],
)
def test_durations(text: str, expected: float) -> None:
    assert read_duration("timeout", text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "2x", "h", "0", "1 hour"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(SettingError, match=r"^timeout="):
        read_duration("timeout", text)


def test_pairs() -> None:
    assert pairs("env", ["A=1", "B_C=x=y", "D="]) == {"A": "1", "B_C": "x=y", "D": ""}
    assert pairs("env", None) == {}


@pytest.mark.parametrize("texts", [["A"], ["=1"], ["A B=1"], ["A=1", "A=2"]])
def test_bad_pairs(texts: list[str]) -> None:
    with pytest.raises(SettingError, match=r"^env="):
        pairs("env", texts)


def test_an_error_names_a_setting_as_python_or_as_the_command_line_does() -> None:
    error = SettingError("max_concurrency", 0, "at least 1 is needed", "raise it, or leave out {learn_from}")
    assert str(error) == "max_concurrency=0: at least 1 is needed; raise it, or leave out learn_from"
    line = "--users 0: at least 1 is needed; raise it, or leave out --learn-from"
    assert error.message(option_of, " ") == line


def test_the_error_of_a_setting_that_was_not_given_starts_with_the_rule() -> None:
    assert str(SettingError("storage", None, "there is no database", "give {storage}")) == (
        "there is no database; give storage"
    )


@pytest.mark.parametrize("words", [(), ("--seed", "1"), ("llama.cpp=", "--threads", "8"), ("vllm=--seed", "1")])
def test_flags_of_the_server_may_begin_with_an_engines_name(words: tuple[str, ...]) -> None:
    assert server_arguments(context(*words)) == words


@pytest.mark.parametrize("word", ["stray", "vllm", "none=", "=--seed"])
def test_another_word_is_no_flag(word: str) -> None:
    with pytest.raises(UserError, match=f"'{word}' is not an option of `optimize`"):
        server_arguments(context(word))


def context(*words: str) -> typer.Context:
    """Return the context of `tuner optimize` with words that no option takes."""
    made = typer.Context(TyperCommand("optimize"), info_name="optimize")
    made.args = list(words)
    return made
