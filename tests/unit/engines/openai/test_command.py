"""The user's command: how its text is split, what is refused, and how placeholders are replaced."""

from __future__ import annotations

import pytest

from tuner.engines.command_line import program_of
from tuner.engines.user_command import api_key_in, filled, flags_in, read_command
from tuner.errors import SettingError

VALUES = {"{host}": "127.0.0.1", "{port}": "81", "{model}": "m"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve --port {port}", ("serve", "--port", "{port}")),
        ("serve 'a b' \"$HOME;ls\" {host}:{port}", ("serve", "a b", "$HOME;ls", "{host}:{port}")),
        ("serve {flags} -p {port} -- x", ("serve", "{flags}", "-p", "{port}", "--", "x")),
        ("serve --json '{\"a\": {}}' {port}", ("serve", "--json", '{"a": {}}', "{port}")),
    ],
)
def test_the_text_is_split_as_by_a_shell(text: str, words: tuple[str, ...]) -> None:
    assert read_command(text) == words


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no program is named"),
        ("serve --port 8000", "no argument has {port}, and each trial has a port of its own"),
        ("serve{port}", "no argument has {port}"),
        ("serve '{port}", "no words of a command (No closing quotation)"),
        ("serve {port} --args={flags}", "{flags} stands for several words; write it once"),
        ("serve {port} {flags} {flags}", "{flags} stands for several words"),
        ("{flags} {port}", "{flags} stands for several words"),
    ],
)
def test_a_text_that_is_no_command_is_refused(text: str, rule: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_command(text)
    assert rule in str(caught.value)
    assert caught.value.field == "server_command"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("-p", "{port}"), ("-p", "81", "--a", "1")),
        (("{flags}", "-p", "{port}"), ("--a", "1", "-p", "81")),
        (("x", "{flags}", "{host}:{port}", "{model}"), ("x", "--a", "1", "127.0.0.1:81", "m")),
        (("{name}", "{port}"), ("{name}", "81", "--a", "1")),
    ],
)
def test_flags_stand_in_their_place_and_can_be_read_back(words: tuple[str, ...], made: tuple[str, ...]) -> None:
    assert filled(words, ("--a", "1"), VALUES) == made
    assert flags_in(words, made) == ("--a", "1")


def test_values_and_flags_are_not_replaced_again() -> None:
    assert filled(("{model}", "{port}"), ("{port}",), {**VALUES, "{model}": "{port}"}) == ("{port}", "81", "{port}")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), None),
        (("--api-keys", "x"), None),
        (("--api-key", "a"), "a"),
        (("--api_key=a", "--port", "1"), "a"),
        (("--api-key", "a", "--api-key", "b"), "b"),
    ],
)
def test_the_last_key_of_a_command_is_the_one_that_clients_send(words: tuple[str, ...], key: str | None) -> None:
    assert api_key_in(words) == key


def test_a_program_of_a_command_keeps_the_placeholders_of_its_address() -> None:
    program = program_of("openai", ("/opt/serve.sh", "{model}", "{flags}", "{port}"))
    words = program.words("m", "m", ("--a", "1"))
    assert (program.name, program.engine) == ("serve.sh", "serve.sh")
    assert words == ("m", "--a", "1", "{port}")
    assert program.listening(words, "0.0.0.0", 81) == ("m", "--a", "1", "81")
    assert program.on_default_port(words) == ("m", "--a", "1", "8000")
    assert program.flags_of(("/opt/serve.sh", "m", "--a", "1", "81")) == ("--a", "1")
    assert program.words_after_flags == 1


def test_other_programs_have_flags_for_their_address() -> None:
    program = program_of("vllm")
    assert program.listening(("serve", "m"), "0.0.0.0", 81) == ("serve", "m", "--host", "0.0.0.0", "--port", "81")
    assert program.on_default_port(("serve", "m")) == ("serve", "m")
