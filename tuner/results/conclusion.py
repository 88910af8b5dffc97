"""The tables of a conclusion: winner and reference, by class and by cost, finalists, engines and flag effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from records.measured import REFERENCES
from records.metrics import COSTS, ENERGY, LATENCIES
from records.tables import Grid, grid
from records.trials import Config, JsonScalar, Provenance, TrialOutcome, configuration_changes
from search_spaces import ENGINE, Price
from tuner.confidence import INTERVAL
from tuner.results import text
from tuner.results.findings import Findings, nearest_grid, rate_line
from tuner.scoring.flag_effects import (
    LIKELY,
    TOGETHER,
    WITHIN_NOISE,
    effect_together,
    effects_basis,
    has_effect,
)
from tuner.scoring.goals import Slo
from tuner.study.conclusion import chosen_by_engine
from tuner.workloads.request_class import ClassSlo
from tuner.workloads.spec import ClosedLoop, read_workload

BY_CLASS = " by request class"
LEFT = ("class", "metric", "SLO", "met by")
MET = "an SLO is met if it holds in every round"
ALWAYS = ("ttft", "tpot")
"""Latencies that are shown of every class; others where a class has a bound on them."""


def classes_grid(findings: Findings) -> Grid | None:
    """Return a row for each class and metric; None without request classes, or where their metrics were not measured.

    An SLO is met where it holds in every round that measured both configurations, without rounds in the search.
    """
    number, reference = findings.challenger, findings.baseline
    shown = shown_of_classes(findings)
    if number is None or number == reference or not shown:
        return None
    if findings.baseline is None or findings.measured(findings.baseline) is None or findings.measured(number) is None:
        return None
    table = grid(
        "class", "metric", findings.baseline_heading, f"#{number}", "ratio", INTERVAL, "SLO", "met by", left=LEFT
    )
    last = None
    for name in shown:
        of_class, _, base = name.rpartition(".")
        found = findings.beside(number, name)
        slos = [slo for slo in findings.slos if slo.metric == name]
        table.add(
            of_class if of_class != last else "",
            base,
            *text.compared(name, found, findings.price, findings.price),
            ", ".join(f"{slo.op}{slo.threshold:g}" for slo in slos),
            _met_by(findings, slos) if slos else "",
        )
        last = of_class
    return table


def classes_note(findings: Findings) -> str:
    """Return what the columns of the table mean: when an SLO is met, and the bounds that goodput counts by."""
    bounds = {name: slo.request.bounds_ms for name, slo in _classes(findings).items() if slo and slo.request.bounds_ms}
    texts = "; ".join(f"{name} {_bounds(each)}" for name, each in bounds.items())
    counted = [f"goodput counts the requests within the bounds of their class: {texts}"] if texts else []
    names = {slo.metric for slo in findings.slos} & {*shown_of_classes(findings)}
    return "; ".join(([MET] if names else []) + counted)


def shown_of_classes(findings: Findings) -> list[str]:
    """Return the metrics of request classes that the table shows, class by class; none without a value."""
    names = [name for each, slo in _classes(findings).items() for name in _names(findings, each, slo)]
    both = map(findings.measured, (findings.baseline, findings.challenger))
    outcomes = [outcome for outcome in both if outcome is not None]
    return [name for name in names if any(outcome.metric(name) is not None for outcome in outcomes)]


def _classes(findings: Findings) -> Mapping[str, ClassSlo | None]:
    """Return the SLO of each class that is sent; None for a class without one."""
    workload = read_workload(findings.workload) if findings.workload else None
    if workload is None or isinstance(workload, ClosedLoop):
        return {}
    return {name: workload.slos.get(name) for name in workload.sent_classes}


def _names(findings: Findings, of_class: str, slo: ClassSlo | None) -> list[str]:
    """Return the metrics of a class: goodput, what the study has a goal on, and one percentile of other latencies."""
    own = [base for prefix, _, base in (name.rpartition(".") for name in findings.goals.names) if prefix == of_class]
    bounded = () if slo is None else slo.request.bounds_ms
    names = ["request_throughput"] if slo is None else ["goodput", "goodput_share", "session_goodput_share"]
    names += [name for name in own if not name.endswith("_ms")]
    for kind in LATENCIES:
        of_kind = [name for name in own if name.endswith(f"_{kind}_ms")]
        names += of_kind or ([f"p99_{kind}_ms"] if kind in ALWAYS or kind in bounded else [])
    return [f"{of_class}.{name}" for name in dict.fromkeys(names)]


def _met_by(findings: Findings, slos: Sequence[Slo]) -> str:
    """Return which configurations meet all these SLOs: `both`, `#3`, `#3, defaults #0 in 2 of 3 rounds`, `neither`."""
    sides = {findings.baseline_heading: findings.baseline, f"#{findings.challenger}": findings.challenger}
    found = []
    for name, number in sides.items():
        outcomes = findings.outcomes(number)
        met = sum(all(slo.met(outcome.metric(slo.metric)) for slo in slos) for outcome in outcomes)
        if met:
            found.append(name if met == len(outcomes) else f"{name} in {met} of {len(outcomes)} rounds")
    return "both" if found == list(sides) else ", ".join(found) or "neither"


def _bounds(bounds: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} < {bound:g} ms" for kind, bound in bounds.items())


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


def smaller_line(findings: Findings) -> str | None:
    """Return the winner beside the configuration with the best score, in one line; None if it is the same."""
    smaller = findings.conclusion.get("smaller")
    best = None if smaller is None else findings.trial(int(smaller["best"]))
    winner = None if findings.winner is None else findings.trial(findings.winner)
    if smaller is None or best is None or winner is None:
        return None
    flags, flags_of_best = (len(configuration_changes(record.config, findings.defaults)) for record in (winner, best))
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
    values = ", ".join(text.metric(name, outcome.metric(name), findings.price) for name in names)
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
    headings = ("metric", findings.baseline_heading, f"#{number}", "ratio", INTERVAL, "SLO")
    table = grid(*headings, left=("metric", "SLO"))
    table.add("score", "1", *_score_cells(findings, number), "")
    for name in _shown_metrics(findings, other):
        table.add(
            name,
            *text.compared(name, findings.beside(number, name), findings.price, findings.price),
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
        if {*names} & {*findings.goals.names}:
            continue
        pairs = [
            (each.ratio, name, each) for name in names if (each := findings.beside(number, name)).ratio is not None
        ]
        ratio, name, worst = max(pairs, key=lambda pair: pair[:2], default=(0.0, "", None))
        if worst is not None and ratio >= MUCH_WORSE:
            change = f"{text.number(worst.one)} → {text.number(worst.other)}"
            found.append((ratio, f"{name} {change} (×{ratio:.3f})"))
    return [line for _, line in sorted(found, reverse=True)]


def _shown_metrics(findings: Findings, reference: TrialOutcome | None) -> list[str]:
    """Return the metrics of objectives and SLOs, and p99 ITL where it was measured.

    SLOs of request classes are in the table of the classes.
    """
    shown = shown_of_classes(findings)
    objectives = [each.metric for each in findings.objectives]
    names = [name for name in findings.goals.names if name in objectives or name not in shown]
    measured = reference is not None and reference.metric(ITL) is not None
    return [*names, ITL] if measured and ITL not in names else names


def _score_cells(findings: Findings, number: int) -> tuple[str, str, str]:
    if (found := findings.score(number)) is not None:
        return f"{found['ratio']:.3f}", text.ratio(found), text.interval(found)
    trial = findings.trial(number)
    score = None if trial is None else trial.score
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
    changed = configuration_changes(trial.config, findings.defaults)
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


COST = "cost_per_million_output_tokens"


def price_lines(names: Iterable[str], prices: Sequence[Price | None]) -> list[str]:
    """Return the prices that shown costs follow from, one a line; none if no cost is shown.

    Args:
        names: the metrics that are shown.
        prices: of the studies that they come from.
    """
    if not any(name.rpartition(".")[2] in COSTS for name in names):
        return []
    return list(dict.fromkeys(f"price: {price}" for price in prices if price is not None))


def cost_lines(findings: Findings) -> list[str]:
    """Return the cost and the energy of a token with the reference and with what is compared with it."""
    numbers = {findings.baseline_name: findings.baseline, f"#{findings.challenger}": findings.challenger}
    outcomes = {name: findings.measured(number) for name, number in numbers.items()}
    lines: list[str] = []
    for name in (COST, ENERGY):
        shown = [
            f"{text.with_unit(name, value, findings.price)} with {who}"
            for who, outcome in outcomes.items()
            if outcome is not None and (value := outcome.metric(name)) is not None
        ]
        if shown:
            simulated = any(each is not None and each.provenance is Provenance.SIMULATED for each in outcomes.values())
            price = f"; price: {findings.price}" if name == COST and findings.price is not None else ""
            lines.append(f"{'predicted ' if simulated else ''}{name}: {', '.join(shown)}{price}")
    if not any(line.endswith(f"price: {findings.price}") for line in lines):  # as with several workloads
        lines += price_lines(findings.goals.names, [findings.price])
    return lines


ENGINES_TITLE = "engines, each by its best measured configuration"


def engines_grid(findings: Findings) -> Grid | None:
    """Return the engines of a study of several, the best first; None in a study of one, or without rounds.

    Ratios are those to the reference, whose own score is 1. An engine of which no configuration was measured in rounds,
    or of which each missed an SLO, is not ranked and comes last.
    """
    engines = _engines(findings)
    contenders = findings.conclusion.get("contenders", ())
    if ENGINE not in findings.defaults or len(engines) < 2 or not any(each["score"] for each in contenders):
        return None
    best: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, score in _scores(findings):
        engine = _engine_of(findings, number)
        if engine is not None and (engine not in best or score["ratio"] > best[engine][1]["ratio"]):
            best[engine] = number, score
    names = [objective.metric for objective in findings.objectives]
    table = grid("engine", "trial", "score", INTERVAL, *names, left=("engine", "trial"))
    for engine in sorted(engines, key=lambda each: -best[each][1]["ratio"] if each in best else 0.0):
        if engine not in best:
            table.add(engine, "none", text.ABSENT, "", *("" for _ in names), faint=True)
            continue
        number, score = best[engine]
        own = number == findings.baseline
        ratios = [text.ratio({"ratio": 1.0} if own else findings.ratio(number, name)) for name in names]
        table.add(engine, f"#{number}", f"{score['ratio']:.3f}", "" if own else text.interval(score), *ratios)
    return table


def _engines(findings: Findings) -> list[str]:
    """Return the engines that trials name, in the order of their first trial."""
    found = [_engine_of(findings, record.number) for record in findings.records if not record.round]
    return list(dict.fromkeys(engine for engine in found if engine is not None))


def _engine_of(findings: Findings, number: int) -> str | None:
    trial = findings.trial(number)
    engine = None if trial is None else trial.config.get(ENGINE) or findings.defaults.get(ENGINE)
    return None if engine is None else str(engine)


def _scores(findings: Findings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the trials that count, with their scores relative to the reference."""
    if findings.baseline is not None:
        yield findings.baseline, {"ratio": 1.0}
    for each in findings.conclusion.get("contenders", ()):
        if each["score"] and not each["disqualified"]:
            yield int(each["number"]), each["score"]


@dataclass(frozen=True)
class Part:
    """A part of a conclusion: a table or lines under a title, or lines alone.

    Attributes:
        title: empty for lines alone.
        above: lines before the table.
        grid: the table; None: there are lines alone.
        below: lines behind the table.
        warns: whether the lines below are a warning.
    """

    title: str = ""
    above: tuple[str, ...] = ()
    grid: Grid | None = None
    below: tuple[str, ...] = ()
    warns: bool = False


def parts(findings: Findings) -> Iterator[Part]:
    """Yield what is shown of a conclusion beside its reason, in its order."""
    nearest = findings.conclusion.get("nearest") or None
    yield from _lines(kept_line(findings))
    yield from _lines(noise_warning(findings), warns=True)
    if nearest is not None:
        yield from _lines(rate_line(nearest))
        yield Part(
            f"the SLOs with #{nearest['number']}, the nearest to meeting them",
            grid=nearest_grid(nearest, findings.price),
        )
    yield from _lines(smaller_line(findings))
    if (compared := comparison_grid(findings)) is not None:
        worse = ", ".join(worse_metrics(findings))
        below = (f"much worse than with {findings.baseline_name}, but no objective: {worse}",) if worse else ()
        yield Part(comparison_title(findings), grid=compared, below=below, warns=True)
    if (classes := classes_grid(findings)) is not None:
        note = classes_note(findings)
        yield Part(comparison_title(findings, BY_CLASS), grid=classes, below=(note,) if note else ())
    yield from _lines(*cost_lines(findings))
    if (engines := engines_grid(findings)) is not None:
        yield Part(ENGINES_TITLE, grid=engines)
    if (finalists := finalists_grid(findings)) is not None:
        yield Part(f"finalists, as ratios to {findings.baseline_name}", grid=finalists)
    contenders = findings.conclusion.get("contenders", ())
    yield from _lines(*(f"#{c['number']} is excluded: {c['disqualified']}" for c in contenders if c["disqualified"]))
    if (flags := flags_grid(findings)) is not None:
        yield Part(f"flags of #{findings.winner}", (flags_note(findings),), flags)
    if helpful := findings.conclusion.get("would_help"):
        yield Part(WOULD_HELP, below=(*helpful,))


def _lines(*lines: str | None, warns: bool = False) -> Iterator[Part]:
    yield from (Part(below=(line,), warns=warns) for line in lines if line is not None)
