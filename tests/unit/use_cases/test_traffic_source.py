"""Traffic of a URL: a server of this process has files, and answers as Prometheus does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.command import run_here
from tests.fakes.http_server import Answer, Asked, http_server
from tests.unit.workloads.traces import samples
from tests.unit.workloads.traces.test_prometheus import ANSWERS, AT, PROMPTS
from tuner.errors import SettingError, UserError
from tuner.use_cases import traffic_source
from tuner.use_cases.traffic_source import CounterRange, traffic_file
from tuner.workloads.traffic import load_traffic

MATRIX = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [*PROMPTS, *ANSWERS]}})
FILES = {"/traces/mine.jsonl": samples.MOONCAKE, "/api/v1/query_range": MATRIX}


@contextmanager
def served() -> Iterator[tuple[str, list[str]]]:
    """Serve the files; yield the address and the paths that are asked for."""
    asked: list[str] = []

    def answer(request: Asked) -> Answer:
        asked.append(request.path)
        content = FILES.get(urlsplit(request.path).path)
        return Answer(content or "", 404 if content is None else 200)

    with http_server(answer) as address:
        yield address, asked


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as (found, _):
        yield found


def test_a_file_of_a_url_is_imported_as_one_of_this_machine(address: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(samples.MOONCAKE)
    here = run_here(tmp_path, "traffic", "import", "mine.jsonl", "-o", "here.yaml")
    there = run_here(tmp_path, "traffic", "import", f"{address}/traces/mine.jsonl?token=secret", "-o", "there.yaml")
    assert (there.code, there.err) == (0, "")
    assert there.out.replace("there.", "here.") == here.out
    assert (tmp_path / "there.requests.jsonl").read_bytes() == (tmp_path / "here.requests.jsonl").read_bytes()
    assert "secret" not in (tmp_path / "there.yaml").read_text()


def test_prometheus_is_asked_for_the_counters_of_the_last_hours(tmp_path: Path) -> None:
    with served() as (address, asked):
        printed = run_here(
            *(tmp_path, "traffic", "import", address, "--format", "prometheus"),
            *("--last", "2h", "--step", "5m", "--select", 'model_name="chat"'),
        )
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.startswith("40 requests in ")
    assert "bursts within a step are not known" in printed.out
    query = {name: values[0] for name, values in parse_qs(urlsplit(asked[0]).query).items()}
    assert float(query["end"]) - float(query["start"]) == pytest.approx(7200)
    assert query["step"] == "300"
    assert query["query"].startswith('{__name__=~"(vllm:request_prompt_tokens|vllm:request_generation_tokens)_(bucket|')
    assert query["query"].endswith(',model_name="chat"}')
    assert len(load_traffic(tmp_path / "traffic.yaml").classes) == 1


def test_a_whole_query_is_sent_as_it_is() -> None:
    with (
        served() as (address, asked),
        traffic_file(f"{address}/api/v1/query_range?query=x&start={AT}", "prometheus", CounterRange()) as file,
    ):
        assert file.read_text() == MATRIX
        assert asked == [f"/api/v1/query_range?query=x&start={AT}"]
    assert not file.exists()


def test_what_is_not_there_is_one_line_without_secrets(address: str) -> None:
    with (
        pytest.raises(UserError, match=r"/absent: the answer is HTTP 404; give the address of a file$") as caught,
        traffic_file(f"{address}/absent?token=secret", None, CounterRange()),
    ):
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://user:secret/x@host/file", "http://host:secret/file", "http://[secret/file"])
def test_a_url_without_a_valid_host_and_port_is_one_line_without_secrets(url: str) -> None:
    with (
        pytest.raises(UserError, match=r"^the URL has no valid host and port; correct it$"),
        traffic_file(url, None, CounterRange()),
    ):
        pass


def test_a_larger_file_is_not_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_source, "LARGEST", 10)
    with (
        pytest.raises(UserError, match="more than 10 bytes"),
        traffic_file(f"{address}/traces/mine.jsonl", None, CounterRange()),
    ):
        pass


def test_more_steps_than_prometheus_answers_with_are_refused() -> None:
    with (
        pytest.raises(SettingError, match="at most 11,000 steps; give step 8s or more"),
        traffic_file("http://127.0.0.1:9", "prometheus", CounterRange(86400.0, 1.0)),
    ):
        pass


def test_an_error_of_the_file_names_its_address(address: str, tmp_path: Path) -> None:
    printed = run_here(tmp_path, "traffic", "import", f"{address}/traces/mine.jsonl", "--format", "azure-2023")
    assert printed.code == 2
    assert "tuner-traffic-" not in printed.err
    assert printed.err.count("\n") == 1
