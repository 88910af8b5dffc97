"""How predictable answers are."""

from __future__ import annotations

import math
import random

from tuner.engines.simulator.config.speculative_config import Speculation
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.scheduling.speculative_decodes import PlannedDecodes

_ONSET_GROWTH = 8.0
_REPETITIVE = 0.25
"""Share of the usual onset after which the answer to a repetitive prompt repeats itself."""
_SEEN_BEFORE = (0.5, 0.2, 0.05, 0.02, 0.01)
"""Share of places in free text at which the last 1, 2, … 5 tokens stood somewhere before in the answer. Counted in
English prose of 512 words: 0.5 to 0.6, 0.09 to 0.22, 0.02 to 0.1, 0.01 to 0.07, 0.004 to 0.045."""
_RARE = 0.3
"""Frequency above which suffix decoding drafts nothing in free text: its matches there are of single tokens."""


class AnswerText:
    """How predictable answers are, drawn from one seed."""

    def __init__(self, speculation: Speculation, temperature: float, known: Parameters, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        self._onset = known.loop_onset_tokens * math.exp(_ONSET_GROWTH * temperature)
        self._free = known.free_acceptance
        self._loop = known.loop_acceptance
        self._most, self._factor, self._from = speculation.tokens, speculation.factor, speculation.lookup_min
        self._ngram = speculation.method == "ngram"
        self._guess, self._seen = 1, _SEEN_BEFORE[0] if speculation.min_probability < _RARE else 0.0
        if self._ngram:
            self._guess, self._seen = self._most, _SEEN_BEFORE[min(self._from, len(_SEEN_BEFORE)) - 1]

    def onset(self, sequence: Sequence) -> int:
        """Return the token of its answer from which a sequence repeats itself."""
        mean = self._onset * (_REPETITIVE if sequence.repetitive else 1.0)
        return int(self._random.expovariate(1.0 / mean))

    def advance(self, decodes: PlannedDecodes, clock: int, size: int) -> tuple[PlannedDecodes, list[Sequence]]:
        """Give sequences what step `clock` brings: a token, and as much of the draft as the model would have said.

        What they ask for next is found in the same loop and without calls: a run takes a hundred thousand turns of it.

        Returns:
            The next step's decodes, should nothing happen to them, and the sequences that have their last token.
        """
        draw, guess, seen, ngram = self._random.random, self._guess, self._seen, self._ngram
        most, factor, least, loop, free = self._most, self._factor, self._from, self._loop, self._free
        following, ended = PlannedDecodes(), []
        tokens = context = produced = 0
        for sequence, given in zip(decodes.sequences, decodes.wants, strict=True):
            generated = sequence.generated
            gained, chance = 1, loop if generated > sequence.loop_at else free
            while gained < given and draw() < chance:
                gained += 1
            produced += gained
            sequence.segments.append((clock, gained))
            sequence.generated = generated = generated + gained
            since, left = generated - sequence.loop_at, sequence.output - generated
            if since <= 0:
                draft = guess if seen and draw() < seen else 0
            elif ngram:
                draft = most if since >= least else 0
            else:
                draft = min(most, int(factor * since))
            sequence.draft = draft
            if left <= 0:
                ended.append(sequence)
                continue
            wanted = 1 + draft if draft < left else left
            length = sequence.prompt + generated
            context += length
            tokens += wanted
            if length - 1 + wanted > sequence.blocks * size:
                following.growing.append((sequence, -(-(length - 1 + wanted) // size)))
            following.sequences.append(sequence)
            following.wants.append(wanted)
        decodes.produced, following.tokens, following.context = produced, tokens, context
        return following, ended
