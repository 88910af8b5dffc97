"""Prefixes that the prompts of a recording share, as its blocks say.

Over the prompts of a run, shared beginnings are a tree. Its branches are segments, each of which two or more prompts
have in common. With the prompts sorted by their blocks, the longest common beginning of each two neighbours gives the
tree, as for a suffix array (Abouelhoda, Kurtz and Ohlebusch, Journal of Discrete Algorithms 2, 2004).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Blocks = Sequence[int]


@dataclass(frozen=True)
class Segment:
    """A part of a prompt that other prompts have, too: number of the segment, and how many of its tokens it has."""

    number: int
    tokens: int


def shared_segments(
    prompts: Sequence[Blocks], lengths: Sequence[int], block_tokens: int, first_number: int = 0
) -> list[tuple[Segment, ...]]:
    """Return the segments that each prompt begins with; the rest of it is its own.

    Args:
        prompts: the blocks of each prompt.
        lengths: the most tokens of each prompt's segments.
        block_tokens: tokens of a block.
        first_number: the number of the first segment.
    """
    found: list[tuple[Segment, ...]] = [()] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: tuple(prompts[index]))
    branches = sorted(_branches([prompts[index] for index in order]), key=lambda each: (each.first, each.depth))
    around: list[tuple[int, _Branch]] = []
    coming = deque(enumerate(branches, first_number))
    for place, index in enumerate(order):
        around = [each for each in around if each[1].last >= place]
        while coming and coming[0][1].first == place:
            around.append(coming.popleft())
        found[index] = tuple(_path(around, lengths[index], block_tokens))
    return found


@dataclass(frozen=True)
class _Branch:
    """A beginning of `depth` blocks that the sorted prompts from `first` to `last` have in common, and no others."""

    depth: int
    first: int
    last: int


def _branches(prompts: Sequence[Blocks]) -> Iterator[_Branch]:
    open_ones: list[tuple[int, int]] = []  # depth and first prompt
    for place in range(1, len(prompts) + 1):
        common = _common(prompts[place - 1], prompts[place]) if place < len(prompts) else 0
        first = place - 1
        while open_ones and open_ones[-1][0] > common:
            depth, first = open_ones.pop()
            yield _Branch(depth, first, place - 1)
        if common and (not open_ones or open_ones[-1][0] < common):
            open_ones.append((common, first))


def _path(branches: Sequence[tuple[int, _Branch]], most: int, block_tokens: int) -> Iterator[Segment]:
    """Yield the segments of a prompt, which is in all these branches; the shortest branch comes first."""
    begin = 0
    for number, branch in branches:
        end = min(branch.depth * block_tokens, most)
        if end > begin:
            yield Segment(number, end - begin)
            begin = end


def _common(one: Blocks, other: Blocks) -> int:
    """Return how many first blocks two prompts have in common."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(place for place in range(most) if one[place] != other[place])


def ideal_hits(paths: Sequence[Sequence[Segment]]) -> list[int]:
    """Return how many tokens of each prompt an earlier one begins with, too.

    That is what an endless prefix cache finds that has each prompt as soon as it arrives.

    Args:
        paths: the segments of each prompt, in the order of arrival.
    """
    seen: dict[int, int] = {}
    return [_hits(path, seen) for path in paths]


def _hits(path: Sequence[Segment], seen: dict[int, int]) -> int:
    """Return the tokens of a path that were seen, and note it."""
    hits, whole = 0, True
    for each in path:
        known = seen.get(each.number, 0)
        hits += min(known, each.tokens) if whole else 0
        whole = whole and known >= each.tokens
        seen[each.number] = max(known, each.tokens)
    return hits


@dataclass(frozen=True)
class CachedRequest:
    """A request as a cache sees it: its prompt's blocks and tokens, and the tokens of its answer."""

    blocks: Blocks
    prompt: int
    answer: int


def cache_hits(requests: Sequence[CachedRequest], block_tokens: int, cache_tokens: int) -> list[int]:
    """Return how many tokens of each prompt a cache of so many tokens has, if it evicts what was used least recently.

    Each request's blocks are in the cache as soon as it arrives. Its answer and the rest of its prompt take space, too.
    """
    cache: OrderedDict[tuple[int, int], int] = OrderedDict()  # tokens of each block, the least recently used one first
    names: dict[tuple[int, int], int] = {}
    used, found = 0, []
    for place, each in enumerate(requests):
        path, name = [], -1
        for block in each.blocks:
            name = names.setdefault((name, block), len(names))
            path.append((name, 0))
        known = next((index for index, key in enumerate(path) if key not in cache), len(path))
        found.append(min(known * block_tokens, each.prompt))
        rest = max(0, each.prompt - len(path) * block_tokens) + each.answer
        sizes = {(-1, place): rest} | dict.fromkeys(reversed(path), block_tokens)
        for key, tokens in sizes.items():
            used += tokens - cache.pop(key, 0)
            cache[key] = tokens
        while used > cache_tokens and cache:
            used -= cache.popitem(last=False)[1]
    return found
