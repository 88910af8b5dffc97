"""Signing in at a provider, in a browser: roles, a refusal, and a token that an admin revokes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.page_walk import Walk, walk
from tests.oidc import CLIENT, ROLES, providing
from tests.service.running import Service, start_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
ADA, ROOT, EVE = (f"{name}@example.com" for name in ("ada", "root", "eve"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with providing() as issuer:
        roles = [word for role in ROLES for word in ("--oidc-role", role)]
        options = ["--oidc-issuer", issuer, "--oidc-client-id", CLIENT, *roles]
        secret = {"TUNER_OIDC_CLIENT_SECRET": "secret"}
        found = start_service(tmp_path_factory.mktemp("sign_in"), *options, environment=secret)
        try:
            yield found
        finally:
            found.process.terminate()
            found.process.wait()


def faults(person: Walk) -> list[str]:
    """Return what `check` found; the provider's page has faults of its own."""
    return [each for each in person.problems if each.startswith(("log-in", "refused", "tokens"))]


def sign_in(person: Walk, name: str) -> None:
    """Go to the provider, and be let in by it under a name."""
    person.page.click("#sign-in")
    person.page.click(f"button[value='{name}']")
    person.page.wait_for_url(re.compile(rf"^{re.escape(person.address)}/(#/\w+)?$"))


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_ada_and_an_admin(opened: Browser, service: Service, tmp_path: Path, width: int, scheme: str) -> None:
    with (
        walk(opened, service.address, width, scheme, tmp_path / "ada") as ada,
        walk(opened, service.address, width, scheme, tmp_path / "root") as root,
    ):
        ada.check("log-in")
        sign_in(ada, "ada")
        ada.see(f"{ADA} (user)", "header")
        assert ada.page.get_by_role("link", name="Tokens").count() == 0
        sign_in(root, "root")
        root.see(f"{ROOT} (admin)", "header")
        root.go("tokens")
        root.page.locator("tr", has_text=ADA).get_by_role("button", name=re.compile("^revoke")).first.click()
        root.page.get_by_role("button", name="revoke", exact=True).last.click()
        root.see("is revoked", "body")
        root.check("tokens")
        ada.go("queue")
        ada.see("Log in")
        root.page.click("#log-out")
        root.see("Log in")
        assert faults(ada) + faults(root) == []


def test_somebody_without_a_role_is_told_so(opened: Browser, service: Service, tmp_path: Path) -> None:
    with walk(opened, service.address, 390, "light", tmp_path) as eve:
        sign_in(eve, "eve")
        eve.see(f"'{EVE}' is in no group that has a role here; ask an admin of this server", "#alerts")
        eve.check("refused")
        eve.page.click("#sign-in")
        eve.page.click("button[value=deny]")
        eve.see("did not let you in: access_denied", "#alerts")
        eve.see("Log in")
        assert faults(eve) == []
