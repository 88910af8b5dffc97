"""The contest of a study's finals: finalists, reference and smaller forms, as `scoring.sequential` compares them.

Candidates are the finalists, and forms of them with fewer flags: flags are left out one after another, in the order of
the sampler's model (`tuner.sampler.flag_effects`), and each flag of the configuration that would be exported is left
out alone. A form is measured once with the search's workload before its first round, which shows whether it runs and
meets the SLOs. Its finalist is measured again beside the first form: the finalist's trial in the search was the best of
many noisy ones, and a form would look worse than it. `scoring.sequential.most_measurements` limits all rounds and these
single trials together, and `FORMS_SHARE` the single trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from records.measured import REFERENCES
from records.trials import Config, TrialKind, TrialRecord
from storage.store import Store
from tuner.sampler.surrogate import single_blas_thread
from tuner.scoring.compare import LEAST_DEVIATION
from tuner.scoring.goals import log_scores
from tuner.scoring.rounds import StudyRounds, fault_of
from tuner.scoring.sequential import (
    LEAST_ARMS,
    PRECISION,
    SPREAD_FACTOR,
    Arms,
    Matrix,
    Plan,
    Vector,
    looks,
    most_measurements,
    plan,
    pooled,
)
from tuner.study.conclusion import chosen_by_engine, defaults_of
from tuner.study.confirmation import rounds_after
from tuner.study.decide import Preference
from tuner.study.optuna_study import OptunaStudy
from tuner.study.reduction import (
    GivenConfiguration,
    measured_as,
    order_of_reset,
    reductions,
    without_flags,
    without_known_default,
)
from tuner.study.specification.spec import StudySpec

_UNKNOWN_SPREAD = 0.03
"""Standard deviation of the effect of a flag whose default is unknown."""

_HOPELESS = 0.1
"""Probability of a gain beyond the noise in all rounds below which the reference is kept at once."""

_SURE_SHARE = 0.5
"""Share of a winner's gain, in logarithms, above which the interval must lie before the rounds may end: two rounds tell
a large gain from none, and hardly how large it is."""

FEWEST_ARMS = 2
"""Configurations without which a round compares nothing: the reference and another one."""

FORMS_SHARE = 1 / 3
"""Share of the measurements after which no further form is tried, so that the rounds can still tell a gain."""


@dataclass
class _Candidate:
    """A configuration that may be exported; `record` is the trial of its server, None while it is not known.

    `origin` is the position of the finalist that it is a form of; `fails` is whether its trial failed or missed an SLO.
    """

    given: GivenConfiguration
    origin: int
    record: TrialRecord | None = None
    is_out: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Step:
    """What the contest measures next: forms, once each, or else `rounds` rounds of a group, the reference first."""

    forms: tuple[GivenConfiguration, ...] = ()
    group: tuple[TrialRecord, ...] = ()
    rounds: int = 0


def _again_label(finalist: TrialRecord) -> str:
    return f"#{finalist.number} again"


class Contest:
    """Plans the rounds of one set of finalists, from the stored trials, the number of rounds and the time left."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        optuna_study: OptunaStudy,
        finalists: Sequence[TrialRecord],
        label: str,
        room: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Take the finalists, the reference first if it works. `room`: how many measurements the time limit allows."""
        self._spec, self._store, self._optuna_study, self.label = spec, store, optuna_study, label
        self._room = room
        self._finalists, self._looks = finalists, looks(spec.confirmation.confirm_rounds)
        self._has_reference = finalists[0].kind in REFERENCES
        self._candidates: list[_Candidate] = []
        self._keys: set[str] = set()
        self._trials: list[TrialRecord] = []
        self._ended: dict[int, TrialRecord] = {}
        self._read_trials()
        for place, record in enumerate(finalists):
            self._add(GivenConfiguration(record.name, record.config, {}), place, record)
        for place in range(self._has_reference, len(finalists)):
            for form in self._chain(finalists[place]):
                self._add(form, place)
        self._prior: tuple[Vector, Matrix, float] | None = None

    def step(self, done: int) -> Step | None:
        """Return what is measured after `done` rounds, up to those after which the contest may end; None if it ends."""
        self._read_trials()
        found = self._plan(done)
        if found is None or done == self._looks[-1]:
            return None
        if done and found.settled and self._is_decided(found, done):
            return None
        following = self._following(done)
        arms = found.arms[: self._affordable(done, found, following - done)]
        if len(arms) < FEWEST_ARMS:
            return None
        candidates = [self._candidates[place] for place in arms]
        forms = tuple(each.given for each in candidates if each.record is None)
        if forms:
            return Step((*self._again(arms), *forms))
        return Step((), tuple(each.record for each in candidates if each.record is not None), following - done)

    def group(self, done: int) -> list[TrialRecord]:
        """Return what the rounds measured: the reference, finalists, smaller forms."""
        self._read_trials()
        measured = {record.number for record in self._rounds(done) if record.label == self.label}
        records = [each.record for each in self._candidates if each.record is not None]
        return [record for record in records if record.number in measured]

    def preference(self, done: int) -> Preference:
        """Return which of the measured configurations is preferred after some rounds."""
        self._read_trials()
        found = self._plan(done)
        if found is None:
            return Preference(looks=len(self._looks))
        known = {each.record.number: place for place, each in enumerate(self._candidates) if each.record is not None}
        losses = {number: float(found.losses[place]) for number, place in known.items()}
        flags = {number: self._flags(self._candidates[place]) for number, place in known.items()}
        as_good = frozenset(number for number, place in known.items() if found.as_good[place])
        return Preference(flags, losses, as_good, len(self._looks))

    def _add(self, given: GivenConfiguration, origin: int, record: TrialRecord | None = None) -> None:
        """Add a candidate, unless one has the same server command."""
        key = self._key(given.config)
        if key not in self._keys:
            candidate = _Candidate(given, origin, record)
            self._keys.add(key)
            self._candidates.append(candidate)
            self._resolve(candidate, [*self._ended.values()])
            self._prior = None

    def _key(self, config: Config) -> str:
        return str(self._spec.space.render(config))

    def _chain(self, record: TrialRecord) -> list[GivenConfiguration]:
        """Return a finalist without one flag, two flags and so on."""
        space, trials = self._spec.space, self._trials
        order = self._optuna_study.eliminate(
            record.number, defaults_of(trials, self._finalists[0], record), self._reduced()
        )
        chosen = chosen_by_engine(trials)
        redundant = [name for name in space.changed(record.config) if record.config[name] == chosen.get(name)]
        names = order_of_reset(space, record.config, order, redundant)
        forms = (without_flags(space, record, names[:count]) for count in range(max(1, len(redundant)), len(names) + 1))
        return [form for form in forms if form is not None]

    def _plan(self, done: int) -> Plan | None:
        """Return what the rounds say, with each flag of the target left out alone among the candidates."""
        while True:
            rounds = self._rounds(done)
            arms, cells, noise = self._arms(rounds, done), self._cells(rounds), self._noise(rounds)
            with single_blas_thread():
                found = plan(arms, cells, noise)
            if found is None:
                return None
            target, count = self._candidates[found.target], len(self._candidates)
            for name, config, _ in reductions(self._spec.space, target.given.config, []):
                hints = self._spec.space.defaults_beside(config)
                left = self._flags(target) - 1
                flags = "1 flag" if left == 1 else f"{left} flags"
                label = f"#{self._finalists[target.origin].number} with {flags}, without {name}"
                self._add(GivenConfiguration(label, config, hints), target.origin)
            if len(self._candidates) == count:
                return found

    def _arms(self, rounds: Sequence[TrialRecord], done: int) -> Arms:
        mean, covariance, noise = self._beliefs()
        faulty = {record.number for record in rounds if fault_of(self._spec.goals, record) is not None}
        tries = self._tries_forms(done)
        alive = [
            not each.is_out and (tries if each.record is None else each.record.number not in faulty)
            for each in self._candidates
        ]
        finalists = range(self._has_reference, len(self._finalists))
        anchors = (place for place in range(len(self._finalists)) if alive[place])
        able = [is_alive and not (self._has_reference and place == 0) for place, is_alive in enumerate(alive)]
        return Arms(
            flags=np.array([self._flags(each) for each in self._candidates]),
            origins=np.array([each.origin for each in self._candidates]),
            mean=mean,
            covariance=covariance,
            noise=noise,
            alive=np.array(able),
            feasible=self._feasible(faulty),
            known=np.isin(np.arange(len(able)), finalists),
            reference=next(anchors, None),
            searched=self._searched(),
        )

    def _feasible(self, faulty: Collection[int]) -> Vector:
        """Return the probability that each candidate runs and meets the SLOs, by the forms that did not.

        A failed form lacks a flag that is needed. It is one of those that the finalist and its successful forms have in
        common and the failed form lacks. A form with a share of these has it with that probability.
        """
        feasible = np.ones(len(self._candidates))
        flags = [set(self._spec.space.changed(each.given.config)) for each in self._candidates]
        bad = [each.fails or (each.record is not None and each.record.number in faulty) for each in self._candidates]
        for origin in {each.origin for each in self._candidates}:
            family = [place for place, each in enumerate(self._candidates) if each.origin == origin]
            works = [flags[place] for place in family if self._candidates[place].record is not None and not bad[place]]
            for suspects in [set.intersection(*works) - flags[place] for place in family if bad[place] and works]:
                for place in family:
                    if self._candidates[place].record is None and suspects:
                        feasible[place] = min(feasible[place], len(suspects & flags[place]) / len(suspects))
        return feasible

    def _again(self, arms: Sequence[int]) -> list[GivenConfiguration]:
        """Return the finalists of the arms that have no trial yet, without those that were measured again already."""
        origins = {self._candidates[place].origin for place in arms if self._candidates[place].record is None}
        wholes = [self._finalists[origin] for origin in sorted(origins)]
        known = {record.label for record in self._trials}
        return [
            GivenConfiguration(_again_label(whole), whole.config, {})
            for whole in wholes
            if _again_label(whole) not in known
        ]

    def _searched(self) -> dict[int, float]:
        """Return the logarithm of the score of each single trial, by the position of its form or finalist."""
        again = {_again_label(whole): place for place, whole in enumerate(self._finalists)}
        places = {each.record.number: place for place, each in enumerate(self._candidates) if each.record is not None}
        found: dict[int, float] = {}
        for trial in self._trials:
            place = again.get(trial.label or "", places.get(trial.number))
            score = trial.verdict.score if trial.kind is TrialKind.REDUCED and trial.verdict is not None else None
            found |= {place: math.log(score)} if place is not None and score else {}
        return found

    def _flags(self, candidate: _Candidate) -> int:
        return len(self._spec.space.changed(candidate.given.config))

    def _beliefs(self) -> tuple[Vector, Matrix, float]:
        """Return the sampler's posterior of the candidates' scores after the search.

        Of a flag whose default is unknown the model has hardly any data without it: a form without the flag is taken
        for one with it, with a standard deviation of `_UNKNOWN_SPREAD`.
        """
        if self._prior is None:
            lacking = [self._lacking(each) for each in self._candidates]
            configs = [{**each.given.config, **more} for each, more in zip(self._candidates, lacking, strict=True)]
            mean, covariance, noise = self._optuna_study.joint_scores(configs, self._reduced())
            names = [each.name for each in self._spec.space.parameters]
            unknown = np.array([[name in more for name in names] for more in lacking], dtype=float)
            covariance = covariance + (_UNKNOWN_SPREAD / SPREAD_FACTOR) ** 2 * (unknown @ unknown.T)
            self._prior = mean, covariance, noise
        return self._prior

    def _lacking(self, candidate: _Candidate) -> Config:
        """Return the flags with unknown defaults that a form lacks, with the values of its finalist."""
        whole = self._finalists[candidate.origin].config
        return {
            name: whole[name]
            for name in without_known_default(self._spec.space, whole)
            if name not in candidate.given.config
        }

    def _cells(self, rounds: Sequence[TrialRecord]) -> list[dict[int, float]]:
        """Return the logarithm of the score of each candidate in each round, by its position."""
        places = {each.record.number: place for place, each in enumerate(self._candidates) if each.record is not None}
        used = [(r, r.outcome) for r in rounds if r.number in places and r.outcome is not None and r.outcome.succeeded]
        logs = log_scores([self._spec.goals.metrics(outcome) for _, outcome in used], self._spec.goals.scored)
        cells: dict[int, dict[int, float]] = {}
        for (record, _), log in zip(used, logs, strict=True):
            cells.setdefault(record.round, {})[places[record.number]] = log
        return [each for each in cells.values() if len(each) > 1]

    def _noise(self, rounds: Sequence[TrialRecord]) -> float:
        of_rounds, of_search = StudyRounds(self._spec.goals, rounds).score_noise, self._beliefs()[2]
        return of_search if of_rounds is None else pooled(of_rounds.deviation, of_rounds.degrees, of_search)

    def _is_decided(self, found: Plan, done: int) -> bool:
        """Return whether the target's gain over the reference is known, or will hardly ever be beyond the noise."""
        target, reference = self._candidates[found.target].record, self._candidates[0].record
        if not self._has_reference or found.arms[0] != 0 or target is None or reference is None:
            return True
        rounds, comparisons = self._rounds(done), max(1, len(self.group(done)) - 1) * len(self._looks)
        every = StudyRounds(self._spec.goals, rounds, comparisons)
        score, noise = every.score(target.number, reference.number), every.score_noise
        if score is None or noise is None or score.low is None or score.high is None or score.high < 1.0:
            return True
        if score.low > 1.0:
            return math.log(score.low) >= _SURE_SHARE * math.log(score.ratio)
        if score.high > 1.0 + PRECISION:
            return False
        last = self._looks[-1] - done + score.rounds
        least = noise.at_least(LEAST_DEVIATION).half_width(2 / last, comparisons)
        gain, spread = found.gain
        return float(ndtr((gain - least) / spread)) < _HOPELESS

    def _affordable(self, done: int, found: Plan, rounds: int) -> int:
        """Return how many configurations each round up to the next look may measure.

        So many measurements are left that later rounds can measure `LEAST_ARMS` configurations each.
        """
        left = self._left(done)
        counts = np.arange(1, len(found.arms) + 1)
        forms = np.cumsum([self._candidates[place].record is None for place in found.arms])
        costs = forms + len(self._again(found.arms)) + rounds * counts
        later = LEAST_ARMS * (self._looks[-1] - done - rounds)
        return int(np.sum((costs <= left) & ((counts <= LEAST_ARMS) | (costs <= left - later))))

    @property
    def _most(self) -> int:
        """How many measurements the contest may take."""
        searched = sum(not r.round and r.kind not in (TrialKind.REDUCED, TrialKind.CAPACITY) for r in self._trials)
        confirmation = self._spec.confirmation
        return most_measurements(searched, confirmation.confirm_rounds, confirmation.finalists)

    @property
    def _single(self) -> int:
        """How many single trials the finals have had, those of earlier finals included."""
        return sum(record.kind is TrialKind.REDUCED for record in self._trials)

    def _left(self, done: int) -> int:
        """Return how many more measurements the contest may take after some rounds.

        A time limit leaves at least those without which the first rounds compare nothing.
        """
        left, room = self._most - len(self._rounds(done)) - self._single, self._room()
        if room is None:
            return left
        return min(left, room if done else max(room, FEWEST_ARMS * self._looks[0]))

    def _tries_forms(self, done: int) -> bool:
        """Return whether another form may be tried, beside the reference and a target up to the next look.

        Beside the first form, its finalist is measured again.
        """
        rounds, trials = self._following(done) - done, 1 if self._single else 2
        return self._single < self._most * FORMS_SHARE and self._left(done) >= FEWEST_ARMS * rounds + trials

    def _following(self, done: int) -> int:
        """Return the number of rounds after which the contest may end next."""
        return next((look for look in self._looks if look > done), done)

    def _read_trials(self) -> None:
        """Read the study's trials, and give candidates those of their servers that ended since the last reading."""
        self._trials = self._store.trials(self._spec.name)
        ended = {r.number: r for r in self._trials if not r.round and r.outcome and r.number not in self._ended}
        self._ended |= ended
        for each in self._candidates:
            self._resolve(each, [*ended.values()])

    def _resolve(self, candidate: _Candidate, trials: Sequence[TrialRecord]) -> None:
        """Find the trial of a candidate's server; the candidate is out if that failed or is another one's."""
        if candidate.record is not None or candidate.is_out:
            return
        record = measured_as(self._spec.space, trials, candidate.given.config)
        if record is not None:
            others = {each.record.number for each in self._candidates if each.record is not None}
            candidate.fails = record.state != "ok"
            candidate.is_out = candidate.fails or record.number in others
            candidate.record = None if candidate.is_out else record

    def _rounds(self, done: int) -> list[TrialRecord]:
        """Return the measurements of the first `done` rounds, and of the rounds before them."""
        trials = self._trials
        end = rounds_after(trials, self.label, done, 1)[0]
        return [record for record in trials if 0 < record.round < end]

    def _reduced(self) -> set[int]:
        return {record.number for record in self._trials if record.kind is TrialKind.REDUCED}
