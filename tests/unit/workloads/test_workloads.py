"""The closed loop and the presets."""

from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.workloads.presets import load_preset, preset_names
from tuner.workloads.spec import ClosedLoop


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
