"""The edge of the service: rates, attempts to guess a token, connections, and slow clients."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from storage.service.records import Event, Role, SubmissionState
from tests.served import Served, serving
from tests.store_samples import study
from tests.unit.service.http.conftest import HOST, Api, serving_with
from tuner.service.http.access import COOKIE, store_token
from tuner.service.http.edge import rates, streams
from tuner.service.http.edge.connections import Connections, Limits, network_of
from tuner.service.http.edge.guard import LARGEST_BODY
from tuner.service.http.edge.rates import LOG_INS, REQUESTS, STRANGERS, Rate, Rates
from tuner.service.http.edge.streams import CHECK_S, MOST_STREAMS, PAGE, Stream
from tuner.service.http.server import make_server
from tuner.service.watching.deployed import allowed_hosts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(rates, "REQUESTS", Rate(10, 100))
    monkeypatch.setattr(rates, "STRANGERS", Rate(5, 50))
    with serving_with(tmp_path, Rates(clock=clock)) as api:
        yield api


def test_a_bucket_has_its_burst_and_is_filled_at_its_rate(clock: Clock) -> None:
    found, key = Rates(clock=clock), ("x", Rate(2, 3))
    assert [found.wait(key) for _ in range(4)] == [None, None, None, 1]
    clock.now += 0.5  # one request is due after half a second
    assert [found.wait(key) for _ in range(2)] == [None, 1]
    clock.now += 100
    assert [found.wait(key) for _ in range(4)] == [None, None, None, 1]
    assert found.wait(("y", Rate(2, 3))) is None


def test_the_wait_is_as_long_as_the_rate_makes_it(clock: Clock) -> None:
    found, key = Rates(clock=clock), ("x", Rate(0.1, 1))
    assert found.wait(key) is None
    assert found.wait(key) == 10
    clock.now += 7.5
    assert found.wait(key) == 3  # 2.5 s, in whole seconds


def test_what_a_request_counts_for(clock: Clock) -> None:
    found = Rates(clock=clock)
    found.answered("known", "/v1/queue", 200)
    assert found.key("GET", "/v1/studies", "known", "a") == ("known", REQUESTS)
    assert found.key("GET", "/v1/studies", "invented", "a") == ("a", STRANGERS)
    assert found.key("GET", "/page/main.js", None, "a") == ("a", STRANGERS)
    assert found.key("POST", "/v1/session", "known", "a") == ("a", LOG_INS)
    assert found.key("GET", "/healthz", None, "a") is None
    assert Rates(limited=False).key("GET", "/v1/studies", "known", "a") is None


@pytest.mark.parametrize(
    "answers",
    [
        [("/healthz", 200)],  # needs no token, and so proves none
        [("/v1/session", 204)],
        [("/v1/nothing", 404)],
        [("/v1/queue", 200), ("/v1/queue", 401)],  # a token that is refused again
    ],
)
def test_a_token_that_no_answer_proves_counts_for_its_address(clock: Clock, answers: list[tuple[str, int]]) -> None:
    found = Rates(clock=clock)
    for path, status in answers:
        found.answered("invented", path, status)
    assert found.key("GET", "/v1/studies", "invented", "a") == ("a", STRANGERS)


def test_invented_tokens_and_addresses_fill_no_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_BUCKETS", 3)
    found = Rates(clock=clock)
    for address in "abcdef":
        assert found.wait((address, STRANGERS)) is None
    assert [address for address, _ in found._buckets] == ["d", "e", "f"]


def test_a_token_that_asks_too_often_gets_429_and_others_do_not(limited: Api, clock: Clock) -> None:
    def ask(name: str = "ada") -> Any:
        return limited.call("GET", "/v1/scores?study=none", name)

    answers = [ask().status_code for _ in range(102)]
    assert answers.count(200) == 101  # the first one counts for the address
    answer = ask()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["rule"] == "10 requests a second, and 100 at once, are the most"
    assert ask("ben").status_code == 200
    assert limited.call("GET", "/healthz", None).status_code == 200
    clock.now += 1
    assert [ask().status_code for _ in range(11)] == [200] * 10 + [429]


def test_invented_tokens_are_limited_by_their_address(limited: Api) -> None:
    def invented(number: int) -> Any:
        return limited.client.get("/v1/studies", headers={"Authorization": f"Bearer tnr_{number:064x}"})

    answers = [invented(number).status_code for number in range(51)]
    assert answers == [401] * 50 + [429]


def test_attempts_to_log_in_are_few_and_the_audit_log_has_no_more_lines(limited: Api) -> None:
    body = {"token": f"tnr_{'0' * 64}"}
    answers = [limited.call("POST", "/v1/session", None, json=body).status_code for _ in range(25)]
    assert answers == [401] * 20 + [429] * 5
    assert len(limited.call("GET", "/v1/audit?limit=500", "root").json()) == 20


READS = ["", "/trials", "/conclusion", "/charts?name=progress", "/records", "/report", "/export", "/log", "/events"]
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
OPEN_ROUTES |= {("GET", "/v1/sign-in"), ("POST", "/v1/sign-in")}


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
def test_a_header_without_a_known_token_is_refused(refusing: Api, header: str) -> None:
    response = refusing.client.get("/v1/studies", headers=[(b"Authorization", header.encode("latin-1"))])
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
def test_only_admins_manage_the_service(refusing: Api, method: str, path: str) -> None:
    body = {"name": "x", "owner": "x", "role": "admin"} if path == "/v1/tokens" else {}
    for token in ("ada", "eve"):
        assert refusing.call(method, path, token, json=body).status_code == 403


@pytest.mark.parametrize("id", ["../x", "a/b", "..", ".hidden", "A", "a:stop", "a b", "a\nb", "x" * 101, "é", ""])
def test_an_id_is_a_plain_name(refusing: Api, id: str) -> None:
    response = refusing.submit(id)
    assert response.status_code == 422
    assert response.json()["field"] == "id"
    assert not list(refusing.folder.glob("submissions/*"))


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
        ({"tokenizer": "../.."}, "tokenizer"),
        ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, "env"),
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
        ({"size": True}, "engine"),
    ],
)
def test_settings_that_reach_beyond_the_study_are_refused(refusing: Api, settings: dict[str, Any], field: str) -> None:
    response = refusing.submit("reach", settings={"engine": "simulated", **settings})
    assert response.status_code == 422
    body = response.json()
    assert body["field"] == field
    assert body["rule"]
    assert refusing.call("GET", "/v1/studies/reach").status_code == 404


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"preset": "qwen2.5-0.5b-t4"}, "a closed loop has users and no request rate"),
        ({"card": ["/etc/passwd"]}, "card='/etc/passwd': this server has none of that name"),
        ({"card": ["l4"], "card_price": {"h100": 2.0}}, "no card of this name is compared: l4"),
        ({"server_arguments": ["--tensor-parallel-size", "2"]}, "leave out the flags of parallelism"),
        ({"confirm": 1}, "cpu is not among the cards"),
    ],
)
def test_servers_for_a_load_are_checked_before_they_are_queued(
    refusing: Api, settings: dict[str, Any], line: str
) -> None:
    response = refusing.submit("fleet", settings={"size": True, **settings})
    assert response.status_code == 422
    assert line in response.json()["detail"]
    assert refusing.call("GET", "/v1/studies/fleet").status_code == 404


def test_servers_for_a_load_need_no_gpu(api: Api) -> None:
    found = api.submit("fleet", settings={"size": True, "card": ["h100"]})
    assert (found.status_code, found.json()["kind"]) == (201, "simulated")
    assert api.submit("other", settings={"size": True}, kind="cpu").json()["field"] == "kind"
    preview = api.call("POST", "/v1/studies:preview", json={"settings": {"size": True}})
    assert (preview.status_code, preview.json()["field"]) == (422, "size")


def test_a_card_to_simulate_asks_for_a_simulated_device(api: Api) -> None:
    found = api.submit("card", settings={"gpu": "l4", "trials": 4})
    assert (found.status_code, found.json()["kind"]) == (201, "simulated")


@pytest.mark.parametrize("settings", [{"gpu": "l4"}, {"vllm_version": "0.25.1"}, {"engine": "vllm", "gpu": "l4"}])
def test_a_simulation_on_a_real_device_is_refused_before_it_is_queued(refusing: Api, settings: dict[str, Any]) -> None:
    response = refusing.submit("card", settings={"model": "Qwen/Qwen2.5-0.5B", **settings}, kind="cpu")
    assert response.status_code == 422
    assert "this setting is for a simulation, and this study is measured" in response.json()["detail"]
    assert refusing.call("GET", "/v1/studies/card").status_code == 404


def test_only_an_owner_lets_the_service_read_servers_and_only_listed_ones(tmp_path: Path) -> None:
    body = {"urls": ["http://gpu-7:8000"]}
    with serving_with(tmp_path, deployed=allowed_hosts(["gpu-7:8000"])) as api:
        api.submit("s", shared=True)
        api.served.store.create_study(study("s"))
        for token, status in (("ben", 403), ("eve", 403), (None, 401)):
            assert api.call("PUT", "/v1/studies/s/watch", token, json=body).status_code == status
        refused = api.call("PUT", "/v1/studies/s/watch", json={"urls": ["http://169.254.169.254"]})
        assert (refused.status_code, refused.json()["field"]) == (422, "urls")
        early = api.call("PUT", "/v1/studies/s/watch", json=body)
        assert "it has no winner yet" in early.json()["detail"]
        assert api.call("GET", "/v1/studies/s").json()["watch"] is None
        assert api.call("DELETE", "/v1/studies/s/watch").json()["watch"] is None


def test_a_server_reads_no_other_server_by_default(refusing: Api) -> None:
    refusing.submit("unwatched")
    refused = refusing.call("PUT", "/v1/studies/unwatched/watch", json={"urls": ["http://127.0.0.1:8000"]})
    assert (refused.status_code, refused.json()["field"]) == (422, "urls")
    assert refusing.call("GET", "/v1/catalogue").json()["watches"] is False


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
def test_a_study_names_a_webhook_of_the_server_and_no_address(refusing: Api, webhook: str) -> None:
    response = refusing.submit("first", webhook=webhook)
    assert response.status_code == 422
    problem = response.json()
    assert problem["field"] == "webhook"
    assert problem["rule"] == "this server has the webhooks team"
    assert refusing.call("GET", "/v1/studies/first").status_code == 404


def test_a_webhooks_address_is_in_no_answer(api: Api) -> None:
    answers = [api.submit("first", webhook="team")]
    assert answers[0].json()["webhook"] == "team"
    answers += [
        api.call("GET", path) for path in ("/v1/catalogue", "/v1/studies/first", "/v1/studies", "/openapi.json")
    ]
    assert answers[1].json()["webhooks"] == ["team"]
    assert all(answer.is_success and "hooks.test" not in answer.text for answer in answers)


class Made:
    """A connection that notes its end."""

    ended = False

    def end(self) -> None:
        self.ended = True


def added(connections: Connections, address: str, *, waits: bool = True) -> Made:
    made = Made()
    connections.add(made, address)
    if waits:
        connections.waits(made)
    return made


def test_the_connection_that_has_waited_longest_ends_for_a_new_one_of_its_address() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    other = added(connections, "10.0.0.2")
    first, second = (added(connections, "10.0.0.1") for _ in range(2))
    connections.waits(first)  # again, after an answer
    new = Made()
    assert connections.add(new, "10.0.0.1")
    assert [each.ended for each in (other, first, second, new)] == [False, False, True, False]


def test_a_connection_that_is_answered_does_not_end() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    busy = [added(connections, "10.0.0.1", waits=False) for _ in range(2)]
    assert not connections.add(Made(), "10.0.0.1")
    assert connections.add(Made(), "10.0.0.2")
    assert not any(each.ended for each in busy)


def test_connections_above_the_limit_do_not_add_up() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    for _ in range(2):
        added(connections, "10.0.0.1", waits=False)
    above = [added(connections, "10.0.0.1") for _ in range(5)]
    assert [each.ended for each in above] == [True, True, True, True, False]


def test_the_process_has_a_limit_for_all_addresses() -> None:
    connections = Connections(Limits(most=3, per_address=2))
    first, *_ = (added(connections, f"10.0.0.{index}") for index in range(3))
    assert connections.add(Made(), "10.0.0.9")
    assert first.ended


def test_a_closed_connection_makes_room() -> None:
    connections = Connections(Limits(most=1, per_address=1))
    first = added(connections, "10.0.0.1", waits=False)
    connections.remove(first)
    connections.remove(first)
    assert connections.add(Made(), "10.0.0.1")
    assert not first.ended


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_hosts_of_ipv6_count_by_network(address: str, network: str) -> None:
    assert network_of(address) == network


LIMITS = Limits(most=60, per_address=30, head_s=0.8, body_s=0.8, unread_s=0.8)
HEAD = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
LATE_S = 10.0
"""How late a deadline may be on a busy machine."""


def application() -> FastAPI:
    app = FastAPI()
    app.state.release = asyncio.Event()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/body")
    async def body(request: Request) -> int:
        return len(await request.body())

    @app.post("/refused")
    async def refused() -> PlainTextResponse:
        return PlainTextResponse("no", 413)

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(_ticks())

    @app.get("/large")
    async def large() -> PlainTextResponse:
        return PlainTextResponse("x" * 30_000_000)

    return app


async def _ticks() -> AsyncIterator[str]:
    for index in range(20):
        yield f"{index}\n"
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_server(application(), None, LIMITS)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    number = listener.getsockname()[1]
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join()


def opened(port: int, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=LATE_S)
    found.sendall(data)
    return found


@contextmanager
def many(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(opened(port, data))) for _ in range(count)]


def rest(connection: socket.socket) -> bytes:
    """Return what the server sends until it ends the connection."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def status(port: int, path: str = "/healthz") -> int:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=LATE_S).status_code


@pytest.mark.parametrize("data", [b"", b"GET /heal", HEAD + b"x", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_health_is_answered_while_one_address_holds_many_connections(port: int, data: bytes) -> None:
    with many(port, 3 * LIMITS.per_address, data) as connections:
        assert status(port) == 200
        for each in connections:
            rest(each)  # each ends


@pytest.mark.parametrize(
    ("data", "answer"),
    [(b"GET /heal", b"HTTP/1.1 408"), (HEAD + b"x", b"HTTP/1.1 408"), (b"", b"")],
    ids=["half a head", "half a body", "silent"],
)
def test_a_request_that_never_ends_gets_408_and_a_silent_connection_no_answer(
    port: int, data: bytes, answer: bytes
) -> None:
    with closing(opened(port, data)) as connection:
        assert rest(connection)[:12] == answer


@pytest.mark.parametrize("data", [b"", HEAD, HEAD.replace(b"/body", b"/refused")], ids=["head", "body", "answered"])
def test_one_byte_at_a_time_does_not_move_the_deadline(port: int, data: bytes) -> None:
    began = time.monotonic()
    with closing(opened(port, data)) as connection:
        while time.monotonic() < began + LATE_S:
            try:
                connection.send(b"x")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is still open")


def test_a_long_answer_is_not_cut(port: int) -> None:
    lines = httpx.get(f"http://127.0.0.1:{port}/stream", timeout=LATE_S).text.split()
    assert lines == [str(index) for index in range(20)]  # 2 s, and every deadline is 0.8 s


def test_a_kept_connection_has_a_new_deadline_for_each_request(port: int) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(opened(port)) as connection:
        for _ in range(4):
            time.sleep(0.3)
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_body_in_parts_is_read(port: int) -> None:
    with closing(opened(port, HEAD)) as connection:
        for _ in range(4):
            connection.sendall(b"x" * 250)
            time.sleep(0.1)
        assert b"1000" in connection.recv(65536)


def test_a_client_that_does_not_read_is_ended(port: int) -> None:
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LATE_S)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2 * LIMITS.unread_s)
        assert len(rest(connection)) < 30_000_000


def test_an_address_whose_connections_are_all_answered_gets_health_only(port: int) -> None:
    streams = many(port, LIMITS.per_address, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with streams as connections:
        for each in connections:
            assert each.recv(10)  # its answer has begun
        assert (status(port), status(port, "/large")) == (200, 503)
        refused = httpx.get(f"http://127.0.0.1:{port}/large", timeout=LATE_S)
        assert refused.headers["retry-after"] == "5"
        assert "no more connections are free" in refused.json()["detail"]


NOW = datetime(2026, 11, 26, 9, tzinfo=UTC)
QUICK_S = 0.25
"""Seconds between two checks of the open streams here."""
SOON_S = CHECK_S + 3
"""Seconds within which a stream ends: the time of a check, and a margin for a busy machine."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHECK_S", QUICK_S)
        with serving(tmp_path_factory.mktemp("served")) as found:
            yield found


@contextmanager
def streamed(served: Served, study: str, secret: str) -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {secret}"}
    address = f"{served.url}/v1/studies/{study}/events"
    with httpx.stream("GET", address, headers=headers, timeout=30, trust_env=False) as answer:
        yield answer


def stream_status(served: Served, study: str, secret: str) -> int:
    with streamed(served, study, secret) as answer:
        return answer.status_code


def revoke(served: Served) -> None:
    served.service.revoke_token("guest", served.now())


def unshare(served: Served) -> None:
    served.service.share("open", False)


def delete(served: Served) -> None:
    served.start("open")
    served.end("open", SubmissionState.DONE)
    served.service.delete("open")


def event(number: int) -> Event:
    return Event("s", number, NOW, "trial", {"number": number})


@pytest.mark.parametrize(
    ("kept", "number", "taken"),
    [
        ([], 0, None),  # woken without an event, such as by its end
        ([1, 2, 3], 0, [1, 2, 3]),
        ([2, 3], 2, [3]),  # the first one was read from the database
        ([1, 2], 2, []),
        ([3], 1, None),  # 2 is missing
    ],
)
def test_a_stream_takes_new_events_without_a_gap(kept: list[int], number: int, taken: list[int] | None) -> None:
    stream = Stream("s", "ada", "digest")
    for each in kept:
        stream.add(event(each))
    found = stream.take(number)
    assert (None if found is None else [each.number for each in found]) == taken
    assert stream.take(number) is None  # they are taken once


def test_a_stream_that_is_not_read_keeps_a_page_and_reads_the_rest_from_the_database() -> None:
    stream = Stream("s", "ada", "digest")
    for number in range(1, PAGE + 3):
        stream.add(event(number))
    assert [each.number for each in stream.fresh] == [PAGE + 1, PAGE + 2]
    assert stream.take(0) is None


@pytest.mark.parametrize(
    ("lose", "days", "refused"),
    [(revoke, 1, 401), (lambda _: None, 2 / 86400, 401), (unshare, 1, 404), (delete, 1, 404)],
    ids=["revoked", "expired", "unshared", "deleted"],
)
def test_a_stream_ends_soon_after_the_right_to_read_it(
    tmp_path: Path, lose: Callable[[Served], None], days: float, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CHECK_S <= 2
    monkeypatch.setattr(streams, "CHECK_S", QUICK_S)
    with serving(tmp_path) as served:
        served.submit("open", "ada", shared=True)
        secret, _ = store_token(served.service, "guest", "guest", Role.USER, timedelta(days=days))
        with (
            streamed(served, "open", secret) as guest,
            streamed(served, "open", served.tokens["root"]) as root,
        ):
            lines = guest.iter_lines()
            assert next(lines) == "id: 1"
            lose(served)
            began = time.monotonic()
            assert "event: cancelled" not in [*lines]
            assert time.monotonic() - began < SOON_S
            assert root.status_code == 200
        assert stream_status(served, "open", secret) == refused


def test_a_stream_of_one_who_may_read_goes_on_over_the_checks(served: Served) -> None:
    served.submit("kept", "ada")
    with streamed(served, "kept", served.tokens["ada"]) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "id: 1"
        time.sleep(4 * QUICK_S)  # what is tested is that nothing happens meanwhile
        served.start("kept")
        assert "id: 2" in [next(lines) for _ in range(4)]


def test_an_owner_has_so_many_streams_and_others_have_theirs(served: Served) -> None:
    served.submit("many", "ada", shared=True)
    with ExitStack() as stack:
        for name in ["ada", "eve"] * (MOST_STREAMS // 2):  # two tokens of one owner
            assert stack.enter_context(streamed(served, "many", served.tokens[name])).status_code == 200
        answer = stack.enter_context(streamed(served, "many", served.tokens["ada"]))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
        answer.read()
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "20 streams of ada are open, and no more may be; close some"
        assert stream_status(served, "many", served.tokens["ben"]) == 200


def test_a_process_has_so_many_streams(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_IN_ALL", 2)
    served.submit("few", "ada", shared=True)
    with streamed(served, "few", served.tokens["root"]), streamed(served, "few", served.tokens["ben"]):
        with streamed(served, "few", served.tokens["ada"]) as answer:
            answer.read()
        assert (answer.status_code, answer.json()["rule"]) == (429, "2 streams are open, and no more may be")
