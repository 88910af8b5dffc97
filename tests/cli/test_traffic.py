"""`tuner traffic import` and `tuner traffic cut`: what they write and print, and the user's mistakes."""

import json
from pathlib import Path

import pytest

from tests.cli.command import one_line, ran, run_here
from tests.unit.workloads.traces import samples
from tests.unit.workloads.traces.test_cut import sessions
from tuner.workloads.traces.requests_file import requests_text
from tuner.workloads.traffic import load_traffic


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "trace.jsonl").write_text(samples.MOONCAKE)
    return tmp_path


def test_an_import_is_printed_and_can_be_simulated(trace: Path) -> None:
    printed = run_here(trace, "traffic", "import", "trace.jsonl", "-o", "mine.yaml")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines() == [
        "4 requests in 4 s, 0.75 requests/s",
        "format: Mooncake; times: ms, as the format says",
        "rate in tenths of the time: 2.5 0 2.5 0 0 0 0 2.5 0 2.5 requests/s",
        "gaps: standard deviation / mean 0.35 (Poisson: 1)",
        "shared prefixes: 62.6% of the prompt tokens with an ideal cache, in blocks of 512 tokens",
        "sessions: not recorded",
        "note: its blocks have 512 tokens, as Mooncake's description says",
        "tokens   mean    p50    p95  longest",
        "────────────────────────────────────",
        "prompt  1,053  1,100  1,500    1,500",
        "answer     10     10     10       10",
        "",
        "written: mine.yaml, mine.requests.jsonl",
    ]
    assert (trace / "mine.yaml").read_text() == (
        "# Imported from trace.jsonl (Mooncake): 4 requests, whose times, lengths and blocks are in\n"
        "# mine.requests.jsonl.\n"
        "arrivals:\n  process: trace\n  file: mine.requests.jsonl\n"
        "classes:\n  recorded:\n    trace:\n      file: mine.requests.jsonl\n"
        "# Bounds, for example:\n# slo:\n#   recorded: {p95_ttft_ms: 2000, tpot_ms: 50}\n"
    )
    ran(trace, "simulate", "--gpu", "h100", "--workload", "mine.yaml")


def test_what_is_left_out_is_printed(tmp_path: Path) -> None:
    (tmp_path / "spend.json").write_text(samples.LITELLM)
    printed = ran(tmp_path, "traffic", "import", "spend.json")
    assert "format: LiteLLM; times: dates" in printed.out
    assert "sessions: 1 with 2 requests on average, 2 at most\n" in printed.out
    assert "left out: 1 request without an engine: the proxy's cache answered" in printed.out
    assert "shared prefixes: not recorded" in printed.out
    assert not any("Anna" in path.read_text() for path in tmp_path.glob("traffic.*"))


def test_conversations_get_the_rate_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "share.json").write_text(samples.SHARE_GPT)
    printed = ran(tmp_path, "traffic", "import", "share.json", "--rate", "2.5")
    assert "note: lengths are estimates, at 4 characters a token" in printed.out
    made = load_traffic(tmp_path / "traffic.yaml")
    assert (made.rate, made.requests) == (2.5, 3)


def test_json_has_what_is_printed(trace: Path) -> None:
    printed = run_here(trace, "traffic", "import", "trace.jsonl", "--json")
    found = json.loads(printed.out)
    assert (found["format"], found["summary"]["shared_tokens"], found["distances"]) == ("Mooncake", 2636, None)
    assert (found["traffic"], found["requests"]) == ("traffic.yaml", "traffic.requests.jsonl")


def test_a_cut_keeps_the_bounds_and_shows_its_distances(tmp_path: Path) -> None:
    whole = sessions(60, 4, 30.0)
    (tmp_path / "day.requests.jsonl").write_text(requests_text(whole.requests, whole.times_s or (), 100))
    (tmp_path / "day.yaml").write_text(
        "arrivals: {process: trace, file: day.requests.jsonl, speed: 2}\nrequests: 999\nmax_in_flight: 9\n"
        "classes: {recorded: {trace: {file: day.requests.jsonl}}}\nslo: {recorded: {p95_ttft_ms: 2000}}\n"
    )
    printed = ran(tmp_path, "traffic", "cut", "day.yaml", "--requests", "50")
    assert "distances to the whole (240 requests):" in printed.out
    assert "  hit rate of the cache " in printed.out
    assert "  rate +0.0%" in printed.out
    assert "  Kolmogorov-Smirnov: gaps 0." in printed.out
    made = load_traffic(tmp_path / "short.yaml")
    assert (made.requests, made.max_in_flight, made.slo) == (None, 9, {"recorded": {"p95_ttft_ms": 2000}})
    assert made.files() == [tmp_path / "short.requests.jsonl"] * 2
    assert len((tmp_path / "short.requests.jsonl").read_text().splitlines()) == 51


def test_a_cut_of_conversations_keeps_their_rate(tmp_path: Path) -> None:
    (tmp_path / "share.json").write_text(samples.SHARE_GPT)
    run_here(tmp_path, "traffic", "import", "share.json", "--rate", "2.5")
    ran(tmp_path, "traffic", "cut", "traffic.yaml", "--requests", "2")
    made = load_traffic(tmp_path / "short.yaml")
    assert (made.rate, made.requests) == (2.5, 2)


@pytest.mark.parametrize(
    ("content", "argv", "parts"),
    [
        (None, [], ["trace 'x' cannot be read: No such file or directory; give a recording of a known format"]),
        ("", [], ["x:1: this is not the first line of a trace with lengths"]),
        (samples.MOONCAKE, ["--format", "moon"], ["--format 'moon': the formats are requests, dynamo, otlp"]),
        (
            samples.MOONCAKE,
            ["--format", "azure"],
            ["x:1: its columns are not those of Azure (timestamp, input_length"],
        ),
        (samples.MOONCAKE, ["--format", "dynamo"], ["x:1: its schema is 'None', not 'dynamo.request.trace.v1'"]),
        (samples.MOONCAKE, ["--unit", "min"], ["--unit 'min': the units are s, ms, us, ns; choose one"]),
        (samples.MOONCAKE, ["--block-tokens", "0"], ["--block-tokens '0': at least 1 is needed"]),
        (samples.MOONCAKE, ["--rate", "3"], ["--rate 3: the recording has times; leave it out"]),
        (samples.SHARE_GPT, [], ["x: a file of ShareGPT has no times; give --rate, the requests per second"]),
        (samples.SHARE_GPT, ["--rate", "-1"], ["--rate -1: a rate is a number above 0"]),
        (samples.MOONCAKE, ["--column", "time"], ["--column 'time': the form is WHAT=NAME"]),
        (samples.MOONCAKE, ["--column", "when=t"], ["--column 'when=t': the columns are time, input, output"]),
        (samples.MOONCAKE, ["--column", "time=t"], ["x:1: no column is called 't'; there are timestamp"]),
        (
            '{"timestamp": 0.5, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}',
            ["--unit", "s"],
            ["x: the size of its blocks is not known; give --block-tokens, the tokens of a block"],
        ),
        ("timestamp,input_len,output_len\n-1,2,3\n", [], ["x:2: ", "is negative ('-1', '2', '3'; a date is"]),
        ("timestamp,input_len,output_len\n1,2,3\n5,2,3\n", [], ["unit of its times is not known", "give the import"]),
    ],
)
def test_a_mistake_of_an_import_is_one_line(
    tmp_path: Path, content: str | None, argv: list[str], parts: list[str]
) -> None:
    if content is not None:
        (tmp_path / "x").write_text(content)
    one_line(run_here(tmp_path, "traffic", "import", "x", *argv), *parts)
    assert [*tmp_path.glob("traffic.*")] == []


def test_an_output_that_exists_stays(trace: Path) -> None:
    (trace / "traffic.yaml").write_text("mine")
    printed = run_here(trace, "traffic", "import", "trace.jsonl")
    assert printed.code == 2
    assert printed.err == ("tuner: -o 'traffic.yaml': this file exists and stays; choose another, or remove it\n")
    assert (trace / "traffic.yaml").read_text() == "mine"
    one_line(
        run_here(trace, "traffic", "import", "trace.jsonl", "-o", "nowhere/x.yaml"),
        "-o 'nowhere/x.yaml': cannot be written: No such file or directory",
    )


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--requests", "4"], ["--requests 4: traffic.requests.jsonl has 4 requests; give fewer, at least 2"]),
        (["--requests", "1"], ["--requests '1': at least 2 is needed; see `tuner traffic cut --help`"]),
        (["--cache-tokens", "0"], ["--cache-tokens '0': at least 1 is needed"]),
        (["--request", "3"], ["there is no option --request; did you mean --requests?"]),
    ],
)
def test_a_mistake_of_a_cut_is_one_line(trace: Path, argv: list[str], parts: list[str]) -> None:
    run_here(trace, "traffic", "import", "trace.jsonl")
    one_line(run_here(trace, "traffic", "cut", "traffic.yaml", *argv), *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["traffic file 'x.yaml' cannot be read"]),
        (
            "arrivals: {process: poisson, rate: 1}\nrequests: 9\nclasses: {a: {input: 1, output: 1}}\n",
            ["x.yaml: a cut is of one recording: one class with `trace`", "`tuner traffic import` wrote"],
        ),
    ],
)
def test_a_cut_of_other_traffic_is_refused(tmp_path: Path, text: str | None, parts: list[str]) -> None:
    if text is not None:
        (tmp_path / "x.yaml").write_text(text)
    one_line(run_here(tmp_path, "traffic", "cut", "x.yaml"), *parts)


def test_the_capacity_of_an_imported_trace_is_searched(tmp_path: Path) -> None:
    whole = sessions(20, 4, 5.0)
    (tmp_path / "day.requests.jsonl").write_text(requests_text(whole.requests, whole.times_s or (), 100))
    (tmp_path / "day.yaml").write_text(
        "arrivals: {process: trace, file: day.requests.jsonl}\n"
        "classes: {recorded: {trace: {file: day.requests.jsonl}}}\nslo: {recorded: {p95_ttft_ms: 500}}\n"
    )
    printed = run_here(
        tmp_path, "capacity", "--engine", "simulated", "--gpu", "h100", "--workload", "day.yaml", "--json"
    )
    assert printed.code == 0, printed.err
    assert json.loads(printed.out)["capacity"] > 80 / 1000
