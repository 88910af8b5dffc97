"""`tuner server compare`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import refused, run_here
from tests.fakes.raw_server import answering
from tests.unit.loadgen.loads import Fake
from tests.unit.use_cases.test_canary import Virtual
from tuner.engines.server import traffic
from tuner.errors import SettingError
from tuner.use_cases import canary
from tuner.use_cases import load as load_run
from tuner.use_cases.tiny_model import make_tokenizer

TRAFFIC = """
arrivals: {process: constant, rate: 100}
requests: 20
warmup_requests: 2
classes:
  short: {input: 20, output: 4}
"""


def no_vllm(given: str | None) -> Path:
    raise SettingError("vllm", given, "no vLLM found")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that name load and tokenizer, on a machine without a vLLM."""
    monkeypatch.setattr(load_run, "find_executable", no_vllm)
    monkeypatch.setattr(traffic, "TOLERABLE_DELAY_S", 10.0)  # a pair that is late is sent again
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    make_tokenizer(tokenizer)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    return ["--workload", str(tmp_path / "traffic.yaml"), "--tokenizer", str(tokenizer)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[str]]:
    """Two equal servers."""
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Fake(tmp_path / name, 5, 2, {}))
    yield [each.url.removesuffix("/v1/completions") for each in made]
    for each in made:
        each.close()


def test_both_servers_get_the_same_requests(
    tmp_path: Path, folder: Path, servers: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = servers
    printed = run_here(folder, "server", "compare", "--url", a, "--url", f"{b}/v1/", *words, "--json", "--blocks", "2")
    lengths = [
        sorted(int(line.split()[2]) for line in (tmp_path / name / "arrivals.txt").read_text().splitlines())
        for name in ("a", "b")
    ]
    assert lengths[0] == lengths[1]
    found = json.loads(printed.out)
    assert (found["a"], found["b"]) == (a, b)
    assert found["failed"] == {"only_a": 0, "only_b": 0}
    assert found["requests"] == 40 * found["pairs"]
    assert found["verdict"] in ("holds", "worse", "better", "inconclusive")
    monkeypatch.setattr(canary, "LoadSender", Virtual)
    run_here(folder, "server", "compare", "--url", a, "--url", b, *words, "--json", "--blocks", "2")
    assert sorted(each.name for each in (folder / "tuner_compare").iterdir()) == ["1", "2"]


def test_the_table_shows_latencies(folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "LoadSender", Virtual)
    printed = run_here(folder, "server", "compare", "--url", "http://a", "--url", "http://b", *words)
    assert printed.code == 6, printed.err
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["e2el", "ttft", "tpot"]
    assert lines[-1].startswith("B is slower than A, or fails more requests: worse (measured, ")
    assert printed.err.splitlines()[-1].endswith("requests")


def test_each_server_gets_its_own_key(folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_API_KEY_A", "key-of-a")
    monkeypatch.setenv("TUNER_API_KEY", "key-of-both")
    assert load_run.server_key(("TUNER_API_KEY_A", *load_run.KEY_VARIABLES)) == "key-of-a"
    assert load_run.server_key(("TUNER_API_KEY_B", *load_run.KEY_VARIABLES)) == "key-of-both"
    reply = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(reply) as port:
        printed = run_here(
            folder, "server", "compare", "--url", f"http://127.0.0.1:{port}", "--url", "http://127.0.0.1:1", *words
        )
    refused(printed, folder, "it needs another API key")
    assert "key-of" not in printed.err


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ((), ("missing option '--url'", "see `tuner server compare --help`")),
        (("--url", "http://127.0.0.1:1"), ("missing option '--workload'",)),
        (("--url", "http://127.0.0.1:1", "--workload", "w.yaml"), ("--url", "two servers are compared", "twice")),
        (("--url", "u", "--url", "u", "--workload", "w.yaml"), ("give --url twice",)),
    ],
)
def test_mistakes_are_one_line(folder: Path, argv: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(run_here(folder, "server", "compare", *argv), folder, *parts)
