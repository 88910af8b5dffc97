"""How much of a text a prompt lookup predicts: `python -m benchmarks.loadgen.lookup --tokenizer FOLDER`.

For each token, the last 4, else 3, else 2 tokens before it are looked up in the text so far. The token after their
first occurrence is the prediction, as in vLLM's ngram proposer (`v1/spec_decode/ngram_proposer.py`), which takes the
longest n-gram and its earliest place. The share of right predictions bounds what ngram speculation can draft in an
answer that continues the text as it began.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import documented_parser
from benchmarks.text_table import number_text, print_table
from tuner.engines.server.prompts.prompts import make_prompts
from tuner.engines.server.token_prompts import LibraryTokenizer, find_tokenizer

LONGEST, SHORTEST = 4, 2
"""Tokens of the n-grams that are looked up."""


@dataclass(frozen=True)
class Lookup:
    """Shares of a text's tokens: those for which there is a prediction, and those for which it is right."""

    predicted: float
    right: float


def look_up(tokens: Sequence[int], longest: int = LONGEST, shortest: int = SHORTEST) -> Lookup:
    """Return the shares of a text's tokens, each predicted from the tokens before it.

    Args:
        tokens: the text.
        longest, shortest: lengths of the n-grams in tokens.
    """
    first: dict[tuple[int, ...], int] = {}
    predicted = right = 0
    for place, token in enumerate(tokens):
        grams = [tuple(tokens[place - n : place]) for n in range(longest, shortest - 1, -1) if n <= place]
        guess = next((first[gram] for gram in grams if gram in first), None)
        predicted += guess is not None
        right += guess == token
        for gram in grams:
            first.setdefault(gram, token)
    return Lookup(predicted / len(tokens), right / len(tokens)) if tokens else Lookup(0.0, 0.0)


KINDS = ("random", "repetitive", "chat", "code")
DOCUMENT_SHARE = 2 / 3
"""Share of a prompt that is a document, for the texts that have one."""


def main() -> None:
    """Print the shares for each kind of text, and for the files that the command line names."""
    parser = documented_parser(__doc__)
    parser.add_argument("--tokenizer", required=True, help="a folder with tokenizer.json, or a hub name")
    parser.add_argument("--tokens", type=int, action="append", help="of a text; may be repeated [512, 1024]")
    parser.add_argument("--prompts", type=int, default=50, help="texts of each kind [50]")
    parser.add_argument("--file", type=Path, action="append", default=[], help="a text to compare with, cut in pieces")
    arguments = parser.parse_args()
    tokenizer = find_tokenizer(arguments.tokenizer)
    for tokens in arguments.tokens or (512, 1024):
        requests = {kind: [_request(kind, tokens, seed) for seed in range(arguments.prompts)] for kind in KINDS}
        texts = {
            kind: tokenizer([text for text, _, _ in make_prompts({"requests": made}, tokenizer)])["input_ids"]
            for kind, made in requests.items()
        }
        texts["the files"] = [piece for file in arguments.file for piece in _pieces(tokenizer, file, tokens)]
        print_table(
            f"Share of the tokens of a text of {tokens} tokens for which a lookup of {LONGEST} to {SHORTEST} tokens "
            "has a prediction, and for which it is right: mean over texts, and standard deviation of the second.",
            ("text", "texts", "predicted", "right", "sd"),
            [_row(kind, [look_up(each) for each in found]) for kind, found in texts.items() if found],
        )


def _request(kind: str, tokens: int, seed: int) -> dict[str, Any]:
    """Return a request as `tuner/engines/server/prompts/prompts.py` reads it: a document, and a part of its own."""
    document = round(DOCUMENT_SHARE * tokens)
    shared = [(f"{kind}/{seed}", document, kind)] if kind in ("chat", "code") else []
    own = tokens - (document if shared else 0)
    return {"shared": shared, "tokens": own, "seed": seed, "text": kind}


def _pieces(tokenizer: LibraryTokenizer, file: Path, tokens: int) -> list[list[int]]:
    found = tokenizer([file.read_text(encoding="utf-8", errors="replace")])["input_ids"][0]
    return [found[begin : begin + tokens] for begin in range(0, len(found) - tokens + 1, tokens)]


def _row(kind: str, lookups: Sequence[Lookup]) -> tuple[str, ...]:
    right = [each.right for each in lookups]
    spread = statistics.stdev(right) if len(right) > 1 else None
    predicted = statistics.mean(each.predicted for each in lookups)
    return (
        kind,
        str(len(right)),
        number_text(predicted, 3),
        number_text(statistics.mean(right), 3),
        number_text(spread, 3),
    )


if __name__ == "__main__":
    main()
