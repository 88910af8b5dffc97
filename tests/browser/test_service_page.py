"""The service's page in a browser: the whole story of a person with simulated studies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage.service.records import Submission
from storage.service.store import open_service_store
from tests.browser.page_walk import LONG_MS, Walk, walk
from tests.ports import free_port
from tests.service.running import Service, running_service, start_service
from tuner.export.formats.registry import names

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WINDOWS = [(390, "dark")]  # the other tests have 1280 pixels, light
SOME = re.compile(r"([3-9]|\d\d+) of 400")
"""Progress of a study with at least three trials."""

IMAGE = "<img src=x onerror=window.hacked=1>"
"""A text that runs a script where it is taken for HTML."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("page")) as found:
        yield found


def submit(person: Walk, name: str, trials: int, **more: object) -> None:
    """Fill in the form, and submit the study."""
    page = person.page
    person.go("submit")
    page.fill("[name=id]", name)
    page.fill("[name=trials]", str(trials))
    page.click("summary:text-is('More')")
    page.fill("[name=more]", json.dumps({"reduce": False, **more}))
    page.click("button:text-is('submit')")
    page.wait_for_selector(f"h1:text-is('{name}')")


def preview(person: Walk) -> None:
    page = person.page
    person.go("submit")
    page.fill("[name=slo]", "p99_ttft_ms<1\np99_tpot_ms<50")
    page.click("button:text-is('preview')")
    person.see("Predicted, not measured: vLLM 0.15.1 serving Qwen/Qwen2.5-0.5B on one Tesla T4.")
    page.click("summary:has-text('Ruled out: ')")
    person.see("bfloat16 needs compute capability 8.0, Tesla T4 has 7.5")
    person.see("USD per Mtok")
    assert page.locator(".badge.missed").count() == 1
    assert page.locator(".badge.met").count() == 1
    person.check("submit")
    page.fill("[name=slo]", "")


def watch_to_the_end(person: Walk) -> None:
    """Watch the study on the page from its start to its end."""
    page = person.page
    person.state("running")
    page.locator(".chart .main-svg").first.wait_for(timeout=LONG_MS)
    person.check("running")
    person.state("done")
    person.see("6 of 6", ".facts")
    person.see("Simulated, not measured")
    page.locator(".verdict").wait_for()
    page.click("label:text-is('by time')")
    person.check("study")


def read_the_rest(person: Walk, name: str) -> None:
    """Open the other parts of an ended study."""
    page = person.page
    person.go(f"study/{name}/trials")
    person.see("6 trials")
    page.fill("[name=find]", "baseline")
    person.see("1 trial;")
    page.fill("[name=find]", "")
    page.click("[data-column=score]")
    assert page.locator("[aria-sort=descending]").inner_text() == "score"
    page.click("summary:text-is('columns')")
    page.check("[id='column-p99_itl_ms']")
    assert page.locator("th:has-text('p99_itl_ms')").count() == 1
    page.click("summary:text-is('columns')")
    person.check("trials")
    page.click("button[aria-label='trial 0 in full']")
    person.see("cost_per_million_output_tokens (USD)", "dialog")
    page.click("dialog button:text-is('close')")
    person.go(f"study/{name}/charts")
    page.get_by_text("have numbers in this study").wait_for(timeout=LONG_MS)
    assert page.locator(".chart").count() >= 8
    assert page.locator(".no-webgl").count() == 0
    person.check("charts")
    person.go(f"study/{name}/log")
    person.see("stage search begins")
    person.check("log")
    person.go(f"study/{name}/settings")
    person.see("As JSON")
    person.check("settings")


def stop_and_resume(person: Walk) -> None:
    page = person.page
    person.state("running")
    page.locator(".facts dd").filter(has_text=SOME).wait_for(timeout=LONG_MS)
    page.click("button:text-is('stop')")
    person.state("stopped")
    page.click("button:text-is('resume')")
    person.state("running")
    page.click("button:text-is('cancel')")
    person.see("at once, without a conclusion?", "dialog")
    page.click("dialog button:text-is('cancel')")
    person.state("cancelled")


def compare(person: Walk, first: str, second: str) -> None:
    page = person.page
    person.go("studies")
    page.locator(".sparkline").first.wait_for()
    person.check("studies")
    page.check(f"[id='choose-{first}']")
    page.check(f"[id='choose-{second}']")
    page.click("button:text-is('compare 2')")
    person.see("Side by side")
    person.check("compare")
    with page.expect_popup() as popup:
        page.click("a:text-is('report')")
    popup.value.wait_for_selector("h1:text-is('2 studies')")
    popup.value.close()


def take_away(person: Walk, name: str) -> None:
    """Save every export, and open the report."""
    page = person.page
    person.go(f"study/{name}")
    for form in names():
        page.select_option("[name=format]", form)
        with page.expect_download() as saved:
            page.click("button:text-is('export')")
        assert saved.value.path().stat().st_size > 20, form
    with page.expect_popup() as popup:
        page.click("a:text-is('report')")
    popup.value.wait_for_selector(f"h1:text-is('{name}')")
    popup.value.wait_for_selector(".chart .main-svg")
    popup.value.close()


def predict(person: Walk) -> None:
    page = person.page
    person.go("what-if")
    page.click("button:text-is('predict')")
    page.locator("th:has-text('1: defaults')").wait_for()
    page.locator(".chart:not(:has(.main-svg))").first.wait_for(state="detached")
    charts = page.locator(".chart .main-svg").count()
    page.fill("[name=server_arguments]", "--max-num-seqs 0")
    page.click("button:text-is('predict')")
    page.get_by_role("alert").get_by_text("does not serve this configuration").wait_for()
    assert page.locator(".chart .main-svg").count() == charts > 0
    person.problems[:] = [each for each in person.problems if "422" not in each]
    page.select_option("[name=gpu]", "h100")
    page.fill("[name=server_arguments]", "--max-num-seqs 16")
    page.click("button:text-is('predict')")
    page.locator("th:has-text('2: --max-num-seqs 16')").wait_for()
    person.see("Predicted, not measured")
    person.see("too few measured rows for 16-bit weights on one NVIDIA H100 80GB HBM3: no error band")
    person.check("what-if")


def administer(person: Walk, name: str) -> None:
    page = person.page
    person.go("queue")
    person.see("simulated:1")
    person.check("queue")
    person.go("tokens")
    page.fill("[name=name]", name)
    page.fill("[name=owner]", "ada")
    page.click("button:text-is('make the token')")
    assert page.locator("#secret").inner_text().startswith("tnr_")
    person.check("tokens")
    page.click(f"button[aria-label='revoke {name}']")
    page.click("dialog button:text-is('revoke')")
    person.see("revoked")
    page.reload()
    person.see("Audit log")
    assert "tnr_" not in page.content()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_the_whole_story(opened: Browser, service: Service, tmp_path: Path, width: int, scheme: str) -> None:
    first, second = f"form-{width}-{scheme}", f"stop-{width}-{scheme}"
    with walk(opened, service.address, width, scheme, tmp_path / "pictures") as person:
        person.check("login")
        person.log_in(service.token)
        preview(person)
        submit(person, first, 6)
        watch_to_the_end(person)
        read_the_rest(person, first)
        submit(person, second, 400, sampler="tpe", min_gain=0)
        stop_and_resume(person)
        compare(person, first, second)
        take_away(person, first)
        predict(person)
        administer(person, first)
        person.page.click("button:text-is('log out')")
        person.page.wait_for_selector("input[name=token]")
        person.go("studies")
        person.page.wait_for_selector("input[name=token]")
        assert person.page.context.cookies() == []
    assert person.problems == []


def ask_for_servers(person: Walk, name: str) -> None:
    """Fill in the form for the servers of a load."""
    page = person.page
    person.go("submit")
    page.fill("[name=id]", name)
    page.select_option("[name=preset]", "chat")
    page.click("summary:text-is('Servers for a load')")
    page.check("[name=size]")
    page.fill("[name=card]", "h100\nl4")
    page.fill("[name=most_gpus]", "1")
    person.check("submit-size")


def read_the_fleets(person: Walk, name: str) -> None:
    """Read the answer and its report."""
    page = person.page
    page.wait_for_selector(f"h1:text-is('{name}')")
    person.state("done")
    person.see("Fleets by cost")
    assert page.locator("nav.parts a").all_inner_texts() == ["Overview", "Log", "Settings"]
    person.check("size")
    with page.expect_popup() as popup:
        page.click("a:text-is('report')")
    popup.value.wait_for_selector(".chart .main-svg")
    popup.value.close()
    person.go("studies")
    person.see(name)


@pytest.mark.slow
def test_servers_for_a_load(opened: Browser, service: Service, tmp_path: Path) -> None:
    """The form and the answer on a phone and on a screen; the phone submits."""
    for width in (390, 1200):
        with walk(opened, service.address, width, "light", tmp_path / "pictures") as person:
            person.log_in(service.token)
            ask_for_servers(person, "fleet")
            if width == 390:
                person.page.click("button:text-is('submit')")
            else:
                person.go("study/fleet")
            read_the_fleets(person, "fleet")
        assert person.problems == []


@pytest.mark.slow
def test_texts_of_studies_are_never_taken_for_html(opened: Browser, service: Service, tmp_path: Path) -> None:
    """Settings, messages, failures, configurations, reasons and owners are drawn as they are."""
    now, failure = datetime.now(UTC), {"kind": IMAGE, "culprit": IMAGE, "message": IMAGE}
    trial = {"number": 0, "round": 0, "kind": IMAGE, "state": "failed", "score": None, "values": {}, "failure": failure}
    store = open_service_store(f"sqlite:///{service.folder / 'tuner_study' / 'tuner.db'}")
    asked = Submission("hostile", IMAGE, {"env": {"A": IMAGE}, "model": IMAGE}, IMAGE, 1, 0, now, now)
    store.submit(asked)
    store.event("hostile", "opened", {"trials": 2, "provenance": IMAGE, "objectives": [IMAGE], "slos": []}, now)
    store.event("hostile", "trial", {**trial, "config": {IMAGE: IMAGE}}, now)
    store.event("hostile", "note", {"text": IMAGE}, now)
    store.close()
    service.call("PUT", f"/v1/owners/{IMAGE}", json={"weight": 2})
    with walk(opened, service.address, 1280, "light", tmp_path / "pictures") as person:
        person.log_in(service.token)
        for route in ("studies", "study/hostile", "study/hostile/trials", "study/hostile/settings", "queue", "tokens"):
            person.go(route)
            if route == "study/hostile":
                person.page.click("summary:text-is('2 messages')")
            person.see(IMAGE)
            assert person.page.locator("img").count() == 0, route
        assert person.page.evaluate("window.hacked") is None
    assert person.problems == []
    service.call("POST", "/v1/studies/hostile:cancel")


@pytest.mark.release
def test_a_lost_connection_is_taken_up_where_it_broke_off(opened: Browser, tmp_path: Path) -> None:
    """The API process is killed in mid-study; its successor at the same address goes on, and so does the page."""
    port = ("--port", str(free_port()))
    first = start_service(tmp_path, *port)
    first.submit("long", trials=40, settings={"sampler": "tpe", "min_gain": 0})
    with walk(opened, first.address, 1280, "light", tmp_path / "pictures") as person:
        person.log_in(first.token)
        person.go("study/long")
        person.page.locator(".facts dd").filter(has_text=re.compile(r"([3-9]|\d\d) of 40")).wait_for(timeout=LONG_MS)
        first.kill()
        person.see("The connection is lost", ".state-line")
        with running_service(tmp_path, *port, token=first.token):
            person.state("done")
            person.see("40 of 40", ".facts")
            person.page.locator(".verdict").wait_for()
            assert person.page.get_by_text("The connection is lost").count() == 0
            person.go("study/long/trials")
            person.see("40 trials")
    assert [each for each in person.problems if "net::ERR_" not in each] == []


@pytest.mark.slow
def test_a_viewer_gets_no_buttons_and_a_wrong_token_a_message(
    opened: Browser, service: Service, tmp_path: Path
) -> None:
    body = {"name": "looks", "owner": "looks", "role": "viewer"}
    secret = service.call("POST", "/v1/tokens", json=body)["token"]
    with walk(opened, service.address, 1280, "light", tmp_path / "pictures") as person:
        person.page.fill("input[name=token]", "tnr_" + "0" * 64)
        person.page.click("button.primary")
        person.page.get_by_role("alert").get_by_text("this token is not valid").wait_for()
        assert [each for each in person.problems if "401" not in each] == []
        person.problems.clear()
        person.log_in(secret)
        assert person.page.locator("nav a").all_inner_texts() == ["Studies", "What if", "Queue"]
        person.go("tokens")
        person.page.wait_for_selector("h1:text-is('Studies')")
    assert person.problems == []


@pytest.mark.slow
def test_the_keyboard_is_enough(opened: Browser, service: Service, tmp_path: Path) -> None:
    """Skip to the content, open a view, and choose a state, without a mouse."""
    with walk(opened, service.address, 1280, "light", tmp_path / "pictures") as person:
        keyboard, page = person.page.keyboard, person.page
        page.locator("input[name=token]").focus()
        keyboard.type(service.token)
        keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('Studies')")
        page.locator("#skip").focus()
        keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.get_by_role("link", name="Queue").focus()
        keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('Queue and devices')")
        assert page.evaluate("document.title") == "Queue and devices – tuner"
    assert person.problems == []
