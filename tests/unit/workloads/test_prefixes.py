"""Shared segments and the hits of caches, on trees that a person drew."""

import random

import pytest

from tuner.workloads.prefixes import CachedRequest, Segment, cache_hits, ideal_hits, shared_segments


def tokens(prompts: list[list[int]], lengths: list[int], size: int = 10) -> list[list[int]]:
    return [[each.tokens for each in path] for path in shared_segments(prompts, lengths, size)]


def test_a_tree_of_three_branches() -> None:
    #  0 1 ┬ 2 3 ┬ 4      first and second share four blocks, the third two, the last none
    #      │     └ 5
    #      └ 6
    prompts = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 6], [9]]
    first, second, third, last = shared_segments(prompts, [45, 50, 30, 10], 10)
    assert [each.tokens for each in first] == [20, 20]
    assert first == second
    assert third == first[:1]
    assert last == ()


def test_a_prompt_that_another_one_continues() -> None:
    assert tokens([[0, 1], [0, 1, 2], [0]], [20, 30, 10]) == [[10, 10], [10, 10], [10]]


def test_equal_prompts_share_all_that_may_be_shared() -> None:
    assert tokens([[0, 1], [0, 1]], [14, 14]) == [[14], [14]]
    assert tokens([[0, 1], [0, 1]], [13, 13]) == [[13], [13]]


def test_nothing_is_shared() -> None:
    assert tokens([[0], [1], []], [10, 10, 10]) == [[], [], []]
    assert shared_segments([], [], 10) == []


def test_a_block_at_another_place_is_not_shared() -> None:
    assert tokens([[0, 1], [2, 1]], [20, 20]) == [[], []]


def test_segments_are_numbered_from_the_first_number() -> None:
    assert shared_segments([[3], [3]], [9, 10], 10, first_number=5) == [(Segment(5, 9),), (Segment(5, 10),)]


def test_ideal_hits_are_what_an_earlier_prompt_begins_with() -> None:
    prompts, lengths = [[0, 1, 2], [0, 1, 3], [0], [0, 1, 2]], [1100, 1500, 512, 1100]
    assert ideal_hits(shared_segments(prompts, lengths, 512)) == [0, 1024, 512, 1100]


@pytest.mark.parametrize("seed", range(20))
def test_ideal_hits_are_those_of_a_set_of_beginnings(seed: int) -> None:
    source = random.Random(seed)
    prompts = [[source.randrange(3) for _ in range(source.randrange(7))] for _ in range(30)]
    lengths = [max(1, 10 * len(prompt) - source.randrange(10)) for prompt in prompts]
    seen: set[tuple[int, ...]] = set()
    expected = []
    for prompt, length in zip(prompts, lengths, strict=True):
        beginnings = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        expected.append(min(10 * sum(each in seen for each in beginnings), length))
        seen |= {*beginnings}
    hits = ideal_hits(shared_segments(prompts, lengths, 10))
    # a partial block is cached as long as the prompt that had it; the set knows whole blocks only
    assert all(hit <= want and want - hit < 10 for hit, want in zip(hits, expected, strict=True))
    endless = cache_hits([CachedRequest(p, n, 1) for p, n in zip(prompts, lengths, strict=True)], 10, 10**9)
    assert endless == expected


def test_a_small_cache_evicts_what_was_used_least_recently() -> None:
    requests = [CachedRequest([0], 10, 5), CachedRequest([1], 10, 5), CachedRequest([0], 10, 5)]
    assert cache_hits(requests, 10, 40) == [0, 0, 10]
    # both prompts and answers need 30: of 25, the first answer goes; of 24, the first prompt, too
    assert cache_hits(requests, 10, 25) == [0, 0, 10]
    assert cache_hits(requests, 10, 24) == [0, 0, 0]


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    requests = [CachedRequest([0, 1, 2], 30, 1), CachedRequest([9], 10, 1), CachedRequest([0, 1, 2], 30, 1)]
    assert cache_hits(requests, 10, 32) == [0, 0, 20]
