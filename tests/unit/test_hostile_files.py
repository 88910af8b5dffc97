"""Hostile files and inputs.

Texts are built from the pieces of valid ones, so that they reach the code behind the first check.
"""

import contextlib
import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards import frames
from records.trials import Phase, ServerFacts
from search_spaces import Context, ModelShape, SpaceError, hardware_from_file, hardware_named, load_space
from search_spaces.expressions import UNKNOWN, Expression
from search_spaces.render import fixed_values
from search_spaces.schema import ParameterSpec
from search_spaces.yaml_file import YamlError, read_yaml
from storage.errors import StorageError
from tests.fakes.raw_server import answering
from tuner.engines.server.failures import read_log
from tuner.engines.server.flags import flags_from_dump
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.server.traffic import ResultError
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.serve_config import resolve_serve_config
from tuner.engines.vllm.bench_serve import read_result
from tuner.engines.vllm.texts import METRICS, classify, facts_from_log
from tuner.errors import UserError
from tuner.export.words import without_trial_settings
from tuner.http import JSON, get_local
from tuner.scoring.goals import parse_objective, parse_slo
from tuner.workloads.presets import load_preset
from tuner.workloads.reading import read_texts
from tuner.workloads.request_class import read_lengths
from tuner.workloads.schedule import make_schedule
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traces.formats import read_recording, read_times
from tuner.workloads.traffic import load_traffic

few = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

numbers = st.integers(-3, 40) | st.integers() | st.floats() | st.sampled_from([2**62, 10**400, 1e308, 5e-324, -0.0])
words = st.sampled_from(
    ["poisson", "gamma", "ramp", "trace", "closed", "random", "repetitive", "int", "float", "a", "b", "effective.a"]
) | st.text(max_size=6)
leaves = st.none() | st.booleans() | numbers | words
KEYS = (
    *("arrivals", "process", "rate", "burstiness", "start_rate", "end_rate", "file", "speed", "users", "requests"),
    *("duration_s", "max_in_flight", "system_prompt", "timeout_s", "classes", "slo", "temperature", "seed", "weight"),
    *("input", "output", "prefix", "tokens", "documents", "zipf", "text", "fixed", "uniform", "lognormal", "mean"),
    *("cv", "min", "max", "p95_ttft_ms", "goodput_share", "a", "b", "name", "model", "hardware", "space", "workload"),
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | words, inner, max_size=4),
    max_leaves=12,
)


def mutated(base: dict[str, Any], paths: list[tuple[str, ...]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return copies of `base` in which up to three of the paths have other values, or none."""

    def change(changes: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(base))
        for path, value in changes:
            node: Any = copy
            for key in path[:-1]:
                node = node.setdefault(key, {}) if isinstance(node, dict) else {}
            if isinstance(node, dict):
                node[path[-1]] = value
        return copy

    return st.lists(st.tuples(st.sampled_from(paths), leaves | trees), max_size=3).map(change)


def written(folder: Path, tree: Any) -> Path:
    """Write a file of YAML; Python's own numbers of any size included."""
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    return path


PIECES = (
    *("a: ", "- ", "? ", "[", "]", "{", "}", ", ", "\n", "\n  ", "&a ", "*a", "<<: *a\n", "!!int ", "!!binary ", "|\n"),
    *("'", '"', "#", "%", "---\n", "...\n", "1", "9" * 50, "2026-99-99", "1:99:99", "0x", "0o9", ".inf", "~"),
    *("\\x", "\t"),
)


@few
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join))
def test_yaml_of_pieces(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(YamlError):
        read_yaml(path)
    for read in (load_space, hardware_from_file, load_traffic, lambda file: load_preset(str(file))):
        with contextlib.suppress(SpaceError, UserError):
            read(path)


TRAFFIC = {
    "arrivals": {"process": "poisson", "rate": 5},
    "requests": 20,
    "classes": {"a": {"input": {"lognormal": {"mean": 8, "cv": 1, "max": 40}}, "output": {"uniform": [1, 4]}}},
}
TRAFFIC_PATHS = [
    *((key,) for key in ("arrivals", "requests", "duration_s", "max_in_flight", "classes", "slo", "seed", "timeout_s")),
    *(
        ("arrivals", key)
        for key in ("process", "rate", "burstiness", "start_rate", "end_rate", "file", "speed", "users")
    ),
    *(("classes", "a", key) for key in ("weight", "input", "output", "prefix", "text")),
    *(("classes", "a", "input", "lognormal", key) for key in ("mean", "cv", "min", "max")),
    *(("classes", "a", "prefix", key) for key in ("tokens", "documents", "zipf")),
    *(("slo", "a", key) for key in ("p95_ttft_ms", "goodput_share")),
]


@few
@given(tree=mutated(TRAFFIC, TRAFFIC_PATHS))
def test_a_traffic_file(tree: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, tree)
    with contextlib.suppress(UserError):
        traffic = load_traffic(path)
        assert traffic.longest_request > 0
        if (traffic.requests or 0) <= 1000 and traffic.duration_s is None:
            make_schedule(traffic, traffic.seed)


PARAMETER = {"description": "d", "type": "int", "low": 1, "high": 8, "flag": "--a"}
SPACE = {
    "parameters": {"a": PARAMETER, "b": {"description": "d", "type": "categorical", "choices": ["x", 1], "env": "B"}},
    "rules": [{"name": "r", "forbid": "a > 4 and b == 1", "why": "w {a}"}],
    "named": {"n": {"config": {"a": 2}, "note": "n", "source": "s"}},
}
SPACE_PATHS = [
    *((key,) for key in ("description", "include", "parameters", "rules", "named")),
    *(("parameters", "a", key) for key in ("type", "low", "high", "step", "log", "choices", "when", "engine_default")),
    *(("parameters", "b", key) for key in ("choices", "when", "engine_default", "requires", "json", "env", "flag")),
    ("named", "n", "config"),
]


@few
@given(tree=mutated(SPACE, SPACE_PATHS))
def test_a_space(tree: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, tree)
    with contextlib.suppress(SpaceError):
        space = load_space(path)
        resolved = space.resolve(Context(hardware_named("t4"), engine_version="0.25.1"))
        resolved.to_dict()
        resolved.cardinality()
        resolved.violations({})
        resolved.render({})


CARD = {
    **{"name": "mine", "compute_capability": [8, 9], "memory_gib": 24, "bandwidth_gbs": 300},
    **{"tflops": {"float16": 121}, "launch_us": 5, "host_speed": 1},
}


@few
@given(tree=mutated(CARD, [(key,) for key in CARD] + [("tflops", "float16"), ("tflops", "fp8")]))
def test_a_card(tree: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, tree)
    with contextlib.suppress(SpaceError):
        hardware_from_file(path)


PRESET = {"description": "d", "source": "s", "model": "m", "hardware": "t4", "workload": TRAFFIC}
PRESET |= {"objectives": ["goodput"], "slos": []}


@few
@given(tree=mutated(PRESET, [(key,) for key in (*PRESET, "enqueue")] + [("workload", *path) for path in TRAFFIC_PATHS]))
def test_a_preset(tree: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, tree)
    with contextlib.suppress(UserError):
        load_preset(str(path))


OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "==", "in", "not in", "not", "and", "or", "if", "else")
TOKENS = (
    *("a", "b", "secret", "1", "0", "2.5", "1e308", "9" * 60, '"x"', "None", "True", "(", ")", "[", "]", ","),
    *(f" {operator} " for operator in OPERATORS),
    *(f"{function}(" for function in ("min", "max", "version", "capability", "known")),
    *("-", "~", "effective.a", ".a", "lambda: ", "\0", "\\"),
)
VALUES = {"a": 3, "b": "x", "secret": UNKNOWN, "effective.a": None}


@settings(few, max_examples=300)
@given(source=st.lists(st.sampled_from(TOKENS), max_size=14).map("".join) | st.text(max_size=30))
def test_an_expression(source: str) -> None:
    with contextlib.suppress(SpaceError):
        expression = Expression(source)
        expression.holds(lambda name: VALUES.get(name, UNKNOWN))
        expression.holds(lambda _: UNKNOWN)


rows = st.lists(
    numbers.map(str) | st.sampled_from(["", " ", "nan", "1e999", "9" * 5000, "٣", "²"]) | st.text(max_size=5)
)


@few
@given(values=rows)
def test_lengths_and_times(values: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\n".join(values).encode("utf-8", "surrogatepass"))
    read_recording.cache_clear()
    with contextlib.suppress(UserError):
        assert read_lengths(path)
    with contextlib.suppress(UserError):
        assert read_times(path, None)


HEADERS = ("TIMESTAMP,ContextTokens,GeneratedTokens", "Timestamp,Request tokens,Response tokens", "")
JSON_ROW = '{{"timestamp": {}, "input_length": {}, "output_length": {}}}'
cells = numbers.map(str) | words | st.sampled_from(["2024-05-10 00:00:00", "0001-01-01", '"', "\0", "null", "[]"])


@few
@given(header=st.sampled_from(HEADERS), rows=st.lists(st.tuples(cells, cells, cells), max_size=4))
def test_traces(header: str, rows: list[tuple[str, str, str]], tmp_path: Path) -> None:
    texts = [",".join(row) if header else JSON_ROW.format(*row) for row in rows]
    path = tmp_path / "trace"
    path.write_bytes("\n".join([*([header] if header else []), *texts]).encode("utf-8", "surrogatepass"))
    read_recording.cache_clear()
    with contextlib.suppress(UserError):
        found = read_recording(path)
        assert all(each.input_tokens > 0 and each.output_tokens > 0 for each in found.requests)
        assert found.times_s(None if found.dates else "s") == sorted(each.at for each in found.requests)


CSV_PIECES = (*frames._SERVER_COLUMNS, "rate", "held", ",", "\n", '"', "1", "True", "nan")


@few
@given(head=st.sampled_from(["server", "rates", ""]), tail=st.lists(st.sampled_from(CSV_PIECES) | st.text(max_size=3)))
def test_files_of_a_trial(head: str, tail: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x"
    columns = {"server": frames._SERVER_COLUMNS, "rates": frames._RATE_COLUMNS, "": ()}[head]
    path.write_bytes("".join([",".join(columns), "\n", *tail]).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(StorageError):
        frames.server_frame([path])
    with contextlib.suppress(StorageError):
        frames.rate_frame(path)
    with contextlib.suppress(StorageError):
        frames.requests_by_length_frame([path])


entries = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["prompt", "output_tokens", "max_tokens", "conversations", "from", "value"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
lines = entries.map(json.dumps) | st.text(max_size=12) | st.sampled_from(["[" * 100_000, "9" * 5000, '{"a": ' * 99_999])


@few
@given(rows=st.lists(lines, max_size=3), suffix=st.sampled_from(["jsonl", "json"]), number=st.integers(0, 10**9))
def test_prompts(rows: list[str], suffix: str, number: int, tmp_path: Path) -> None:
    text = "\n".join(rows) if suffix == "jsonl" else f"[{','.join(rows)}]"
    path = tmp_path / f"{number}.{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    read_texts.cache_clear()
    with contextlib.suppress(UserError):
        read_texts(path)


@few
@given(tree=trees | st.dictionaries(st.sampled_from(["num_attention_heads", "hidden_size", "vocab_size"]), leaves))
def test_a_models_config(tree: Any) -> None:
    full = dict.fromkeys(("num_hidden_layers", "intermediate_size", "max_position_embeddings"), 8)
    full |= {"num_attention_heads": 2, "hidden_size": 8, "vocab_size": 9}
    for config in (tree, {**full, **tree} if isinstance(tree, dict) else tree, {"text_config": tree}):
        with contextlib.suppress(SpaceError):
            ModelShape.from_config_json(config)


FLAGS = (
    *("--max-num-seqs", "--max-model-len=", "--dtype", "-O2", "-O", "-cc", "-cc.mode=", "-cc.a.b=1", "-tp", "=", "-"),
    *("--no-async-scheduling", "--speculative-config", "--override-generation-config", "--gpu-memory-utilization"),
    *("--block-size", "--cudagraph-capture-sizes", "--compilation-config", "--host", "--port=1", "-q", "--"),
    "-cc" + ".a" * 5000 + "=1",
)
NUMBERS = ("8", "16k", "1.5", "1e999", "nan", "-1", "9" * 400, "9" * 5000)
FLAG_VALUES = (*NUMBERS, "{", "{}", "[" * 99_999, "auto", "fp8", "")
flag_words = st.sampled_from(FLAGS) | st.sampled_from(FLAG_VALUES) | entries.map(json.dumps) | st.text(max_size=5)
speculation = st.dictionaries(st.sampled_from(["method", "model", "num_speculative_tokens"]), leaves | st.just("ngram"))


@settings(few, max_examples=200)
@given(argv=st.lists(flag_words | speculation.map(json.dumps), max_size=5))
def test_flags(argv: list[str]) -> None:
    shape = ModelShape(2, 8, 16, 2, 2, 4, 99, 512, True, "bfloat16", None)
    with contextlib.suppress(ConfigRefused):
        resolve_serve_config(argv, {}, shape, hardware_named("t4"), (0, 25, 0), frozenset())
    spec = ParameterSpec.model_validate({**PARAMETER, "flag": "--max-num-seqs"})
    nested = ParameterSpec.model_validate(
        {"description": "d", "type": "bool", "json": {"flag": "--compilation-config", "key": "a"}}
    )
    fixed_values({"a": spec, "b": nested}, argv)
    without_trial_settings(argv)
    dump = [{"names": ["--max-num-seqs"], "choices": None, "type": "int", "nargs": None}]
    flags_from_dump(dump, "vLLM").problem(argv)


goals = st.from_regex(re.compile(r"[a-z0-9_.]{0,12}(<|<=|>|:|=)?[0-9.einfa+-]{0,8}"), fullmatch=True) | st.text(
    max_size=12
)


@few
@given(text=goals | goals.map(lambda text: f"p99_ttft_ms{text}"))
def test_goals(text: str) -> None:
    for parse in (parse_slo, parse_objective):
        with contextlib.suppress(UserError):
            parse(text)


LOAD = ClosedLoop(max_concurrency=10, num_prompts=40, input_len=128, output_len=64)
RESULT_FIELDS = ("completed", "duration", "output_throughput", "p99_ttft_ms", "median_itl_ms", "std_e2el_ms")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
) | st.sampled_from([10**400, -(10**400), 1e308, 5e-324])


@few
@given(content=st.binary())
def test_a_result_of_any_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with contextlib.suppress(ResultError):
        read_result(path, LOAD, 0, 1)


@few
@given(fields=st.dictionaries(st.sampled_from(RESULT_FIELDS), json_values | st.integers(0, 40)))
def test_a_result_with_any_fields(fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(fields))
    try:
        repeat = read_result(path, LOAD, 0, 1)
    except ResultError:
        return
    assert 0 <= repeat.completed <= repeat.offered == 40
    assert all(value is None or (math.isfinite(value) and value >= 0) for value in repeat.metrics.values())


LOG_PARTS = (
    *("\n", "\r", ": ", "(EngineCore pid=1) ", "ERROR 01-01 00:00:00 [core.py:1] ", "EngineCore failed to start.\n"),
    *(
        "Traceback (most recent call last):\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ",
        "9" * 400,
    ),
    *("ValidationError: 1 validation error for Config\n", "  Value error, no [type=value_error, input_value=1]"),
    *("GPU KV cache size: ", " tokens, Maximum concurrency for ", " tokens per request: ", "x", " GiB", ","),
    *("Model loading took ", "Graph capturing finished in ", " secs, took ", "init engine ", " took ", " s", "1.5"),
    *("During handling of the above exception, another exception occurred:\n", "vllm serve: error: ", "No space left"),
)
log_texts = st.lists(st.sampled_from(LOG_PARTS) | st.text(max_size=20), max_size=30).map("".join)
exit_codes = st.none() | st.integers(-70, 255)


@few
@given(text=log_texts, exit_code=exit_codes, phase=st.sampled_from(list(Phase)))
def test_an_engine_log(text: str, exit_code: int | None, phase: Phase, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(text.encode("utf-8", "surrogatepass"))
    failure = classify(read_log(log), exit_code, phase)
    assert failure.phase is phase
    assert "\n" not in failure.message
    numbers = [value for value in asdict(facts_from_log(text)).values() if isinstance(value, int | float)]
    assert all(math.isfinite(value) and value >= 0 for value in numbers)


page_lines = st.builds(
    "{}{} {}{}".format,
    st.sampled_from(METRICS.read) | st.text(max_size=8),
    st.sampled_from(["", "{", '{engine="0"}', '{engine="0",}', '{a="\\', '{a="b"', "{}", "{=}", '{a="1" b="2"}'])
    | st.text(max_size=8),
    st.floats().map(repr)
    | st.sampled_from(["NaN", "+Inf", "1e999", "9" * 5000, "0x1", "1_0", ""])
    | st.text(max_size=8),
    st.sampled_from(["", " 1395066363000", " # {} 1", " x", "\t1"]),
)


@few
@given(lines=st.lists(page_lines, max_size=6))
def test_a_metrics_page(lines: list[str]) -> None:
    values = parse_metrics("\n".join(lines), METRICS)
    facts = with_benchmark_metrics(ServerFacts(), values, values, [], METRICS)
    assert all(math.isfinite(value) for value in values.values())
    assert facts.prefix_hit_rate is None


@few
@given(
    body=st.binary() | json_values.map(json.dumps).map(str.encode),
    head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]),
)
def test_an_http_answer(body: bytes, head: bytes) -> None:
    with answering(head + body, close=True) as port:
        reply = get_local("127.0.0.1", port, "/", 30.0, types=JSON)
    assert reply is not None
