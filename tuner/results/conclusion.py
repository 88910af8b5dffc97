"""The tables of a conclusion: the winner beside the reference, the finalists, and the effect of each flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.measured import REFERENCES
from storage.records import Config, JsonScalar, Provenance, TrialOutcome
from tuner.confidence import INTERVAL
from tuner.results import configuration, text
from tuner.results.classes import shown_of_classes
from tuner.results.findings import Findings
from tuner.results.grid import Grid, grid
from tuner.scoring.flag_effects import (
    LIKELY,
    TOGETHER,
    WITHIN_NOISE,
    effect_together,
    effects_basis,
    has_effect,
)
from tuner.study.conclusion.reference import chosen_by_engine

MUCH_WORSE = 1.25
"""Ratio to the defaults from which a latency that is no objective is reported."""

NOISY = 0.1
"""Relative deviation of measurements of one configuration from which a study warns."""

IS_DEFAULT, IS_CHOSEN, NOT_MEASURED = "the default", "the engine's choice", "not measured"
"""What stands in place of the effect of a flag that has none, or of which it is not known."""

WOULD_HELP = "what would help, but this study's settings exclude it: predicted, not measured"

RISK = "fails or misses\nan SLO without it"
ITL = "p99_itl_ms"
"""The metric that stands in every table: flags that send tokens in groups improve others at its cost."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def smaller_line(findings: Findings) -> str | None:
    """Return the winner beside the configuration with the best score, in one line; None if it is the same."""
    smaller = findings.conclusion.get("smaller")
    best = None if smaller is None else findings.trial(int(smaller["best"]))
    winner = None if findings.winner is None else findings.trial(findings.winner)
    if smaller is None or best is None or winner is None:
        return None
    flags, flags_of_best = (len(configuration.changes(record.config, findings.defaults)) for record in (winner, best))
    score = smaller["score"]
    interval = f" ({text.interval(score)})" if text.interval(score) else ""
    if score["ratio"] >= 1.0:  # without a reference, where the first finalist is the best unless one beats it clearly
        return (
            f"trial {best.number}, the best of the search, has {text.count(flags_of_best, 'flag')}; "
            f"the winner has {flags} and ×{score['ratio']:.3f}{interval} of its score"
        )
    return (
        f"trial {best.number} has the best score with {text.count(flags_of_best, 'flag')}; "
        f"the winner has {flags} and ×{score['ratio']:.3f}{interval} of that score"
    )


def kept_line(findings: Findings) -> str | None:
    """Return what the user gets where the reference is kept, in one line; None where something else won."""
    number = findings.exported
    outcome = findings.measured(number)
    if outcome is None or number != findings.baseline:
        return None
    names = [name for name in _shown_metrics(findings, outcome) if outcome.metric(name) is not None]
    values = ", ".join(text.metric(name, outcome.metric(name)) for name in names)
    verb = "predicted" if outcome.provenance is Provenance.SIMULATED else "measured"
    return f"what you get, {findings.baseline_heading}, {verb}: {values}"


def noise_warning(findings: Findings) -> str | None:
    """Return a warning where the first objective varies so much that small gains cannot show; else None."""
    noise = findings.noise
    if noise is None or noise <= NOISY:
        return None
    return (
        f"warning: {findings.objectives[0].metric} varies by {noise:.0%} between measurements of one configuration, so "
        "that only large gains can show; use a quieter machine, or more rounds"
    )


def comparison_title(findings: Findings, detail: str = "") -> str:
    """Return what a table compares, and what it rests on; `detail` narrows it, such as ` by request class`."""
    one = findings.measured(findings.challenger)
    measured = "predicted" if one is not None and one.provenance is Provenance.SIMULATED else "measured"
    rounds = len(findings.common_rounds(findings.challenger))
    basis = f"medians of {text.count(rounds, 'round')}" if rounds else "one trial of the search each"
    role = "the winner" if findings.winner == findings.challenger else "not chosen: the best finalist"
    if findings.conclusion.get("nearest"):
        role = "the nearest"
    return f"{role} beside {findings.baseline_name}{detail}, {measured}: {basis}"


def comparison_grid(findings: Findings) -> Grid | None:
    """Return the winner, or the best finalist, beside the defaults; None if only one of them was measured."""
    number, baseline = findings.challenger, findings.baseline
    other = findings.measured(baseline)
    if number is None or number == baseline or other is None or findings.measured(number) is None:
        return None
    contender = findings.contender(number)
    headings = ("metric", findings.baseline_heading, f"#{number}", "ratio", INTERVAL, "SLO")
    table = grid(*headings, left=("metric", "SLO"))
    table.add("score", "1", *_score_cells(findings, number, contender), "")
    for name in _shown_metrics(findings, other):
        table.add(
            name,
            *text.compared(name, findings.beside(number, name)),
            ", ".join(f"{slo.op}{slo.threshold:g}" for slo in findings.slos if slo.metric == name),
        )
    return table


def worse_metrics(findings: Findings) -> list[str]:
    """Return the metrics outside objectives and SLOs that are much worse than the defaults': one of each latency."""
    number, baseline = findings.challenger, findings.baseline
    if number is None or baseline is None:
        return []
    found: list[tuple[float, str]] = []
    for kind in LATENCIES:
        names = [f"{statistic}_{kind}_ms" for statistic in ("mean", "median", "p99")]
        if {*names} & {*_metrics(findings)}:
            continue
        pairs = [
            (each.ratio, name, each) for name in names if (each := findings.beside(number, name)).ratio is not None
        ]
        ratio, name, worst = max(pairs, key=lambda pair: pair[:2], default=(0.0, "", None))
        if worst is not None and ratio >= MUCH_WORSE:
            change = f"{text.number(worst.one)} → {text.number(worst.other)}"
            found.append((ratio, f"{name} {change} (×{ratio:.3f})"))
    return [line for _, line in sorted(found, reverse=True)]


def _metrics(findings: Findings) -> list[str]:
    return list(dict.fromkeys([*(o.metric for o in findings.objectives), *(slo.metric for slo in findings.slos)]))


def _shown_metrics(findings: Findings, reference: TrialOutcome | None) -> list[str]:
    """Return the metrics of objectives and SLOs, and p99 ITL where it was measured.

    SLOs of request classes are in the table of the classes.
    """
    shown = shown_of_classes(findings)
    objectives = [each.metric for each in findings.objectives]
    names = [name for name in _metrics(findings) if name in objectives or name not in shown]
    measured = reference is not None and reference.metric(ITL) is not None
    return [*names, ITL] if measured and ITL not in names else names


def _score_cells(findings: Findings, number: int, contender: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if contender is not None and contender["score"]:
        score = contender["score"]
        return f"{score['ratio']:.3f}", text.ratio(score), text.interval(score)
    trial = findings.trial(number)
    score = trial.verdict.score if trial is not None and trial.verdict is not None else None
    return (text.ABSENT if score is None else f"{score:.3f}"), "", ""


def finalists_grid(findings: Findings) -> Grid | None:
    """Return every finalist's ratios to the reference; None with fewer than two finalists, or without any ratio."""
    contenders = findings.conclusion.get("contenders", ())
    if len(contenders) < 2 or not any(each["score"] for each in contenders):
        return None
    reference = findings.measured(findings.baseline)
    names = [objective.metric for objective in findings.objectives]
    if reference is not None and reference.metric(ITL) is not None and ITL not in names:
        names.append(ITL)
    table = grid("finalist", "score", INTERVAL, *names, left=("finalist",))
    for each in sorted(contenders, key=lambda each: -(each["score"] or {"ratio": 0.0})["ratio"]):
        score, number = each["score"], each["number"]
        mark = " excluded" if each["disqualified"] else " winner" if number == findings.winner else ""
        table.add(
            f"#{number}{mark}",
            f"{score['ratio']:.3f}" if score else text.ABSENT,
            text.interval(score),
            *(text.ratio(findings.ratio(number, name)) if score else "" for name in names),
        )
    return table


def flags_grid(findings: Findings) -> Grid | None:
    """Return each flag of the winner with its effect on the score; None where the defaults win or nothing is known."""
    winner = findings.winner
    trial = None if winner is None else findings.trial(winner)
    if trial is None or trial.kind in REFERENCES:
        return None
    effects = {each["name"]: each for each in findings.flag_effects}
    changed = configuration.changes(trial.config, findings.defaults)
    chosen = chosen_by_engine(findings.records)
    rows = [*(name for name in effects if name in trial.config), *(name for name in changed if name not in effects)]
    rows += [name for name, value in trial.config.items() if value is not None and name not in rows]
    risky = any(each["needed"] >= LIKELY for each in effects.values())
    headings = ("flag", "default", "effect", INTERVAL, *([RISK] if risky else []))
    table = grid(*headings, left=("flag", "default"))
    for name in rows:
        effect = effects.get(name)
        default = effect["default"] if effect else findings.defaults.get(name)
        table.add(
            f"{name}={trial.config[name]}",
            _default(name, default, findings.defaults, known=effect is not None),
            *_effect_cells(trial.config[name], effect, chosen.get(name), changed=name in changed),
            *([_without(effect)] if risky else []),
            faint=effect is None or not has_effect(effect),
        )
    return table


def _effect_cells(
    value: JsonScalar, effect: Mapping[str, Any] | None, chosen: JsonScalar, *, changed: bool
) -> tuple[str, str]:
    """Return a flag's effect and its interval; without one, why."""
    if not changed:
        return IS_DEFAULT, ""
    if chosen is not None and value == chosen:
        return IS_CHOSEN, ""
    if effect is None:
        return NOT_MEASURED, ""
    return f"×{effect['ratio']:.2f}", f"{effect['low']:.2f} to {effect['high']:.2f}"


def flags_note(findings: Findings) -> str:
    """Return what the effects are, what they rest on, and whether there is one at all."""
    effects = findings.flag_effects
    if not effects:
        return "their effects are not known"
    outcome = findings.measured(findings.winner)
    simulated = outcome is not None and outcome.provenance is Provenance.SIMULATED
    basis = effects_basis(effects, simulated=simulated)
    meaning = f"effect: score relative to the same configuration with that flag reset, {basis}"
    if any(map(has_effect, effects)):
        return meaning
    together = effect_together(findings.conclusion, findings.records)
    if together is None or len(effects) == 1:
        return f"{meaning}; {WITHIN_NOISE}"
    ratio = f"×{together['ratio']:.2f} ({text.interval(together)}) in {text.count(together['rounds'], 'round')}"
    return f"all flags together {ratio}, {TOGETHER}; {meaning}"


def _default(name: str, value: JsonScalar, defaults: Config, *, known: bool) -> str:
    if value is None:
        return "unset" if known or name in defaults else "unknown"
    return str(value)


def _without(effect: Mapping[str, Any] | None) -> str:
    return "" if effect is None or effect["needed"] < LIKELY else f"{100 * effect['needed']:.0f} %"
