"""The service's page, Optuna's dashboard, and metrics for Prometheus."""

import base64
import gzip
import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from storage import normalise_url, open_store
from storage.service.records import SubmissionState
from tests.service_samples import DRIVER
from tests.store_samples import failed, pending, study, success, verdict
from tests.unit.service.http.conftest import Api
from tuner.service.http.edge.guard import EMPTY_STYLE
from tuner.service.http.page.predictions import MOST_PROMPTS

PAGES = Path(str(files("tuner.service.pages")))
SCRIPTS = sorted(PAGES.rglob("*.js"))
UNSAFE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|\beval\(|new Function")
ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/2000/svg)")


def directives(api: Api) -> dict[str, str]:
    policy = api.client.get("/").headers["content-security-policy"]
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


def test_the_page_needs_no_token_and_names_its_files(api: Api) -> None:
    page = api.client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "{" not in page.text
    addresses = re.findall(r'(?:src|href|content)="(/page/[^"]+)"', page.text)
    assert len(addresses) == 5
    for address in addresses:
        assert api.client.get(address).status_code == 200, address


def test_every_module_that_is_imported_is_served(api: Api) -> None:
    for script in SCRIPTS:
        served = f"/page/{script.relative_to(PAGES)}"
        assert api.client.get(served).headers["content-type"] == "text/javascript; charset=utf-8"
        for name in re.findall(r"(?:from|import\()\s*\"(\.[^\"]+)\"", script.read_text(encoding="utf-8")):
            assert (script.parent / name).resolve() in SCRIPTS, (script, name)


def test_texts_are_never_html_and_nothing_is_loaded_from_elsewhere() -> None:
    assert len(SCRIPTS) > 20
    for path in [*SCRIPTS, *PAGES.glob("*.css"), *PAGES.glob("*.html"), *PAGES.glob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        assert UNSAFE.findall(text) == [], path
        assert ELSEWHERE.findall(text) == [], path
    page = (PAGES / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|<script(?! type=\"module\" src=)| on\w+=| style=", page) == []


def test_the_policy_has_no_inline_script(api: Api) -> None:
    found = directives(api)
    assert found["default-src"] == found["script-src"] == found["style-src"] == "'self'"
    assert found["style-src-elem"] == f"'self' {EMPTY_STYLE}"
    assert (found["frame-ancestors"], found["object-src"], found["base-uri"]) == ("'none'", "'none'", "'none'")
    digest = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    assert f"'sha256-{digest}'" == EMPTY_STYLE


def test_plotly_is_its_packages_file_and_stays_in_the_cache(api: Api) -> None:
    from plotly.offline import get_plotlyjs

    address = re.findall(r'name="plotly" content="([^"]+)"', api.client.get("/").text)[0]
    plain = api.client.get(address, headers={"Accept-Encoding": "identity"})
    assert plain.text == get_plotlyjs()
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    packed = api.client.get(address, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(gzip.compress(plain.content, 1))
    assert packed.content == plain.content
    assert api.client.get("/page/plotly-0.0.0.js").status_code == 404
    assert api.client.get("/page/main.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2Fapp.py", "__init__.py", "views", "", "%2e%2e/app.py", "views/../main.js.map"]
)
def test_only_the_pages_files_are_served(refusing: Api, path: str) -> None:
    assert refusing.client.get(f"/page/{path}").status_code == 404


def with_trials(api: Api, id: str, scores: list[float | None]) -> None:
    """Store a study of a submission, whose trials have scores; None: it failed."""
    store = open_store(normalise_url(str(api.folder / "service.db")))
    store.create_study(study(id))
    for number, score in enumerate(scores):
        store.add_trial(pending(number, study=id))
        found, judged = (failed(), None) if score is None else (success(), verdict(score))
        store.finish_trial(id, number, 0, found, judged)
    store.close()


def test_scores_are_in_the_order_of_the_trials_and_only_those_of_readable_studies(api: Api) -> None:
    api.submit("mine", "ada")
    api.submit("hers", "ben")
    api.submit("open", "ben", shared=True)
    with_trials(api, "mine", [1.0, None, 1.25])
    with_trials(api, "hers", [2.0])
    with_trials(api, "open", [3.0])
    asked = {"study": ["mine", "hers", "open", "nobody"]}
    assert api.call("GET", "/v1/scores", "ada", params=asked).json() == {"mine": [1.0, None, 1.25], "open": [3.0]}
    assert set(api.call("GET", "/v1/scores", "root", params=asked).json()) == {"mine", "hers", "open"}


def test_trials_come_in_pages(api: Api) -> None:
    api.submit("mine", "ada")
    with_trials(api, "mine", [1.0, None, 1.25])
    path = "/v1/studies/mine/trials"
    first, last, none = (
        api.call("GET", path, "ada", params={"limit": 2, "after": after}).json() for after in (-1, 1, 2)
    )
    assert [[trial["number"] for trial in page] for page in (first, last, none)] == [[0, 1], [2], []]
    for name, value in (("limit", 0), ("limit", 501), ("after", -2), ("after", 2**31)):
        answer = api.call("GET", path, "ada", params={name: value})
        assert (answer.status_code, answer.json()["field"]) == (422, name)


@pytest.mark.parametrize(
    "path",
    [
        "/studies/secret/summary",
        "/studies/secret/charts?name=progress",
        "/comparison?study=secret",
    ],
)
def test_another_owners_results_do_not_exist(api: Api, path: str) -> None:
    api.submit("secret", "ada")
    with_trials(api, "secret", [1.0])
    assert api.call("GET", f"/v1{path}", "ben").status_code == 404


@pytest.mark.parametrize("path", ["/studies/new/summary", "/studies/new/charts?name=progress", "/comparison?study=new"])
def test_a_study_without_a_trial_has_no_results(api: Api, path: str) -> None:
    api.submit("new", "ada")
    answer = api.call("GET", f"/v1{path}", "ada")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no finished trial of the study 'new'")


def test_an_unknown_chart_is_named(api: Api) -> None:
    api.submit("mine", "ada")
    with_trials(api, "mine", [1.0])
    answer = api.call("GET", "/v1/studies/mine/charts", "ada", params={"name": ["progress", "pie"]})
    assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (422, "name", "pie")


def test_the_presets_and_the_catalogue_say_what_can_be_chosen(api: Api) -> None:
    presets = {each["preset"]: each for each in api.call("GET", "/v1/presets", "eve").json()}
    assert presets["qwen2.5-0.5b-t4"]["slos"] == ["p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1"]
    found = api.call("GET", "/v1/catalogue", "eve").json()
    assert found["kinds"] == {"cpu": 1, "simulated": 2}
    assert {"key": "t4", "name": "Tesla T4", "price": 0.526} in found["cards"]
    assert "cpu" not in [each["key"] for each in found["cards"]]
    assert found["metrics"]["p99_ttft_ms"] == {"unit": "ms", "direction": "minimize"}
    assert found["formats"][0] == "script"


def preview(api: Api, token: str = "ada", kind: str | None = None, **settings: Any) -> Any:
    body = {"settings": settings, **({} if kind is None else {"kind": kind})}
    return api.call("POST", "/v1/studies:preview", token, json=body)


def test_a_preview_has_the_space_what_is_ruled_out_and_the_predicted_defaults(api: Api) -> None:
    slos = ["p99_ttft_ms<1", "p99_tpot_ms<1000"]
    answer = preview(api, engine="simulated", gpu="t4", slo=slos, objective=["output_throughput"])
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["kind"], found["would_be"], found["card"]) == ("simulated", "simulated", "Tesla T4")
    assert [each["met"] for each in found["slos"]] == [False, True]
    assert found["defaults"]["provenance"] == "simulated"
    assert found["defaults"]["completed"] == 200
    assert found["refusal"] is None
    ruled_out = {(each["parameter"], each["value"]): each["reason"] for each in found["space"]["dropped"]}
    assert ruled_out["dtype", "bfloat16"] == "bfloat16 needs compute capability 8.0, Tesla T4 has 7.5"
    assert "max_num_seqs" in [each["name"] for each in found["space"]["parameters"]]
    assert api.call("GET", "/v1/studies", "ada").json()["studies"] == []


def test_a_preview_of_a_cpu_has_a_space_and_no_prediction(api: Api) -> None:
    found = preview(api, kind="cpu").json()
    assert (found["would_be"], found["space"]["name"], found["defaults"]) == ("measured", "cpu", None)
    assert found["refusal"] == "the simulator does not predict CPUs"
    assert {each["met"] for each in found["slos"]} == {None}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"slo": ["p99_ttft<1"]}, "slo"),
        ({"trials": "many"}, "trials"),
        ({"gpu": "abacus"}, "gpu"),
        ({"model": "/etc"}, "model"),
        ({"workload": ["classes: {a: {text: {file: /etc/passwd}}}"]}, "workload"),
        ({"server_arguments": ["--trust-remote-code"]}, "server_arguments"),
        ({"num_prompts": MOST_PROMPTS + 1}, "num_prompts"),
    ],
)
def test_a_preview_refuses_what_a_submission_would(refusing: Api, settings: dict[str, Any], field: str) -> None:
    answer = preview(refusing, engine="simulated", **settings)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_viewer_predicts_but_does_not_preview(api: Api) -> None:
    assert preview(api, "eve", engine="simulated").status_code == 403
    body = {"settings": {"gpu": "h100", "server_arguments": ["--max-num-seqs", "16"]}}
    answer = api.call("POST", "/v1/simulate", "eve", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["provenance"], found["gpu"]) == ("simulated", "NVIDIA H100 80GB HBM3")
    assert found["completed"] == 200
    assert found["error_bands"] == {}
    assert (
        found["no_error_band"] == "too few measured rows for 16-bit weights on one NVIDIA H100 80GB HBM3: no error band"
    )
    assert found["figures"]["roofline"]["data"]
    assert found["roofline"]["roof"] == "memory"


def test_a_prediction_refuses_settings_that_do_not_count(api: Api) -> None:
    answer = api.call("POST", "/v1/simulate", "ada", json={"settings": {"trials": 5}})
    assert (answer.status_code, answer.json()["field"]) == (422, "trials")
    assert answer.json()["detail"] == "trials: a prediction does not depend on this setting; leave it out"


def test_more_prompts_are_more_predicted_requests(api: Api) -> None:
    """40 requests of 100 + 10 tokens by 4 users: counts follow from the workload."""
    settings = {"max_concurrency": 4, "num_prompts": 40, "input_len": 100, "output_len": 10}
    found = api.call("POST", "/v1/simulate", "ada", json={"settings": settings}).json()
    assert (found["num_prompts"], found["total_input_tokens"], found["total_output_tokens"]) == (40, 4000, 400)


DASHBOARD = Path(__file__).parents[4] / "deploy" / "grafana" / "tuner.json"
FROM_PROMETHEUS = {"instance"}
"""Labels that Prometheus adds to what it scrapes."""

Used = dict[str, set[str]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def targets() -> Iterator[dict[str, str]]:
    for panel in panels():
        yield from panel["targets"]


def used_by(query: str, legend: str = "") -> tuple[set[str], set[str]]:
    """Return the metrics and the labels that a query and its legend use.

    Raises:
        ValueError: if it is not PromQL.
    """
    metrics: set[str] = set()
    labels = set(re.findall(r"{{(\w+)}}", legend))

    def visit(node: Any) -> None:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            metrics.add(str(selector.name))
            labels.update(matcher.name for matcher in selector.matchers.matchers)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(query.replace("$__rate_interval", "5m")), pre_visit=visit)
    return metrics, labels


def exported(api: Api) -> Used:
    """Return the labels of each sample's name at `/metrics`."""
    api.call("GET", "/v1/studies")
    found: Used = defaultdict(set)
    for family in text_string_to_metric_families(api.call("GET", "/metrics").text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


def test_the_reader_of_queries_finds_metrics_and_labels() -> None:
    query = 'sum by (le) (rate(a{b="c"}[$__rate_interval])) / on () max(d{e!="f"})'
    assert used_by(query, "{{le}} {{g}}") == ({"a", "d"}, {"b", "e", "le", "g"})
    with pytest.raises(ValueError, match="unclosed"):
        used_by("sum by (a")


def test_every_query_asks_for_what_the_service_has(api: Api) -> None:
    known = exported(api)
    wrong = []
    for target in targets():
        metrics, labels = used_by(target["expr"], target["legendFormat"])
        assert metrics
        allowed = set().union(*(known.get(name, set()) for name in metrics)) | FROM_PROMETHEUS
        wrong += [name for name in metrics if name not in known]
        wrong += [f"{label} of {sorted(metrics)}" for label in labels - allowed]
    assert wrong == []


def test_the_dashboard_shows_every_metric(api: Api) -> None:
    shown = set().union(*(used_by(target["expr"])[0] for target in targets()))
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported(api)}
    assert {name for name in families if not any(each.startswith(name) for each in shown)} == set()


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert own.isdisjoint(cells), panel["title"]
        assert max(column for column, _ in own) < 24
        assert panel["description"].endswith(".")
        cells |= own
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids)) > 12


Sample = tuple[str, tuple[str, ...]]
DEADLINE_S = 60.0


def scrape(api: Api) -> dict[Sample, float]:
    text = api.call("GET", "/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(dict(sorted(sample.labels.items())).values())): sample.value for sample in samples}


def test_requests_are_counted_by_their_route(api: Api) -> None:
    api.submit("first")
    for path in ("/v1/studies/first", "/v1/studies/other", "/nowhere", "/v1/nowhere/first"):
        api.call("GET", path)
    found = scrape(api)
    assert found["tuner_request_seconds_count", ("POST", "/v1/studies", "2xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "/v1/studies/{id}", "2xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "/v1/studies/{id}", "4xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "other", "4xx")] == 2
    assert scrape(api)["tuner_request_seconds_count", ("GET", "/metrics", "2xx")] == 1


def test_the_queue_and_the_devices_are_those_of_the_database(api: Api) -> None:
    for id in ("runs", "waits"):
        api.submit(id)
    lease = api.service.take_lease("scheduler", "test", 3600, datetime.now(UTC))
    assert lease is not None
    assert api.service.start("runs", ("simulated:1",), lease, datetime.now(UTC))
    found = scrape(api)
    assert found["tuner_studies", (SubmissionState.QUEUED,)] == 1
    assert found["tuner_studies", (SubmissionState.RUNNING,)] == 1
    assert found["tuner_queue_studies", ("simulated",)] == 1
    assert (found["tuner_devices", ("simulated",)], found["tuner_devices_busy", ("simulated",)]) == (2, 1)
    assert (found["tuner_devices", ("cpu",)], found["tuner_devices_busy", ("cpu",)]) == (1, 0)


def test_finished_trials_arrive_from_the_events(api: Api) -> None:
    api.submit("first")
    lease = api.service.take_lease("scheduler", "test", 3600, datetime.now(UTC))
    assert lease is not None
    api.service.start("first", ("simulated:0",), lease, datetime.now(UTC))
    api.service.set_driver("first", DRIVER, datetime.now(UTC))
    trial = {"number": 0, "state": "ok", "failure": None, "seconds": {"ready": 2.5}}
    api.service.event("first", "trial", trial, datetime.now(UTC))  # at once: no read may come between
    deadline = time.monotonic() + DEADLINE_S
    while not (found := scrape(api))["tuner_trials_total", ("", "", "ok")]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found["tuner_trials_total", ("", "", "ok")] == 1
    assert found["tuner_trial_seconds_total", ("ready",)] == 2.5
