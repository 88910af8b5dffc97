"""Which server is asked, with which token, and what is refused before anything is sent."""

from __future__ import annotations

import pytest

from tuner.client.address import find_address
from tuner.client.client import Client
from tuner.errors import SettingError

TOKEN = "tnr_" + "a1" * 32
LOCAL = "http://127.0.0.1:8600"


def test_arguments_come_before_the_environment() -> None:
    variables = {"TUNER_SERVER": "https://b.example", "TUNER_TOKEN": "other"}
    found = find_address(f"{LOCAL}/", TOKEN, environment=variables)
    assert (found.url, found.token) == (LOCAL, TOKEN)
    found = find_address(None, None, environment=variables)
    assert (found.url, found.token) == ("https://b.example", "other")


@pytest.mark.parametrize("url", [LOCAL, "http://localhost:1", "http://[::1]:8600", "https://b.example/tuner"])
def test_a_token_goes_to_this_machine_or_over_tls(url: str) -> None:
    assert find_address(url, TOKEN, environment={}).url == url


@pytest.mark.parametrize("url", ["http://b.example", "http://10.0.0.1:8600", "http://127.0.0.1.b.example"])
def test_a_token_is_not_sent_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(SettingError, match="without TLS") as error:
        find_address(url, TOKEN, environment={})
    assert error.value.field == "server"
    assert find_address(url, TOKEN, insecure=True, environment={}).url == url


@pytest.mark.parametrize("url", ["nope", "ftp://b.example", "http://", "http://h:x", "https://h/?a=1", "https://h/\n"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as error:
        find_address(url, TOKEN, environment={})
    assert error.value.field == "server"


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingError) as error:
        find_address("https://ada:geheim@h", TOKEN, environment={})
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("token", ["", "  ", "a\nb", "a b", "ä", "x" * 513])
def test_a_token_that_cannot_be_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(SettingError) as error:
        find_address(LOCAL, token, environment={})
    assert error.value.field == "token"
    assert token.strip() == "" or token not in str(error.value)


def test_no_text_shows_the_token() -> None:
    assert TOKEN not in repr(find_address(LOCAL, TOKEN, environment={}))
    with Client(LOCAL, TOKEN) as client:
        assert repr(client) == "Client('http://127.0.0.1:8600')"


def test_without_a_server_the_next_step_is_said() -> None:
    with pytest.raises(SettingError, match="set TUNER_SERVER"):
        find_address(None, TOKEN, environment={})
