"""Signing in at an OpenID Connect provider that runs in this process, and ID tokens that it would never send."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwk, jwt

from storage.service.records import Role
from tests.oidc import CLIENT, ROLES, providing
from tests.unit.service.http.conftest import HOST, Api, serving_with
from tuner.errors import SettingError
from tuner.service.http.problems import Problem
from tuner.service.http.provider import Attempt, Provider, ProviderSettings, read_provider
from tuner.settings.serve import ServeSettings

ISSUER = "https://login.test"
NOW = int(time.time())
GOOD = {
    "iss": ISSUER,
    "aud": CLIENT,
    "sub": "1",
    "exp": NOW + 86_400,
    "nonce": "n",
    "email": "ada@example.com",
    "email_verified": True,
    "groups": ["ml"],
}
ATTEMPT = Attempt("s", "n", "v" * 43)
SETTINGS = ProviderSettings(ISSUER, CLIENT, {"ml": Role.USER, "platform": Role.ADMIN}, "secret")


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with providing() as found:
        yield found


@pytest.fixture
def served(issuer: str, tmp_path: Path) -> Iterator[Api]:
    given = ServeSettings(oidc_issuer=issuer, oidc_client_id=CLIENT, oidc_role=ROLES)
    settings = read_provider(given, {"TUNER_OIDC_CLIENT_SECRET": "secret"})
    assert settings is not None
    with serving_with(tmp_path, provider=Provider(settings)) as found:
        yield found


def answered(api: Api, name: str) -> dict[str, str]:
    """Begin to sign in, let somebody in at the provider, and return what it gives the browser."""
    address = api.client.get("/v1/sign-in").json()["address"]
    back = httpx.post(address, data={"sub": name}).headers["location"]
    assert back.startswith(f"{HOST}/?")
    return {key: values[0] for key, values in parse_qs(urlsplit(back).query).items()}


def sign_in(api: Api, name: str) -> Any:
    given = answered(api, name)
    return api.client.post("/v1/sign-in", json={"code": given["code"], "state": given["state"]})


def names(api: Api) -> list[str]:
    return [each.name for each in api.service.tokens() if each.name.startswith("sign-in-")]


@pytest.mark.parametrize(("name", "role"), [("ada", "user"), ("root", "admin"), ("vic", "viewer")])
def test_the_groups_say_the_role(served: Api, name: str, role: str) -> None:
    assert sign_in(served, name).status_code == 204
    who = served.client.get("/v1/session").json()
    assert (who["owner"], who["role"]) == (f"{name}@example.com", role)


@pytest.mark.parametrize(
    ("name", "why"),
    [("eve", "'eve@example.com' is in no group that has a role here"), ("una", "has not verified the address")],
)
def test_somebody_without_a_role_or_a_verified_address_is_refused(served: Api, name: str, why: str) -> None:
    response = sign_in(served, name)
    assert (response.status_code, names(served)) == (403, [])
    assert why in response.json()["detail"]
    assert served.client.get("/v1/session").status_code == 401


def test_an_admin_revokes_what_a_sign_in_made(served: Api) -> None:
    sign_in(served, "ada")
    (name,) = names(served)
    assert served.call("POST", f"/v1/tokens/{name}:revoke", "root").status_code == 200
    assert served.client.get("/v1/session").status_code == 401


def test_logging_out_makes_the_token_worthless(served: Api) -> None:
    sign_in(served, "ada")
    cookie = served.client.cookies["tuner_session"]
    assert served.client.delete("/v1/session").status_code == 204
    assert served.client.get("/v1/session", headers={"Authorization": f"Bearer {cookie}"}).status_code == 401


def test_a_token_of_an_admin_survives_logging_out(served: Api) -> None:
    served.client.post("/v1/session", json={"token": served.tokens["ada"]})
    served.client.delete("/v1/session")
    assert served.call("GET", "/v1/session", "ada").status_code == 200


def test_what_another_browser_began_is_refused(served: Api) -> None:
    given = answered(served, "ada")
    served.client.cookies.clear()
    response = served.client.post("/v1/sign-in", json={"code": given["code"], "state": given["state"]})
    assert (response.status_code, names(served)) == (401, [])
    answered(served, "ada")  # an attempt of this browser, with another state
    response = served.client.post("/v1/sign-in", json={"code": given["code"], "state": given["state"]})
    assert (response.status_code, names(served)) == (401, [])


def test_a_code_counts_once(served: Api) -> None:
    given = answered(served, "ada")
    cookie = served.client.cookies["tuner_sign_in"]
    body = {"code": given["code"], "state": given["state"]}
    assert served.client.post("/v1/sign-in", json=body).status_code == 204
    served.client.cookies.set("tuner_sign_in", cookie, path="/v1/sign-in")
    response = served.client.post("/v1/sign-in", json=body)
    assert (response.status_code, len(names(served))) == (401, 1)
    assert "was refused; begin again" in response.json()["detail"]


def test_expired_tokens_of_sign_ins_are_deleted(served: Api) -> None:
    sign_in(served, "ada")
    (name,) = names(served)
    served.service.forget_tokens("sign-in-", served.served.now() + timedelta(days=1))
    assert names(served) == []
    assert "ada" in {each.name for each in served.service.tokens()}
    assert name not in {each.name for each in served.service.tokens()}


def test_the_audit_log_has_who_signed_in_and_who_was_refused(served: Api) -> None:
    sign_in(served, "ada")
    sign_in(served, "eve")
    entries = [(each.owner, each.action, each.result) for each in served.service.audit_log(2)]
    assert entries == [(None, "log in", "refused"), ("ada@example.com", "log in", "done")]


def test_the_audit_log_has_who_logged_out_once(served: Api) -> None:
    sign_in(served, "ada")
    cookie, (name,) = served.client.cookies["tuner_session"], names(served)
    for _ in range(2):  # the second token is worthless already
        served.client.delete("/v1/session", headers={"Authorization": f"Bearer {cookie}"})
    last, before = served.service.audit_log(2)
    assert (last.token, last.owner, last.action, last.result) == (name, "ada@example.com", "log out", "done")
    assert last.detail["address"]
    assert before.action == "log in"


def test_the_page_names_the_provider(served: Api, issuer: str) -> None:
    assert f'<meta name="provider" content="{issuer.removeprefix("http://")}">' in served.client.get("/").text


def test_there_is_nothing_to_sign_in_at_without_a_provider(api: Api) -> None:
    assert '<meta name="provider" content="">' in api.client.get("/").text
    assert api.client.get("/v1/sign-in").status_code == 404
    assert api.client.post("/v1/sign-in", json={"code": "c", "state": "s"}).status_code == 404


def test_a_provider_that_does_not_answer_is_told_in_one_line(tmp_path: Path, caplog: Any) -> None:
    settings = replace(SETTINGS, issuer="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING), serving_with(tmp_path, provider=Provider(settings)) as api:
        response = api.client.get("/v1/sign-in")
    assert response.status_code == 503
    assert response.json()["detail"] == "signing in at 127.0.0.1:9 failed; try again, or ask an admin of this server"
    assert "sign-in: http://127.0.0.1:9/.well-known/openid-configuration cannot be read" in caplog.text


def test_behind_a_proxy_the_provider_sends_browsers_to_its_address(issuer: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, issuer=issuer)
    with serving_with(tmp_path, provider=Provider(settings), public_url="https://tuner.example/") as api:
        response = api.client.get("/v1/sign-in")
    asked = parse_qs(urlsplit(response.json()["address"]).query)
    assert asked["redirect_uri"] == ["https://tuner.example/"]
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["code_challenge"][0]) == 43  # SHA-256 in base64url
    assert "secure" in response.headers["set-cookie"].lower()


@cache
def key_of(_: str) -> jwk.RSAKey:
    """Return somebody's key, all of one name; to make one takes 100 ms."""
    return jwk.generate_key("RSA", 2048, {"kid": "a"})


class Sender:
    """A provider's server whose answers a test determines."""

    def __init__(self, claims: dict[str, Any], signer: str = "provider", issuer: str = ISSUER) -> None:
        key: jwk.RSAKey | jwk.OctKey
        if signer == "shared secret":
            header, key = {"alg": "HS256"}, jwk.OctKey.import_key(b"k" * 32)
        else:
            header, key = {"alg": "RS256", "kid": "a"}, key_of(signer)
        self.token = jwt.encode(header, claims, key, algorithms=[header["alg"]])
        place = {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
        self.answers: dict[str, Any] = {
            "/.well-known/openid-configuration": {"issuer": issuer, **place},
            "/jwks_uri": jwk.KeySet([key_of("provider")]).as_dict(private=False),
            "/token_endpoint": {"access_token": "t", "token_type": "Bearer", "id_token": self.token},
        }
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []

    def describe(self, **more: Any) -> None:
        """Let the description say something else."""
        self.answers["/.well-known/openid-configuration"] |= more

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        await asyncio.sleep(0)  # others may ask meanwhile
        path = request.url.path
        return httpx.Response(self.statuses.get(path, 200), json=self.answers[path])


def person(sender: Sender) -> Any:
    provider = Provider(SETTINGS, httpx.MockTransport(sender.answer))
    return asyncio.run(provider.person(ATTEMPT, "code", HOST))


def test_a_good_id_token_names_its_person() -> None:
    found = person(Sender(GOOD))
    assert (found.owner, found.role) == ("ada@example.com", Role.USER)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://other.test"},
        {"aud": "another client"},
        {"aud": ["another", CLIENT], "azp": "another"},
        {"exp": NOW - 600},
        {"nonce": "of another browser"},
        {"sub": None},
    ],
    ids=" ".join,  # not the values: each of pytest's processes has a time of its own
)
def test_an_id_token_for_somebody_else_is_refused(wrong: dict[str, Any]) -> None:
    claims = {name: value for name, value in {**GOOD, **wrong}.items() if value is not None}
    with pytest.raises(Problem) as caught:
        person(Sender(claims))
    assert caught.value.status == 401


def test_a_signature_by_another_key_or_a_shared_secret_is_refused() -> None:
    senders = Sender(GOOD, signer="other"), Sender(GOOD, signer="shared secret")
    for sender in senders:
        with pytest.raises(Problem, match="was refused"):
            person(sender)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, {"error": "invalid_grant"}, 401),
        (403, {"error": "invalid_grant"}, 401),  # Auth0
        (401, {"error": "invalid_client"}, 503),  # the secret of this service is wrong
        (400, ["invalid_grant"], 503),
        (500, {}, 503),
    ],
)
def test_only_a_refused_code_is_the_fault_of_who_signs_in(status: int, answer: Any, expected: int) -> None:
    sender = Sender(GOOD)
    sender.statuses["/token_endpoint"], sender.answers["/token_endpoint"] = status, answer
    with pytest.raises(Problem) as caught:
        person(sender)
    assert caught.value.status == expected


def test_a_description_of_another_issuer_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        person(Sender(GOOD, issuer="https://other.test"))
    assert "names the issuer 'https://other.test'" in str(caught.value.rule)


@pytest.mark.parametrize("address", ["http://login.test/x", "javascript:alert(1)", "https://[", 7, None])
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
def test_an_endpoint_that_is_not_safe_is_refused(name: str, address: object) -> None:
    sender = Sender(GOOD)
    sender.describe(**{name: address})
    with pytest.raises(Problem) as caught:
        person(sender)
    assert str(caught.value.rule).endswith(f"has no https:// address as {name}")
    assert sender.asked == ["/.well-known/openid-configuration"]


def test_a_key_that_is_new_is_read_once() -> None:
    sender = Sender(GOOD)
    provider = Provider(SETTINGS, httpx.MockTransport(sender.answer))
    asyncio.run(provider.person(ATTEMPT, "code", HOST))
    sender.answers["/jwks_uri"] = jwk.KeySet([key_of("other")]).as_dict(private=False)
    sender.answers["/token_endpoint"] = Sender(GOOD, signer="other").answers["/token_endpoint"]
    for _ in range(2):
        assert asyncio.run(provider.person(ATTEMPT, "code", HOST)).owner == "ada@example.com"
    assert sender.asked.count("/jwks_uri") == 2


@pytest.mark.parametrize("keys", [{}, {"keys": None}, {"keys": []}, {"keys": [{"kty": "new"}]}, {"keys": ["x"]}])
def test_a_set_without_a_key_is_a_provider_s_fault(keys: dict[str, Any]) -> None:
    sender = Sender(GOOD)
    sender.answers["/jwks_uri"] = keys
    with pytest.raises(Problem) as caught:
        person(sender)
    assert caught.value.status == 503


def test_a_key_of_a_kind_of_tomorrow_hides_no_other() -> None:
    sender = Sender(GOOD)
    sender.answers["/jwks_uri"]["keys"].insert(0, {"kty": "AKP", "kid": "b"})
    assert person(sender).owner == "ada@example.com"


def test_browsers_that_begin_at_once_wait_for_one_description() -> None:
    sender = Sender(GOOD)
    provider = Provider(SETTINGS, httpx.MockTransport(sender.answer))

    async def begin() -> list[str]:
        return await asyncio.gather(*(provider.address(ATTEMPT, HOST) for _ in range(20)))

    assert len({*asyncio.run(begin())}) == 1
    assert sender.asked == ["/.well-known/openid-configuration"]


@pytest.mark.parametrize(("subject", "status"), [("1", None), ("2", 403)])
def test_claims_that_the_token_lacks_are_those_of_the_same_subject(subject: str, status: int | None) -> None:
    sender = Sender({name: value for name, value in GOOD.items() if name != "email_verified"})
    sender.describe(userinfo_endpoint=f"{ISSUER}/userinfo")
    sender.answers["/userinfo"] = {"sub": subject, "email_verified": True, "email": "eve@example.com"}
    if status is None:
        assert person(sender).owner == "ada@example.com"
        return
    with pytest.raises(Problem) as caught:
        person(sender)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        *(("groups", each) for each in (None, 7, [{"name": "ml"}], ["sales", ["ml"]], {"ml": True})),
        *(("email", each) for each in (None, 7, "", "a b", "../x", "x" * 64)),
    ],
)
def test_groups_of_another_form_give_no_role_and_no_claim_no_owner(claim: str, value: object) -> None:
    with pytest.raises(Problem) as caught:
        person(Sender({**GOOD, claim: value}))
    assert caught.value.status == 403


WHOLE: dict[str, Any] = {"oidc_issuer": ISSUER, "oidc_client_id": CLIENT, "oidc_role": ("*=viewer",)}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"oidc_issuer": "login.test"}, "oidc_issuer"),
        ({"oidc_issuer": "http://login.test"}, "oidc_issuer"),
        ({"oidc_client_id": None}, "oidc_client_id"),
        ({"oidc_role": ()}, "oidc_role"),
        ({"oidc_role": ("ml",)}, "oidc_role"),
        ({"oidc_role": ("ml=owner",)}, "oidc_role"),
        ({"oidc_issuer": None}, "oidc_client_id"),
        ({"oidc_issuer": None, "oidc_client_id": None, "oidc_role": (), "oidc_scope": ("openid",)}, "oidc_scope"),
        ({"oidc_issuer": "https://["}, "oidc_issuer"),
        ({"oidc_scope": ("groups",)}, "oidc_scope"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_provider(ServeSettings(**{**WHOLE, **given}), {})
    assert caught.value.field == field


def test_everybody_may_have_a_role_and_the_secret_is_not_shown() -> None:
    found = read_provider(ServeSettings(**WHOLE), {"TUNER_OIDC_CLIENT_SECRET": "s3cret"})
    assert found is not None
    assert found.roles == {"*": Role.VIEWER}
    assert "s3cret" not in repr(found)
