"""The recipes that a study measures before its search: their order, and recipes combined.

With a prior, recipes are ordered by their predictions, and one that is predicted to be no better than the defaults is
left out. The best one comes together with others, as many as the prediction gains by; each of the others follows in
the same way. Without a prior, the recipes keep the order of their files, and those that won are then measured together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter

from records.measured import reference_of
from records.trials import Config, TrialKind, TrialRecord
from search_spaces import ResolvedSpace, SpaceError
from tuner.sampler.prior import Prediction, Prior
from tuner.scoring.goals import Goals, score
from tuner.study.specification.spec import Enqueued, StudySpec

_log = logging.getLogger(__name__)

MOST_RECIPES = 6
LEAST_TRIALS = 5
"""A study measures one recipe for each `LEAST_TRIALS` trials, at least one and at most `MOST_RECIPES`."""

LEAST_GAIN = 1.01
"""A recipe is predicted to be better only with this factor on the score."""
LEAST_SCORE = 0.5
"""A recipe with a lower predicted score, relative to the defaults, is left out whatever SLOs it meets."""

RECIPE = "recipe: "
AND = " + "
"""Labels of trials are `recipe: NAME` and `recipe: NAME + NAME`."""

Rank = tuple[float, float]
"""Minus the sum of an SLO's violations, and the score relative to the defaults. Larger is better."""


def most_recipes(trials: int) -> int:
    """Return how many recipes a study of so many trials measures at most."""
    return min(MOST_RECIPES, max(trials // LEAST_TRIALS, 1))


def order_recipes(spec: StudySpec, prior: Prior | None, most: int) -> list[Enqueued]:
    """Return the recipes that a study measures, at most `most`; without a prior, of three their combination is one."""
    unpredicted = list(spec.recipes[: most - (most > 2)])
    reference = prior({}) if prior is not None and unpredicted else None
    if prior is None or reference is None or reference.values is None:
        return unpredicted
    return list(islice(_Predicted(spec.space, spec.goals, prior, reference).order(spec.recipes), most))


class _Predicted:
    """Orders recipes by a prior."""

    def __init__(self, space: ResolvedSpace, goals: Goals, prior: Prior, reference: Prediction) -> None:
        self._space, self._goals, self._prior, self._reference = space, goals, prior, reference
        self._known: dict[frozenset[tuple[str, object]], Prediction | None] = {}

    def order(self, recipes: Sequence[Enqueued]) -> Iterator[Enqueued]:
        """Yield the recipes in the order of their trials.

        First the combination that the best one leads to, then those without a prediction, then the combinations that
        the others lead to. Measured one after another, the recipes of the first one would cost a trial each.
        """
        own = self._rank({})
        assert own is not None
        ranked = [(rank, recipe) for recipe in recipes if (rank := self._rank(recipe.config)) is not None]
        better = sorted((pair for pair in ranked if _beats(pair[0], own)), key=itemgetter(0), reverse=True)
        yielded: list[Config] = []
        for place, start in enumerate(better):
            together = self._together(start, recipes)
            if together.config not in yielded:
                yielded.append(together.config)
                yield together
            if place == 0:
                yield from self._unpredicted(recipes)
        if not better:
            yield from self._unpredicted(recipes)

    def _unpredicted(self, recipes: Sequence[Enqueued]) -> list[Enqueued]:
        return [recipe for recipe in recipes if self._predict(recipe.config) is None]

    def _together(self, start: tuple[Rank, Enqueued], recipes: Sequence[Enqueued]) -> Enqueued:
        """Return a recipe together with the best other one, and so on while the prediction gains."""
        rank, best = start
        while True:
            together = [each for other in recipes if (each := combined(self._space, best, other)) is not None]
            ranks = [(found, each) for each in together if (found := self._rank(each.config)) is not None]
            following = max((pair for pair in ranks if _beats(pair[0], rank)), key=itemgetter(0), default=None)
            if following is None:
                return best
            rank, best = following

    def _predict(self, config: Config) -> Prediction | None:
        key = frozenset(config.items())
        if key not in self._known:
            self._known[key] = self._prior(config)
        return self._known[key]

    def _rank(self, config: Config) -> Rank | None:
        """Return the rank of a configuration; None without a prediction, or if it fails or loses most of the score."""
        prediction = self._predict(config)
        if prediction is None or prediction.values is None or self._reference.values is None:
            return None
        names = [objective.metric for objective in self._goals.objectives]
        ours, theirs = (dict(zip(names, each.values or (), strict=True)) for each in (prediction, self._reference))
        found = score(ours, theirs, self._goals.objectives)
        _log.debug("%s: predicted score %s, constraints %s", dict(config), found, dict(prediction.constraints))
        if found is None or found < LEAST_SCORE:
            return None
        return _violation(prediction.constraints), found


def _beats(one: Rank, other: Rank) -> bool:
    """Return whether a rank is better: by the score with `LEAST_GAIN`, or by SLOs that it violates less.

    One that still violates an SLO must not lose score for it.
    """
    if one[0] == other[0]:
        return one[1] >= LEAST_GAIN * other[1]
    return one[0] > other[0] and (one[0] == 0.0 or one[1] >= other[1])


def combined(space: ResolvedSpace, one: Enqueued, other: Enqueued) -> Enqueued | None:
    """Return two recipes together; None if they contradict each other, break a rule, or one contains the other."""
    together = {**one.config, **other.config}
    contradicts = any(together[name] != value for name, value in one.config.items())
    if contradicts or together in (dict(one.config), dict(other.config)):
        return None
    try:
        config = space.complete(together)
    except SpaceError:
        return None
    return None if space.violations(config) else Enqueued(f"{one.label}{AND}{other.label}", config)


def combined_winners(space: ResolvedSpace, records: Sequence[TrialRecord]) -> Enqueued | None:
    """Return the measured recipes that are better than the reference, together, the best first; None without two."""
    reference = reference_of(records)
    own = (0.0, 1.0) if reference is None else _measured(reference)
    ranked = [
        (rank, Enqueued((record.label or "").removeprefix(RECIPE), record.config))
        for record in records
        if record.kind is TrialKind.RECIPE and (rank := _measured(record)) is not None
        if own is None or _beats(rank, own)
    ]
    ranked.sort(key=itemgetter(0), reverse=True)
    together: list[Enqueued] = [recipe for _, recipe in ranked[:1]]
    for _, recipe in ranked[1:]:
        found = combined(space, together[-1], recipe)
        together += [] if found is None else [found]
    return together[-1] if len(together) > 1 else None


def _measured(record: TrialRecord) -> Rank | None:
    """Return the rank of a finished trial; None for one that failed or loses most of the score."""
    verdict = record.verdict
    if verdict is None or verdict.score is None or verdict.score < LEAST_SCORE:
        return None
    return _violation(verdict.constraints), verdict.score


def _violation(constraints: Mapping[str, float]) -> float:
    """Return minus the sum of the violations; 0 if every SLO is met."""
    return -sum(max(0.0, value) for value in constraints.values())
