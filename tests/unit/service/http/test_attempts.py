"""What strangers and users attempt and must not get; docs/service.md lists these attempts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.service.http.conftest import HOST, Api
from tuner.service.http.access import COOKIE
from tuner.service.http.edge.guard import LARGEST_BODY

READS = ["", "/trials", "/conclusion", "/charts/progress", "/records", "/report", "/export", "/log", "/events"]
VERBS = [":stop", ":cancel", ":resume"]


def every_route(api: Api) -> list[tuple[str, str]]:
    paths = api.client.get("/openapi.json").json()["paths"]
    fixed = [("{id}", "first"), ("{name}", "x")]
    found = []
    for path, methods in paths.items():
        address = path
        for placeholder, value in fixed:
            address = address.replace(placeholder, value)
        found += [(method.upper(), address) for method in methods]
    return found


OPEN_ROUTES = {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/session"), ("DELETE", "/v1/session")}


def test_every_route_but_the_open_ones_needs_a_token(api: Api) -> None:
    assert api.submit("first").status_code == 201
    routes = every_route(api)
    assert len(routes) > 20
    for method, path in routes:
        if (method, path) not in OPEN_ROUTES:
            assert api.call(method, path, None).status_code == 401, (method, path)
            for token in ("old", "gone"):
                assert api.call(method, path, token).status_code == 401, (method, path, token)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer tnr_", "Bearer tnr_" + "0" * 64, "Basic YTpi", "tnr_" + "0" * 64, "Bearer \xff"],
)
def test_a_header_without_a_known_token_is_refused(api: Api, header: str) -> None:
    response = api.client.get("/v1/studies", headers=[(b"Authorization", header.encode("latin-1"))])
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    assert "0000" not in response.text


def test_another_owners_study_does_not_exist(api: Api) -> None:
    api.submit("secret", "ada")
    for path in READS:
        assert api.call("GET", f"/v1/studies/secret{path}", "ben").status_code == 404, path
    for verb in VERBS:
        assert api.call("POST", f"/v1/studies/secret{verb}", "ben").status_code == 404, verb
    assert api.call("PATCH", "/v1/studies/secret", "ben", json={"shared": True}).status_code == 404
    assert api.call("DELETE", "/v1/studies/secret", "ben").status_code == 404
    assert api.call("GET", "/v1/studies", "ben").json()["studies"] == []
    assert api.call("GET", "/v1/studies", "ben", params={"owner": "ada"}).json()["studies"] == []
    assert "secret" not in api.call("GET", "/v1/queue", "ben").text


def test_a_taken_id_of_another_owner_tells_nothing_of_it(api: Api) -> None:
    api.submit("secret", "ada")
    response = api.submit("secret", "ben")
    assert response.status_code == 422
    assert response.json()["field"] == "id"
    assert "ada" not in response.text


def test_a_shared_study_is_read_and_not_changed(api: Api) -> None:
    api.submit("open", "ada", shared=True)
    assert api.call("GET", "/v1/studies/open", "ben").status_code == 200
    for verb in VERBS:
        assert api.call("POST", f"/v1/studies/open{verb}", "ben").status_code == 403
    assert api.call("DELETE", "/v1/studies/open", "ben").status_code == 403


def test_a_viewer_reads_only(api: Api) -> None:
    api.submit("mine", "ada")
    assert api.call("GET", "/v1/studies/mine", "eve").status_code == 200
    assert api.submit("other", "eve").status_code == 403
    for verb in VERBS:
        assert api.call("POST", f"/v1/studies/mine{verb}", "eve").status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("POST", "/v1/tokens/ada:revoke"),
        ("GET", "/v1/owners"),
        ("PUT", "/v1/owners/ada"),
        ("GET", "/v1/audit"),
    ],
)
def test_only_admins_manage_the_service(api: Api, method: str, path: str) -> None:
    body = {"name": "x", "owner": "x", "role": "admin"} if path == "/v1/tokens" else {}
    for token in ("ada", "eve"):
        assert api.call(method, path, token, json=body).status_code == 403


@pytest.mark.parametrize("id", ["../x", "a/b", "..", ".hidden", "A", "a:stop", "a b", "a\nb", "x" * 101, "é", ""])
def test_an_id_is_a_plain_name(api: Api, id: str) -> None:
    response = api.submit(id)
    assert response.status_code == 422
    assert response.json()["field"] == "id"
    assert not list(api.folder.glob("submissions/*"))


@pytest.mark.parametrize("path", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "first%00", "first%0d%0aSet-Cookie:x=1"])
def test_a_path_leads_nowhere_else(api: Api, path: str) -> None:
    api.submit("first")
    for end in ("", "/log", "/export", "/report"):
        response = api.call("GET", f"/v1/studies/{path}{end}")
        assert response.status_code in (404, 422), (path, end)
        assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"server_arguments": ["--trust-remote-code"]}, "server_arguments"),
        ({"baseline": "--trust_remote_code"}, "baseline"),
        ({"model": "/etc"}, "model"),
        ({"model": "http://169.254.169.254/latest"}, "model"),
        ({"model": "file:///etc/passwd"}, "model"),
        ({"tokenizer": "../.."}, "tokenizer"),
        ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, "env"),
        ({"env": {"PATH": "/tmp"}}, "env"),
        ({"space": "/etc/passwd"}, "space"),
        ({"quality_task": "/etc/passwd"}, "quality_task"),
        ({"workload": ["classes: {a: {text: {file: /etc/passwd}}}"]}, "workload"),
        ({"vllm": "/bin/sh"}, "vllm"),
        ({"storage": "postgresql://elsewhere/db"}, "storage"),
        ({"output": "/etc/cron.d/x"}, "output"),
        ({"files": {"../x": "y"}}, "files"),
        ({"trials": 0}, "trials"),
        ({"engine": "vllm-fork"}, "engine"),
        ({"engine": "simulated\n"}, "engine"),
    ],
)
def test_settings_that_reach_beyond_the_study_are_refused(api: Api, settings: dict[str, Any], field: str) -> None:
    response = api.submit("reach", settings={"engine": "simulated", **settings})
    assert response.status_code == 422
    body = response.json()
    assert body["field"] == field
    assert body["rule"]
    assert api.call("GET", "/v1/studies/reach").status_code == 404


def test_a_large_body_is_refused_before_it_is_read(api: Api) -> None:
    body = json.dumps({"settings": {"space": "x" * LARGEST_BODY}})
    assert (
        api.call("POST", "/v1/studies", content=body, headers={"Content-Type": "application/json"}).status_code == 413
    )
    chunks = (b"{" for _ in range(3))
    assert api.call("POST", "/v1/studies", content=chunks).status_code == 413


def test_a_page_of_another_site_changes_nothing(api: Api) -> None:
    api.submit("first")
    assert api.call("POST", "/v1/session", None, json={"token": api.tokens["ada"]}).status_code == 204
    assert api.client.get("/v1/studies").status_code == 200
    for headers in ({}, {"Origin": "https://evil.test"}, {"Origin": "null"}, {"Origin": f"{HOST}.evil.test"}):
        assert api.client.post("/v1/studies/first:cancel", headers=headers).status_code == 403
    assert api.client.post("/v1/studies/first:cancel", headers={"Origin": HOST}).status_code == 200


def test_the_cookie_is_kept_from_scripts_and_other_sites(api: Api) -> None:
    response = api.call("POST", "/v1/session", None, json={"token": api.tokens["ada"]})
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=tnr_")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert api.call("POST", "/v1/session", None, json={"token": "tnr_" + "0" * 64}).status_code == 401


def test_no_answer_has_a_token_but_that_to_its_maker(api: Api) -> None:
    body = {"name": "new", "owner": "ada", "role": "user", "days": 1}
    made = api.call("POST", "/v1/tokens", "root", json=body).json()["token"]
    listed = api.call("GET", "/v1/tokens", "root")
    assert made not in listed.text
    assert made not in api.call("GET", "/v1/audit", "root").text
    assert listed.json()[-1]["token"] is None
    assert api.client.get("/v1/session", headers={"Authorization": f"Bearer {made}"}).json()["owner"] == "ada"


def test_answers_have_the_headers_of_a_guarded_page(api: Api) -> None:
    for path in ("/v1/studies", "/nowhere", "/healthz"):
        headers = api.call("GET", path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_actions_are_in_the_audit_log(api: Api) -> None:
    api.submit("first")
    api.call("POST", "/v1/studies/first:cancel")
    entries = api.call("GET", "/v1/audit", "root").json()
    assert [(e["owner"], e["action"], e["resource"], e["result"]) for e in entries] == [
        ("ada", "cancel", "first", "CANCELLED"),
        ("ada", "submit", "first", "created"),
    ]


def test_a_report_does_not_compare_with_another_owners_study(api: Api) -> None:
    api.submit("mine", "ben")
    api.submit("secret", "ada")
    response = api.call("GET", "/v1/studies/mine/report?other=secret", "ben")
    assert response.status_code == 404
    assert "there is no study 'secret' that you may read" in response.json()["detail"]
    assert api.call("GET", "/v1/studies/mine/export?file=..%2Fx", "ben").status_code == 422


@pytest.mark.parametrize(
    "webhook",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:8600/v1/tokens",
        "https://hooks.test/T0/secret",
        "file:///etc/passwd",
        "TEAM",
        "other",
        "",
    ],
)
def test_a_study_names_a_webhook_of_the_server_and_no_address(api: Api, webhook: str) -> None:
    response = api.submit("first", webhook=webhook)
    assert response.status_code == 422
    problem = response.json()
    assert problem["field"] == "webhook"
    assert problem["rule"] == "this server has the webhooks team"
    assert api.call("GET", "/v1/studies/first").status_code == 404


def test_a_webhooks_address_is_in_no_answer(api: Api) -> None:
    answers = [api.submit("first", webhook="team")]
    assert answers[0].json()["webhook"] == "team"
    answers += [
        api.call("GET", path) for path in ("/v1/catalogue", "/v1/studies/first", "/v1/studies", "/openapi.json")
    ]
    assert answers[1].json()["webhooks"] == ["team"]
    assert all(answer.is_success and "hooks.test" not in answer.text for answer in answers)
