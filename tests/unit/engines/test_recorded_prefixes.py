"""Prompts of a recording share prefixes as its hashes say: in the load generator and in the simulator's cache."""

from collections.abc import Sequence
from itertools import combinations, takewhile
from pathlib import Path
from typing import TypeVar

import pytest

from tests.unit.engines.simulator.helpers import server
from tests.unit.workloads.traces import samples
from tuner.engines.server.token_prompts import LibraryTools, TokenTools, find_tokenizer
from tuner.engines.server.traffic import PromptTools, TrafficFiles, plan_requests
from tuner.engines.simulator.client import workload_client
from tuner.loadgen.plan import PlannedRequest
from tuner.processes.records import ProcessRecords
from tuner.scoring.goals import Goals
from tuner.study.specification.resolve_workload import facts_of_load
from tuner.use_cases.tiny_model import make_tokenizer
from tuner.workloads.schedule import make_schedule
from tuner.workloads.traffic import Closed, Traffic, load_traffic

T = TypeVar("T")
SHARED = {(0, 1): 1024, (0, 2): 511, (0, 3): 1099, (1, 2): 511, (1, 3): 1024, (2, 3): 511}
"""Tokens that each pair of `samples.MOONCAKE` has in common. The last token of a prompt is its own: 511 and 1,099."""


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    (tmp_path / "trace").write_text(samples.MOONCAKE)
    path = tmp_path / "t.yaml"
    path.write_text("arrivals: {process: trace, file: trace}\nclasses: {all: {trace: {file: trace}}}\n")
    return load_traffic(path)


def planned(tools: PromptTools, traffic: Traffic, folder: Path, seed: int) -> list[PlannedRequest]:
    return plan_requests(tools, traffic, seed, TrafficFiles(folder, "requests-0"), str(folder), text_seed=seed)


def common(one: Sequence[T], other: Sequence[T]) -> Sequence[T]:
    """Return what two sequences begin with."""
    return [a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def tokens_of(request: PlannedRequest) -> list[int]:
    assert isinstance(request.prompt, list)
    return request.prompt


def test_prompts_of_tokens_share_what_the_hashes_say(tmp_path: Path, traffic: Traffic) -> None:
    tools = TokenTools(range(50_000), ProcessRecords(tmp_path / "processes"), lambda text, _: [])
    prompts = [tokens_of(each) for each in planned(tools, traffic, tmp_path, 3)]
    assert [len(each) for each in prompts] == [1100, 1500, 512, 1100]
    pairs = combinations(range(4), 2)
    assert {(a, b): len(common(prompts[a], prompts[b])) for a, b in pairs} == SHARED


def test_another_run_shares_nothing_with_the_one_before(tmp_path: Path, traffic: Traffic) -> None:
    tools = TokenTools(range(50_000), ProcessRecords(tmp_path / "processes"), lambda text, _: [])
    first, again, other = (
        [tokens_of(each)[:8] for each in planned(tools, traffic, tmp_path, seed)] for seed in (3, 3, 4)
    )
    assert first == again
    assert not {tuple(each) for each in first} & {tuple(each) for each in other}


def test_prompts_of_words_share_what_the_hashes_say(tmp_path: Path, traffic: Traffic) -> None:
    make_tokenizer(tmp_path)
    tokenizer = find_tokenizer(str(tmp_path))
    made = planned(LibraryTools(tokenizer, ProcessRecords(tmp_path / "processes")), traffic, tmp_path, 3)
    assert [each.prompt_tokens for each in made] == [1100, 1500, 512, 1100]
    texts = [str(each.prompt) for each in made]
    for (a, b), shared in SHARED.items():
        beginning = tokenizer.tokens("".join(common(texts[a], texts[b])), special=True)
        assert shared - 2 <= len(beginning) <= shared + 2  # two own parts may begin with the same letters


def test_the_second_round_of_a_recording_shares_nothing_with_the_first(traffic: Traffic) -> None:
    rounds = make_schedule(traffic.model_copy(update={"arrivals": Closed(users=1), "requests": 8}), 1)
    first, second = rounds[:4], rounds[4:]
    assert [each.input_tokens for each in first] == [each.input_tokens for each in second]
    numbers = [{part.number for each in part_of for part in each.segments} for part_of in (first, second)]
    assert not numbers[0] & numbers[1]
    assert [sum(part.tokens for part in each.segments) for each in first] == [1099, 1024, 511, 1099]


def test_a_study_knows_that_the_prompts_share_a_prefix(traffic: Traffic) -> None:
    assert facts_of_load(traffic, Goals((), (), scored=()))["prefix_len"] == 1100


@pytest.mark.parametrize("gap_s", [1.0, 30.0])
def test_the_simulated_cache_finds_what_the_hashes_say(tmp_path: Path, traffic: Traffic, gap_s: float) -> None:
    slow = traffic.model_copy(update={"arrivals": traffic.arrivals.model_copy(update={"speed": 1 / gap_s})})
    counts = server("--max-model-len", "4096").run(workload_client(slow, 1, True, 0.0), 1, noise=False).counts
    assert counts.queried_tokens == 1100 + 1500 + 512 + 1100
    # whole blocks of 16 tokens, and never the last token: 1,024, 496 of 512, and 1,088 of 1,100
    assert counts.hit_tokens == 1024 + 496 + 1088


def test_a_server_without_a_prefix_cache_finds_nothing(traffic: Traffic) -> None:
    made = server("--no-enable-prefix-caching", "--max-model-len", "4096")
    assert made.run(workload_client(traffic, 1, False, 0.0), 1, noise=False).counts.hit_tokens == 0


@pytest.mark.parametrize("library", [False, True])
def test_a_later_turn_is_planned_as_what_it_adds(tmp_path: Path, library: bool) -> None:
    make_tokenizer(tmp_path)
    processes = ProcessRecords(tmp_path / "processes")
    tokenizer = find_tokenizer(str(tmp_path))
    ids = TokenTools(range(4000), processes, lambda text, _: [])
    kind = {"input": 30, "output": 10, "prefix": {"tokens": 20}, "session": {"turns": 3, "pause_ms": 500, "fan_out": 2}}
    load = Traffic.model_validate(
        {"arrivals": {"process": "constant", "rate": 1}, "requests": 6, "system_prompt": 8, "classes": {"a": kind}}
    )
    made = planned(LibraryTools(tokenizer, processes) if library else ids, load, tmp_path, 1)
    sizes = [len(tokenizer.tokens(str(each.prompt), special=True) if library else tokens_of(each)) for each in made]
    # the first turn has the system prompt and the document, the later ones their own 30 tokens
    assert sizes == [58, 58, 30, 30, 30, 30]
    # whole prompts, with 40 tokens for each turn before
    assert [each.prompt_tokens for each in made] == [58, 58, 98, 98, 138, 138]
    assert [(each.session, each.turn, each.pause_s, each.continues) for each in made] == [
        *[(0, 0, 0.0, True)] * 2,
        *[(0, 1, 0.5, True)] * 2,
        *[(0, 2, 0.5, False)] * 2,
    ]
