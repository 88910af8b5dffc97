"""Three people at one service: two studies on a real vLLM and three simulated ones.

They come from the terminal, from Python and from the page.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import browser
from tests.browser.page_walk import LONG_MS, Walk, walk
from tests.cli.command import run_here
from tests.service.running import Service, running_service
from tuner import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SERVER = ("--load-format", "dummy", "--max-model-len", "1024", "--enforce-eager", "--generation-config", "vllm")
SMALL = {"trials": 2, "confirm_rounds": 0, "reduce": False, "space": "cpu"}
"""A study of a real server that a CI machine ends in a minute or two."""

LOAD = {"input_len": 64, "output_len": 16, "num_prompts": 12, "max_concurrency": 2}
OPTIONS = ("--input-len", "64", "--output-len", "16", "--prompts", "12", "--users", "2")
"""The same load in the terminal."""


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def service(vllm: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose users may name the made model, its load format, and the size of the cache on a CPU."""
    permits = ("--model-folder", str(tiny_model.parent), "--allow-flag", "load-format")
    variables = {"TUNER_VLLM": str(vllm), "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("three")
    with running_service(folder, *permits, "--allow-env", "VLLM_CPU_KVCACHE_SPACE", environment=variables) as found:
        yield found


@pytest.fixture(scope="module")
def tokens(service: Service) -> dict[str, str]:
    """Tokens of the users ada, ben and cleo."""
    names = ("ada", "ben", "cleo")
    return {name: service.call("POST", "/v1/tokens", json={"name": name, "owner": name})["token"] for name in names}


def submit_in_the_terminal(folder: Path, tiny_model: Path) -> None:
    """Submit a study of the real vLLM, and a simulated one."""
    words = ["submit", "--engine", "vllm", "--kind", "cpu", "--id", "terminal", "--model", str(tiny_model)]
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "reduce"]
    more = ["--no-reduce", "--env", "VLLM_CPU_KVCACHE_SPACE=1", "--share", "--", *SERVER]
    real = run_here(folder, *words, *small, *OPTIONS, *more)
    assert real.code == 0, real.err
    simulated = run_here(folder, "submit", "--engine", "simulated", "--trials", "4", "--no-reduce", "--id", "quick")
    assert simulated.code == 0, simulated.err


def submit_in_python(ben: Client, tiny_model: Path) -> None:
    """Submit a study of the real vLLM, and a simulated one."""
    real = ben.submit(
        id="python",
        kind="cpu",
        shared=True,
        engine="vllm",
        model=str(tiny_model),
        env={"VLLM_CPU_KVCACHE_SPACE": "1"},
        server_arguments=SERVER,
        **SMALL,  # type: ignore[arg-type]
        **LOAD,  # type: ignore[arg-type]
    )
    assert (real.owner, real.kind) == ("ben", "cpu")
    ben.submit(id="longer", engine="simulated", trials=300, sampler="tpe", reduce=False)


def submit_on_the_page(cleo: Walk) -> None:
    """Submit a simulated study."""
    page = cleo.page
    cleo.go("submit")
    page.fill("[name=id]", "page")
    page.fill("[name=trials]", "5")
    page.click("summary:text-is('More')")
    page.fill("[name=more]", json.dumps({"reduce": False}))
    page.click("button:text-is('submit')")
    page.wait_for_selector("h1:text-is('page')")


def watch_a_real_study(cleo: Walk, id: str) -> None:
    """Watch a shared study of another owner, which has measured numbers."""
    cleo.go(f"study/{id}")
    cleo.state("running", "concluding", "done")
    cleo.page.locator(".chart .main-svg").first.wait_for(timeout=LONG_MS)
    cleo.check(f"{id}-live")
    cleo.state("done")
    cleo.page.locator(".verdict").wait_for()
    assert cleo.page.get_by_text("Simulated, not measured").count() == 0
    assert cleo.page.locator("button:text-is('delete')").count() == 0
    cleo.check(f"{id}-done")


def compare_the_real_ones(cleo: Walk) -> None:
    cleo.go("studies")
    for id in ("terminal", "python"):
        cleo.page.check(f"[id='choose-{id}']")
    cleo.page.click("button:text-is('compare 2')")
    cleo.see("Side by side")
    cleo.check("compare")


def take_away(ben: Client, folder: Path) -> None:
    """Save the winner in some formats that serve a model folder, and the report."""
    for name in ("script", "compose", "kubernetes", "vllm-config"):
        assert ben.export("python", folder / f"python.{name}", name).stat().st_size > 20
    assert subprocess.run(["bash", "-n", folder / "python.script"], check=False).returncode == 0
    report = ben.report("python", folder / "report.html", "terminal").read_text(encoding="utf-8")
    assert "2 studies" in report
    assert "tnr_" not in report


@pytest.mark.release
def test_three_people_and_five_studies(
    opened: Browser,
    service: Service,
    tokens: dict[str, str],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNER_SERVER", service.address)
    monkeypatch.setenv("TUNER_TOKEN", tokens["ada"])
    submit_in_the_terminal(tmp_path, tiny_model)
    with (
        Client(service.address, tokens["ben"]) as ben,
        walk(opened, service.address, 1280, "light", tmp_path / "pictures") as cleo,
    ):
        submit_in_python(ben, tiny_model)
        cleo.log_in(tokens["cleo"])
        submit_on_the_page(cleo)
        service.wait_for_trials("longer", 3)
        ben.stop("longer")
        cleo.go("queue")
        cleo.see("cpu:0")
        cleo.check("queue")
        watch_a_real_study(cleo, "terminal")
        watch_a_real_study(cleo, "python")
        compare_the_real_ones(cleo)
        take_away(ben, tmp_path)
        assert cleo.problems == []
    states = {each: service.wait(each)["state"] for each in ("terminal", "quick", "python", "longer", "page")}
    assert states == {"terminal": "DONE", "quick": "DONE", "python": "DONE", "longer": "STOPPED", "page": "DONE"}
    for id, provenance in (("terminal", "measured"), ("python", "measured"), ("quick", "simulated")):
        found = service.call("GET", f"/v1/studies/{id}/trials")
        assert {trial["provenance"] for trial in found} == {provenance}, id
        assert service.events(id)[-1]["kind"] == "done"
    owners = {each["owner"] for each in service.call("GET", "/v1/audit") if each["action"] == "submit"}
    assert owners == {"ada", "ben", "cleo"}
