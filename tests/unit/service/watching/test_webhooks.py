"""The webhooks of a server: names, addresses of the environment, and which one a submission has."""

from __future__ import annotations

import pytest

from tuner.errors import SettingError
from tuner.service.watching.webhooks import Webhook, find_webhooks

URL = "https://hooks.example/T0/secret"


def test_addresses_and_secrets_are_those_of_the_environment() -> None:
    variables = {
        "TUNER_WEBHOOK_TEAM": URL,
        "TUNER_WEBHOOK_ON_CALL": "http://10.0.0.1/x",
        "TUNER_WEBHOOK_TEAM_SECRET": "k",
    }
    found = find_webhooks(["team"], "on-call", variables)
    assert found.by_name == {
        "team": Webhook("team", URL, "k"),
        "on-call": Webhook("on-call", "http://10.0.0.1/x"),
    }
    assert found.default == "on-call"


def test_no_text_shows_address_or_secret() -> None:
    assert repr(Webhook("team", URL, "key")) == "Webhook(name='team')"


@pytest.mark.parametrize(
    "url", ["", "hooks.example", "ftp://hooks.example", "https://", "https://[", "http://a:x/", "http://a\n"]
)
def test_a_variable_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        find_webhooks(["team"], None, {"TUNER_WEBHOOK_TEAM": url})
    # The value is not repeated, because an address may contain a secret.
    remedy = "set TUNER_WEBHOOK_TEAM to one such as https://hooks.example/tuner"
    assert str(caught.value) == f"webhook='team': TUNER_WEBHOOK_TEAM has no address; {remedy}"


@pytest.mark.parametrize("name", ["", "Team", "1st", "a_b", "a" * 32, "team-secret", "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError):
        find_webhooks([name], None, {"TUNER_WEBHOOK_" + name.upper().replace("-", "_"): URL})


def test_a_submission_has_the_webhook_that_it_names_or_the_default() -> None:
    variables = {"TUNER_WEBHOOK_A": URL, "TUNER_WEBHOOK_B": URL}
    assert find_webhooks(["a"], None, variables).chosen(None) is None
    assert find_webhooks(["a"], "b", variables).chosen(None) == "b"
    assert find_webhooks(["a"], "b", variables).chosen("a") == "a"
    with pytest.raises(SettingError, match="webhooks a, b"):
        find_webhooks(["a"], "b", variables).chosen("http://169.254.169.254/latest")
    with pytest.raises(SettingError, match="no webhook"):
        find_webhooks([], None, variables).chosen("a")
