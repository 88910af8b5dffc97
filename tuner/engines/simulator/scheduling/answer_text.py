"""A model of how predictable answers are: which tokens are drafted, and which drafts the model accepts.

An answer is free text at first, and repeats itself from some token on (`Sequence.loop_at`). Small models do so when
they decode greedily, and a repetitive prompt invites it. That token is drawn from an exponential distribution with the
mean

    loop_onset_tokens × e^(8 × temperature)    (a quarter of that if the prompt is repetitive)

In free text, drafts are short, and each draft token is right with probability `free_acceptance`. In repeating text,
drafts are as long as the method allows, and each token is right with probability `loop_acceptance`. A draft counts up
to its first wrong token. `parameters.yaml` lists which of the named numbers are fitted, measured or assumed.
"""

from __future__ import annotations

import math
import random

from tuner.engines.simulator.config.speculative_config import Speculation
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.scheduling.speculative_decodes import PlannedDecodes

_ONSET_GROWTH = 8.0
_REPETITIVE_PROMPT_FACTOR = 0.25
_REPEATED_PIECES = (0.5, 0.2, 0.05, 0.02, 0.01)
"""Share of the places in free text where the last 1, 2, … 5 tokens occur earlier in the answer. Counts in English prose
of 512 words gave 0.5 to 0.6, 0.09 to 0.22, 0.02 to 0.1, 0.01 to 0.07 and 0.004 to 0.045."""
_FREE_TEXT_PROBABILITY = 0.3
"""From this `min_probability` on, suffix decoding drafts nothing in free text, where it matches single tokens only."""


class AnswerText:
    """The predictability of the answers of one run, drawn from one seed."""

    def __init__(self, speculation: Speculation, temperature: float, parameters: Parameters, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        self._mean_onset = parameters.loop_onset_tokens * math.exp(_ONSET_GROWTH * temperature)
        self._free_acceptance = parameters.free_acceptance
        self._loop_acceptance = parameters.loop_acceptance
        self._max_draft = speculation.tokens
        self._factor = speculation.factor
        self._lookup_min = speculation.lookup_min
        self._is_ngram = speculation.method == "ngram"
        self._free_draft = 1
        self._free_draft_probability = (
            _REPEATED_PIECES[0] if speculation.min_probability < _FREE_TEXT_PROBABILITY else 0.0
        )
        if self._is_ngram:
            self._free_draft = self._max_draft
            self._free_draft_probability = _REPEATED_PIECES[min(self._lookup_min, len(_REPEATED_PIECES)) - 1]

    def draw_onset(self, sequence: Sequence) -> int:
        """Return the token of the answer from which a sequence repeats itself."""
        mean = self._mean_onset * (_REPETITIVE_PROMPT_FACTOR if sequence.repetitive else 1.0)
        return int(self._random.expovariate(1.0 / mean))

    def advance(self, decodes: PlannedDecodes, clock: int, block_size: int) -> tuple[PlannedDecodes, list[Sequence]]:
        """Give each sequence its tokens of step `clock` (one, and the accepted part of its draft) and a new draft.

        Returns:
            The decodes of the next step, valid unless the members change, and the sequences with their last token.
        """
        # one loop that calls almost nothing, because a run repeats it about a hundred thousand times
        draw, free_draft, free_draft_probability = self._random.random, self._free_draft, self._free_draft_probability
        is_ngram, max_draft, factor, lookup_min = self._is_ngram, self._max_draft, self._factor, self._lookup_min
        loop_acceptance, free_acceptance = self._loop_acceptance, self._free_acceptance
        following, ended, tokens, context, produced = PlannedDecodes(), [], 0, 0, 0
        for sequence, given in zip(decodes.sequences, decodes.token_counts, strict=True):
            generated = sequence.generated
            gained, acceptance = 1, loop_acceptance if generated > sequence.loop_at else free_acceptance
            while gained < given and draw() < acceptance:
                gained += 1
            produced += gained
            sequence.segments.append((clock, gained))
            sequence.generated = generated = generated + gained
            looped, left = generated - sequence.loop_at, sequence.output - generated
            if looped <= 0:
                draft = free_draft if free_draft_probability and draw() < free_draft_probability else 0
            elif is_ngram:
                draft = max_draft if looped >= lookup_min else 0
            else:
                draft = min(max_draft, int(factor * looped))
            sequence.draft = draft
            if left <= 0:
                ended.append(sequence)
                continue
            token_count = 1 + draft if draft < left else left
            length = sequence.prompt + generated
            context += length
            tokens += token_count
            if length - 1 + token_count > sequence.blocks * block_size:
                following.growing.append((sequence, -(-(length - 1 + token_count) // block_size)))
            following.sequences.append(sequence)
            following.token_counts.append(token_count)
        decodes.produced, following.tokens, following.context = produced, tokens, context
        return following, ended
