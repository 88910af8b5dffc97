"""Traffic files, suites, the closed loop and the presets: their meaning, and errors with their place."""

from pathlib import Path
from textwrap import dedent

import pytest

from tuner.errors import UserError
from tuner.workloads import traffic
from tuner.workloads.presets import load_preset, preset_names
from tuner.workloads.schedule import make_schedule
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic, load_traffic

EXAMPLE = dedent((traffic.__doc__ or "").split("docs/workloads.md`):\n")[1])
"""The example of the module's docstring."""


def read(folder: Path, text: str) -> Traffic:
    path = folder / "traffic.yaml"
    path.write_text(text)
    return load_traffic(path)


def test_the_example_of_the_docstring(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Say hello.", "output_tokens": 7}\n')
    parsed = read(tmp_path, EXAMPLE)
    # 256 tokens of system prompt, then 2,000 + 64 + 512; chat has 2,048 + 128; a class without weight does not count.
    assert parsed.longest_request == 256 + 2576
    assert parsed.classes["chat"].longest() == 2048 + 128
    assert len(make_schedule(parsed, 0)) == 2000


def test_paths_are_relative_to_the_traffic_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "times.txt").write_text("0\n1\n")
    (tmp_path / "lengths.txt").write_text("5\n")
    monkeypatch.chdir("/")
    text = "arrivals: {process: trace, file: times.txt}\nclasses: {a: {input: {file: lengths.txt}, output: 1}}"
    assert [offered.input_tokens for offered in make_schedule(read(tmp_path, text), 0)] == [5, 5]


CLASSES = "classes: {a: {input: 1, output: 1}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrivals: {process: poisson, rate: 1}\n" + CLASSES, "the traffic has no end; give `requests`, `duration_s`"),
        ("arrivals: {process: closed}\n" + CLASSES, "a closed loop needs `requests`"),
        (
            "arrivals: {process: closed}\nrequests: 1\nduration_s: 3\n" + CLASSES,
            "leave duration_s and max_in_flight out",
        ),
        ("arrivals: {process: ramp, start_rate: 1, end_rate: 2}\nrequests: 5\n" + CLASSES, "a ramp needs `duration_s`"),
        (
            "arrivals: {process: ramp, start_rate: 0, end_rate: 0}\nduration_s: 5\n" + CLASSES,
            "from 0 to 0 sends nothing",
        ),
        (
            "arrivals: {process: poisson, rate: 0}\nrequests: 1\n" + CLASSES,
            r"arrivals\.poisson\.rate: .*greater than 0",
        ),
        ("arrivals: {process: burst, rate: 1}\nrequests: 1\n" + CLASSES, "arrivals: .*'closed', 'poisson'"),
        ("arrivals: {process: closed}\nrequests: 1\nclasses: {}\n", "classes: .*at least 1"),
        (
            "arrivals: {process: closed}\nrequests: 1\nclasses: {a: {weight: 0, input: 1, output: 1}}\n",
            "the weights of the classes sum to 0; give at least one class a weight above 0",
        ),
        (
            "arrivals: {process: closed}\nrequests: 1\nclasses: {a: {weight: -1, input: 1, output: 1}}\n",
            r"classes\.a\.weight: .*greater than or equal to 0",
        ),
        (
            "arrivals: {process: closed}\nrequests: 1\nclasses: {a: {input: {uniform: [9, 3]}, output: 1}}\n",
            r"uniform \[9, 3\]: the shortest length is above the longest",
        ),
        (
            "arrivals: {process: closed}\nrequests: 1\nclasses: {a: {input: {fixed: 1, uniform: [1, 2]}, output: 1}}\n",
            "a length has one of the keys fixed, uniform, lognormal and file, got fixed, uniform",
        ),
        (
            "arrivals: {process: closed}\nrequests: 1\n"
            "classes: {a: {input: {lognormal: {mean: 500, cv: 1, max: 100}}, output: 1}}\n",
            "min <= mean <= max must hold, got 1, 500, 100",
        ),
        ("arrivals: {process: closed}\nrequests: 1\nusers: 3\n" + CLASSES, "users: Extra inputs"),
        ("arrivals: [\n", r"traffic\.yaml:2: not valid YAML"),
        ("- 1\n", "a traffic file is a mapping with the keys arrivals, requests"),
    ],
)
def test_an_error_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert "traffic.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml' cannot be read: No such file"):
        load_traffic(tmp_path / "none.yaml")


def test_another_rate_with_or_without_the_same_duration(tmp_path: Path) -> None:
    parsed = read(tmp_path, "arrivals: {process: poisson, rate: 4}\nrequests: 100\n" + CLASSES)
    assert (parsed.at_rate(12).rate, parsed.at_rate(12).requests) == (12, 100)
    assert (parsed.at_rate_for_same_duration(12).rate, parsed.at_rate_for_same_duration(12).requests) == (12, 300)
    assert parsed.at_rate_for_same_duration(0.5).requests == 20


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ("{b: {ttft_ms: 1}}", r"slo: there is no class 'b'; classes: a"),
        ("{a: {ttft: 1}}", r"slo\.a: 'ttft' is not a bound"),
        ("{a: {p97_ttft_ms: 1}}", r"the percentiles are 50, 90, 95, 99"),
        ("{a: {p95_ttft_ms: 1, ttft_ms: 2}}", r"ttft has two bounds"),
        ("{a: {p95_ttft_p95_ms: 1}}", r"is not a bound"),
        ("{a: {ttft_ms: 0}}", r"ttft_ms: 0.0 is not a bound; give a number above 0"),
        ("{a: {goodput_share: 1.5}}", r"a number above 0 and at most 1"),
    ],
)
def test_a_bad_slo_is_refused(tmp_path: Path, slo: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, "arrivals: {process: poisson, rate: 4}\nrequests: 100\n" + CLASSES + f"slo: {slo}\n")


def test_both_positions_of_a_percentile_mean_the_same(tmp_path: Path) -> None:
    text = "arrivals: {process: poisson, rate: 4}\nrequests: 100\n" + CLASSES
    one, other = (read(tmp_path, text + f"slo: {{a: {{{key}: 250}}}}\n").slos for key in ("p99_itl_ms", "itl_p99_ms"))
    assert one == other
    assert one["a"].constraints == ("p99_itl_ms<250",)
    assert (one["a"].request.bounds_ms, one["a"].request.itl_percentile) == ({"itl": 250.0}, 99)


@pytest.mark.parametrize("name", ["worst", "client", "a.b", "1st"])
def test_reserved_and_malformed_class_names_are_refused(tmp_path: Path, name: str) -> None:
    text = f"arrivals: {{process: poisson, rate: 4}}\nrequests: 9\nclasses: {{{name}: {{input: 1, output: 1}}}}\n"
    with pytest.raises(UserError, match="a class cannot be called"):
        read(tmp_path, text)


DOCS = Path(__file__).parents[3] / "docs"


def test_the_shipped_example() -> None:
    example = load_traffic(DOCS / "examples" / "traffic.yaml")
    assert {name: slo.constraints for name, slo in example.slos.items()} == {
        "chat": ("p95_ttft_ms<1000", "goodput_share>=0.95"),
        "search": ("p95_ttft_ms<2000", "goodput_share>=0.95"),
    }
    assert example.slos["chat"].request.bounds_ms == {"ttft": 1000.0, "tpot": 50.0}
    # 64 tokens of system prompt, then 512 + 384 of chat; search has 600 + 32 + 96
    assert example.longest_request == 64 + 896
    assert len(make_schedule(example, 0)) == 600


def test_the_page_shows_the_shipped_example() -> None:
    page = (DOCS / "workloads.md").read_text(encoding="utf-8")
    example = (DOCS / "examples" / "traffic.yaml").read_text(encoding="utf-8")
    assert f"```yaml\n{example}```" in page


def test_a_class_may_have_a_priority(tmp_path: Path) -> None:
    plain = "arrivals: {process: poisson, rate: 1}\nrequests: 9\nclasses:\n  a: {input: 1, output: 1}\n"
    alike = read(tmp_path, plain + "  b: {input: 1, output: 1, priority: 0}\n")
    ranked = read(tmp_path, plain + "  b: {input: 1, output: 1, priority: -2}\n")
    assert (alike.priorities, ranked.priorities) == (False, True)
    stored = ranked.model_dump(mode="json")
    assert stored["classes"]["b"]["priority"] == -2
    assert Traffic.model_validate(stored) == ranked


def test_the_default_preset_has_the_published_workload() -> None:
    preset = load_preset("qwen2.5-0.5b-t4")
    workload = preset.workload
    assert isinstance(workload, ClosedLoop)
    assert preset.model == "Qwen/Qwen2.5-0.5B"
    assert (workload.max_concurrency, workload.num_prompts, workload.input_len, workload.output_len) == (
        50,
        200,
        512,
        512,
    )
    assert workload.temperature is None
    assert preset.objectives == ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
    assert preset.slos == ("p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1")


def test_the_greedy_preset_differs_in_temperature_only() -> None:
    sampled, greedy = load_preset("qwen2.5-0.5b-t4"), load_preset("qwen2.5-0.5b-t4-greedy")
    assert greedy.workload == sampled.workload.model_copy(update={"temperature": 0.0})
    assert (greedy.slos, greedy.objectives, greedy.model) == (sampled.slos, sampled.objectives, sampled.model)


@pytest.mark.parametrize(
    ("run", "users", "prompts", "output_len", "enqueue"),
    [
        ("run-a", 10, 50, 512, ()),
        ("run-b", 50, 200, 512, ()),
        ("run-c", 50, 200, 512, ("eager-ngram",)),
        ("run-d", 100, 100, 128, ()),
        ("two-servers", 50, 200, 512, ("two-instances",)),
    ],
)
def test_the_runs_of_the_contest_are_presets(
    run: str, users: int, prompts: int, output_len: int, enqueue: tuple[str, ...]
) -> None:
    preset = load_preset(f"qwen2.5-0.5b-t4-{run}")
    assert preset.workload == ClosedLoop(
        max_concurrency=users, num_prompts=prompts, input_len=512, output_len=output_len
    )
    assert preset.enqueue == enqueue


def test_every_repeat_and_the_warm_up_have_their_own_seed() -> None:
    workload = ClosedLoop()
    seeds = [workload.repeat_seed(i) for i in range(5)]
    assert seeds == [1000, 1001, 1002, 1003, 1004]
    warm = workload.warmup()
    assert warm is not None
    assert warm.seed not in seeds
    assert (warm.num_prompts, warm.output_len, warm.max_concurrency) == (50, 32, 50)


@pytest.mark.parametrize(
    ("users", "prompts", "share", "expected"),
    [
        (50, 200, 0.5, 100),
        (50, 200, 0.1, 100),  # two requests per user
        (50, 1000, 0.3334, 334),
        (10, 200, 0.1, 100),  # enough for a 99th percentile
        (50, 90, 0.5, 90),  # never longer than the original
        (50, 200, 1.0, 200),
    ],
)
def test_a_shortened_workload_has_at_least_two_requests_per_user_and_100(
    users: int, prompts: int, share: float, expected: int
) -> None:
    workload = ClosedLoop(max_concurrency=users, num_prompts=prompts)
    assert workload.shortened(share) == workload.model_copy(update={"num_prompts": expected})


def test_the_longest_request_counts_prompt_and_answer() -> None:
    assert ClosedLoop(input_len=512, output_len=512).longest_request == 1024


def test_an_unknown_preset_suggests_a_similar_name() -> None:
    with pytest.raises(UserError, match=r"did you mean qwen2\.5-0\.5b-t4"):
        load_preset("qwen2.5-0.5b-t5")
    assert {"qwen2.5-0.5b-t4", "qwen2.5-0.5b-t4-greedy", "mixed", "chat"} <= set(preset_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("description: [", r"mine\.yaml:1: not valid YAML"),
        ("model: m\n", r"mine\.yaml: description: this key is missing; add it"),
        ("- 1\n", r"mine\.yaml: a preset is a mapping"),
    ],
)
def test_a_bad_preset_file_is_an_error_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_preset(str(file))
