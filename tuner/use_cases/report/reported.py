"""A study as a report needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards import frames
from dashboards.plots.pictures import IMPORTANCE, IMPORTANCE_TRIALS
from records.trials import RATES_FILE, Provenance, TrialOutcome
from tuner.engines.simulator.roofline import MeasuredPoint
from tuner.use_cases.other_cards import CARDS, CardPrediction, measured_place, other_cards, own_card
from tuner.use_cases.stored import StoredStudy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ReportedStudy(StoredStudy):
    """A study with what its figures need."""

    @property
    def finished(self) -> int:
        """Number of finished trials of the search; rounds do not count."""
        return sum(trial.outcome is not None and not trial.round for trial in self.trials)

    @cached_property
    def importance(self) -> Mapping[str, tuple[float, float, float]]:
        """By parameter, the share of the score's variance and its interval, the largest first; see `stored_importance`.

        A study's end stores it. Without, or with more trials since then, it is computed, which takes seconds.
        """
        facts = self.record.facts
        if facts.get(IMPORTANCE_TRIALS) == self.finished:
            shares = sorted(facts.get(IMPORTANCE, {}).items(), key=lambda item: -float(item[1][0]))
            return {name: (float(mean), float(low), float(high)) for name, (mean, low, high) in shares}
        if self.url is None:
            return {}
        from tuner.sampler.flag_effects import stored_importance

        return stored_importance(self.url, self.record.name)

    @cached_property
    def cards(self) -> tuple[CardPrediction, ...]:
        """What the defaults and the winner are predicted to give on other cards, and on the study's own one."""
        own = own_card(self.record)
        keys = CARDS if own is None or own.key in CARDS or own.vendor == "cpu" else (own.key, *CARDS)
        return other_cards(self.record, self.trials, keys)

    @property
    def own_prediction(self) -> CardPrediction | None:
        """The predictions for the study's own card; None if there are none."""
        return next((card for card in self.cards if card.is_own), None)

    @cached_property
    def measured_points(self) -> Mapping[str, MeasuredPoint]:
        """The measured places of `compared` on the roofline; empty for a simulated study, where nothing is measured."""
        return {} if self.simulated else {n: measured_place(self.record, each) for n, each in self.outcomes.items()}

    @property
    def simulated(self) -> bool:
        """Whether all its numbers are predictions."""
        return self.record.provenance is Provenance.SIMULATED

    @property
    def device(self) -> str:
        """Name of the card, or `cpu`."""
        return ", ".join(dict.fromkeys(map(str, self.record.facts.get("devices", ["unknown"]))))

    @property
    def engine(self) -> str:
        """Name and version of the engine, or of each engine."""
        premise = self.record.premise
        versions = {name: each["version"] for name, each in premise.get("engines", {}).items()}
        found = versions or {str(premise["engine"]["name"]).removeprefix("simulated "): premise["engine"]["version"]}
        return ", ".join(f"{'vLLM' if name == 'vllm' else name} {version}" for name, version in found.items())

    @property
    def compared(self) -> dict[str, int]:
        """The reference and what is compared with it, by their names in figures, where both exist."""
        findings = self.findings
        found = {}
        if findings.baseline is not None:
            found[f"{findings.baseline_name.removeprefix('the ')} #{findings.baseline}"] = findings.baseline
        challenger = findings.challenger
        if challenger is not None and challenger != findings.baseline:
            role = "winner" if challenger == findings.winner else "best finalist"
            role = "nearest" if findings.conclusion.get("nearest") else role
            found[f"{role} #{challenger}"] = challenger
        return found

    @property
    def outcomes(self) -> dict[str, TrialOutcome]:
        """What was measured of each of `compared`."""
        found = {name: self.findings.measured(number) for name, number in self.compared.items()}
        return {name: outcome for name, outcome in found.items() if outcome is not None}

    def folders(self, number: int) -> list[Path]:
        """Return the folders of artifacts of a trial's rounds with the reference, else of the trial itself."""
        rounds = self.findings.common_rounds(number)
        own = [r for r in self.trials if r.number == number and (r.round in rounds if rounds else not r.round)]
        return [Path(r.outcome.artifacts) for r in own if r.outcome is not None and r.outcome.succeeded]

    def files(self, number: int, name: str) -> list[Path]:
        """Return the files of a trial's benchmarks, see `frames.numbered_files`; none if they are not here."""
        return [file for folder in self.folders(number) for file in frames.numbered_files(folder, name)]

    def rate_frame(self) -> pd.DataFrame | None:
        """Return the rates of the trial that searched the capacity last, see `frames.rate_frame`; None without."""
        for record in reversed(self.trials):
            file = Path(record.outcome.artifacts) / RATES_FILE if record.outcome is not None else None
            if file is not None and file.is_file():
                return frames.rate_frame(file)
        return None
