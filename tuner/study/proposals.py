"""The source of the search's trials: interrupted ones, the defaults, enqueued ones, recipes, then the sampler's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from records.measured import reference_of
from records.trials import DEFAULTS, Config, FailureKind, JsonScalar, TrialKind
from storage.store import Store
from tuner.study.convergence import converged
from tuner.study.learned_prior import LearnedPrior
from tuner.study.optuna_study import OptunaStudy, RunningTrial
from tuner.study.protocols import StudyObserver, WorkItem
from tuner.study.recipes import RECIPE, combined_winners, most_recipes, order_recipes
from tuner.study.specification.spec import Budget, Enqueued, StudySpec

_MAX_REDRAWS = 200
"""Proposals in a row that may break a rule or be known before the space counts as exhausted."""

_AFTER_SEARCH = (TrialKind.REDUCED, TrialKind.CAPACITY)
"""Kinds of trials that do not belong to the search."""

_DUPLICATES_BEFORE_ENUMERATION = 10
_ENUMERABLE = 5000

Rendering = tuple[str | None, str | None, tuple[str, ...], tuple[tuple[str, str], ...]]


class Proposals:
    """The trials of the search; see `TrialSource`."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        optuna_study: OptunaStudy,
        budget: Budget,
        observer: StudyObserver,
        predictions: LearnedPrior,
    ) -> None:
        self._spec = spec
        self._space = spec.space
        self._store = store
        self._optuna_study = optuna_study
        self._observer = observer
        self._predictions = predictions
        self._trials, self._min_gain = budget.trials, budget.min_gain
        self._seen: set[Rendering] = set()
        self._count = 0
        self.space_exhausted = False
        """True if the space had fewer configurations than the budget."""
        self.converged: int | None = None
        """Trials in a row that brought too little and ended the search; see `tuner.study.convergence`."""
        self._queue: deque[WorkItem] = deque()
        self._named: deque[WorkItem] = deque()
        self._grid: Iterator[dict[str, JsonScalar]] | None = None
        self._recipes: Future[list[Enqueued]] | None = None
        self._leaves_place = self._combines_recipes = self._is_outdated = False
        self._was_corrected = spec.learned is not None
        self._recover()
        self._plan()
        self._plan_recipes()

    def _recover(self) -> None:
        """Report stored outcomes that Optuna lacks, and queue the trials that were running when the study stopped."""
        records = {r.number: r for r in self._store.trials(self._spec.name) if r.round == 0}
        for record in records.values():
            self._seen.add(self._rendering(record.config))
        self._count = sum(record.kind not in _AFTER_SEARCH for record in records.values())
        for number in self._optuna_study.running():
            known = records.get(number)
            if known is None:
                self._optuna_study.drop(number, "the study was stopped before this trial began")
            elif known.outcome is not None:
                most = self._spec.goals.gain_at_most(known.outcome)
                self._optuna_study.tell(number, known.verdict, known.outcome.failure, most)
            else:
                self._queue.append(WorkItem(number, 0, known.kind, known.config, known.label, known=True))

    def _plan(self) -> None:
        """Queue the defaults and the enqueued configurations that were not tried."""
        kinds = {r.kind for r in self._store.trials(self._spec.name)}
        labels = {r.label for r in self._store.trials(self._spec.name)}
        if self._spec.confirmation.baseline_repeats and TrialKind.BASELINE not in kinds:
            self._named.append(WorkItem(-1, 0, TrialKind.BASELINE, {}, DEFAULTS))
        baseline = self._spec.baseline
        if baseline is not None and TrialKind.CURRENT not in kinds:
            self._named.append(WorkItem(-1, 0, TrialKind.CURRENT, baseline.config, baseline.label))
        for enqueued in self._spec.enqueue:
            if enqueued.label not in labels:
                self._named.append(WorkItem(-1, 0, TrialKind.ENQUEUED, enqueued.config, enqueued.label))
        cardinality = self._space.cardinality()
        if cardinality is not None and cardinality <= self._trials:
            self._grid = self._space.configurations()

    def learn(self) -> None:
        """Order recipes and suggest configurations by what is known of the hosts by now."""
        self._reorder_recipes()
        self._renew_sampler()

    def _reorder_recipes(self) -> None:
        """Order the recipes by what is known of the hosts by now."""
        if not self._predictions.update():
            return
        self._is_outdated = True
        self._named = deque(item for item in self._named if item.kind is not TrialKind.RECIPE)
        self._plan_recipes()
        if self._recipes is not None:
            wait([self._recipes])  # the next trial may need it at once, and the sampler's predictions would delay it

    def _renew_sampler(self) -> None:
        """Begin the sampler anew if the predictions have changed; it computes the new ones beside the next trial."""
        if self._is_outdated:
            self._optuna_study.use_prior(self._predictions.prior, self._predictions.spread)
            self._is_outdated, self._was_corrected = False, True

    def _plan_recipes(self) -> None:
        """Start to order the recipes, in a thread beside the first trial; none once the sampler has proposed one."""
        kinds = {record.kind for record in self._store.trials(self._spec.name)}
        if self._grid is not None or TrialKind.SEARCH in kinds:
            return
        pool, prior = ThreadPoolExecutor(1), self._predictions.prior
        self._recipes = pool.submit(order_recipes, self._spec, prior, most_recipes(self._trials))
        pool.shutdown(wait=False)
        self._leaves_place = prior is None

    def _queue_recipes(self) -> None:
        """Queue the ordered recipes that were not tried."""
        assert self._recipes is not None
        recipes, self._recipes = self._recipes.result(), None
        records = self._store.trials(self._spec.name)
        labels, tried = {record.label for record in records}, sum(r.kind is TrialKind.RECIPE for r in records)
        left = [recipe for recipe in recipes if f"{RECIPE}{recipe.label}" not in labels]
        for recipe in left[: most_recipes(self._trials) - tried]:
            self._named.append(WorkItem(-1, 0, TrialKind.RECIPE, recipe.config, f"{RECIPE}{recipe.label}"))
        self._combines_recipes = self._leaves_place and 1 < len(recipes) < most_recipes(self._trials)

    def _combined_recipes(self) -> WorkItem | None:
        """Return the recipes that won, together, once all have ended; None before, and without two of them."""
        records = [record for record in self._store.trials(self._spec.name) if not record.round]
        if any(record.outcome is None for record in records if record.kind is TrialKind.RECIPE):
            return None
        self._combines_recipes = False
        stack = combined_winners(self._space, records)
        if stack is None or self._rendering(stack.config) in self._seen:
            return None
        return WorkItem(-1, 0, TrialKind.RECIPE, stack.config, f"{RECIPE}{stack.label}")

    def next(self, slot: int) -> WorkItem | None:
        """Return the next trial for any slot.

        A suggestion uses the predictions that were computed beside the trial before it. The search waits for the first
        correction only.
        """
        if self._queue:
            return self._queue.popleft()
        if self._count >= self._trials:
            return None
        self._reorder_recipes()
        item = self._next_named()
        if item is not None or not self._was_corrected:
            self._renew_sampler()
        if item is not None:
            hints = self._space.defaults_beside(item.config)
            asked = self._optuna_study.ask_fixed(item.config, hints)
            return self._accept(asked, item.kind, item.label)
        if self.converged is None and self._grid is None:
            self.converged = self._fruitless()
        if self.converged is not None:
            return None
        asked_or_none = self._from_grid() if self._grid is not None else self._from_sampler()
        if asked_or_none is None:
            self.space_exhausted = True
            return None
        self._renew_sampler()
        return self._accept(asked_or_none, TrialKind.SEARCH, None)

    def _fruitless(self) -> int | None:
        """Return how many trials of the search in a row have brought too little; None if it should go on."""
        records = self._store.trials(self._spec.name)
        reference = reference_of(records)
        if reference is None:
            return None
        ended = [r for r in records if not r.round and r.kind not in _AFTER_SEARCH and r.outcome is not None]
        scores = [r.score if r.state == "ok" else None for r in ended]
        return converged(scores, self._min_gain, reference_meets=reference.state == "ok")

    def _next_named(self) -> WorkItem | None:
        """Return the next trial whose configuration is given.

        A recipe is left out that was given as well, or that contains one with which the engine crashed.
        """
        if self._recipes is not None and not self._named:
            self._queue_recipes()
        while self._named:
            item = self._named.popleft()
            if item.kind is not TrialKind.RECIPE:
                return item
            if self._rendering(item.config) not in self._seen and not self._contains_a_crash(item.config):
                return item
        return self._combined_recipes() if self._combines_recipes else None

    def _contains_a_crash(self, config: Config) -> bool:
        """Return whether a recipe crashed of which this configuration has every flag."""
        return any(
            config.items() >= record.config.items()
            for record in self._store.trials(self._spec.name)
            if record.kind is TrialKind.RECIPE
            and record.failure is not None
            and record.failure.kind is FailureKind.ENGINE_CRASH
        )

    def exhausted(self) -> bool:
        spent = self.space_exhausted or self.converged is not None or self._count >= self._trials
        return not self._queue and spent

    def give_back(self, item: WorkItem) -> None:
        self._queue.append(item)

    def _accept(self, asked: RunningTrial, kind: TrialKind, label: str | None) -> WorkItem:
        self._seen.add(self._rendering(asked.config))
        self._count += 1
        return WorkItem(asked.number, 0, kind, asked.config, label)

    def _rendering(self, config: Config) -> Rendering:
        rendered = self._space.render(config)
        return rendered.engine, rendered.model, rendered.argv, tuple(sorted(rendered.environment.items()))

    def _from_grid(self) -> RunningTrial | None:
        """Return the next configuration of a space that is smaller than the budget."""
        assert self._grid is not None
        for config in self._grid:
            if self._rendering(config) in self._seen:
                continue
            problems = self._space.violations(config)
            if not problems:
                return self._optuna_study.ask_fixed(config, {})
            self._seen.add(self._rendering(config))
            self._observer.note(f"ruled out without a launch: {problems[0].message}")
        return None

    def _from_sampler(self) -> RunningTrial | None:
        """Return the next proposal of the sampler that is new and breaks no rule; None after `_MAX_REDRAWS` others."""
        duplicates = 0
        for _ in range(_MAX_REDRAWS):
            asked = self._optuna_study.ask()
            problems = self._space.violations(asked.config)
            if problems:
                self._optuna_study.rule_out(asked.number, problems[0].message)
                continue
            if self._rendering(asked.config) not in self._seen:
                return asked
            self._optuna_study.drop(asked.number, "the same server as an earlier trial")
            duplicates += 1
            if duplicates >= _DUPLICATES_BEFORE_ENUMERATION:
                return self._unseen()
        return None

    def _unseen(self) -> RunningTrial | None:
        """Return the first configuration that was not tried; None without one, or if the space is not enumerable."""
        cardinality = self._space.cardinality()
        if cardinality is None or cardinality > _ENUMERABLE:
            return None
        for config in self._space.configurations():
            if self._rendering(config) not in self._seen and not self._space.violations(config):
                return self._optuna_study.ask_fixed(config, {})
        return None
