"""The line about a package of an extra that is missing."""

import pytest

from tuner import extras
from tuner.errors import UserError


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("plotly", "report"),
        ("plotly.offline", "report"),
        ("jinja2", "report"),
        ("flask_wtf", "ui"),
        ("xllamacpp", "llama-cpp"),
        ("psycopg", "postgresql"),
        ("numpy", None),
        ("nonesuch", None),
    ],
)
def test_the_extra_of_a_module(module: str, extra: str | None) -> None:
    assert extras.extra_of(module) == extra


def test_the_line_names_package_and_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.need("plotly")
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(UserError) as caught:
        extras.need("plotly")
    remedy = "`pip install 'llm-serving-tuner[report]'`, in a checkout `uv sync --inexact --extra report`"
    assert str(caught.value) == f"the package `plotly` is not installed; {remedy}"


def test_a_module_of_no_extra_is_an_error_of_ours() -> None:
    assert extras.missing(ModuleNotFoundError("nonesuch", name="nonesuch")) is None


def test_without_the_distribution_there_are_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "DISTRIBUTION", "no-such-distribution")
    assert extras.extra_of("plotly") is None
