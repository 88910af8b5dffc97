"""Numbers, durations, configurations and tables as text in a given width, without a form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from records import metrics
from records.trials import Config, JsonScalar, configuration_changes
from search_spaces import Price
from tuner.scoring.compare import MeasuredRatio

ABSENT = "–"
BANNER = "SIMULATED: predicted, not measured"


def number(value: float | None) -> str:
    """Return a figure with about four digits: `3,332`, `14.81`, `0.97`; a dash for None."""
    if value is None:
        return ABSENT
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def unit(name: str, price: Price | None) -> str:
    """Return the unit of a metric as it is shown; a cost is in the currency of the study's price."""
    return metrics.shown_unit(name, None if price is None else price.currency)


def with_unit(name: str, value: float | None, price: Price | None) -> str:
    """Return a metric's value with its unit, `3,332 tok/s`; see `unit`."""
    return f"{number(value)} {'' if value is None else unit(name, price)}".rstrip()


def metric(name: str, value: float | None, price: Price | None) -> str:
    """Return a metric's name and value: `output_throughput 3,332 tok/s`, `p99_tpot_ms 13.9`."""
    return f"{name} {with_unit(name, value, price)}"


def ratio(found: Mapping[str, Any] | None) -> str:
    """Return `×1.178`; nothing for None. `found` is a `Ratio` as plain JSON."""
    return "" if not found else f"×{found['ratio']:.3f}"


def interval(found: Mapping[str, Any] | None) -> str:
    """Return `1.104 to 1.257`; nothing without an interval. `found` is a `Ratio` as plain JSON."""
    if not found or found.get("low") is None or found.get("high") is None:
        return ""
    return f"{found['low']:.3f} to {found['high']:.3f}"


def compared(name: str, found: MeasuredRatio, price: Price | None, of_other: Price | None) -> list[str]:
    """Return a metric of two trials as four cells: both values with their unit, the ratio, and its interval.

    `price` is that of the first one's study, `of_other` that of the other one's.
    """
    ends = asdict(found) if found.ratio is not None else None
    return [with_unit(name, found.one, price), with_unit(name, found.other, of_other), ratio(ends), interval(ends)]


def count(number: int, noun: str) -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Return `42 s`, `7 min 05 s` or `2 h 03 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def about(seconds: float) -> str:
    """Return a rounded estimate: `less than 10 s`, `about 40 s`, `about 7 min`, `about 2 h 10 min`."""
    if seconds < 10:
        return "less than 10 s"
    if seconds < 55:
        return f"about {10 * round(seconds / 10)} s"
    minutes = max(round(seconds / 60), 1)
    if minutes < 60:
        return f"about {minutes} min"
    hours, rest = divmod(10 * round(minutes / 10), 60)
    return f"about {hours} h" + (f" {rest:02d} min" if rest else "")


def title(record_number: int, round_: int) -> str:
    """Return `#12`, or `#12 round 2`."""
    return f"#{record_number}" + (f" round {round_}" if round_ else "")


def timings(seconds: Mapping[str, float]) -> str:
    """Return the seconds of each phase, the longest first; less than half a second is left out."""
    parts = sorted(((value, name) for name, value in seconds.items() if value >= 0.5), reverse=True)
    return ", ".join(f"{name} {value:,.0f} s" for value, name in parts)


def learned(found: Mapping[str, Any]) -> str:
    """Return what measured trials told about the predictor of a host, as `HostPosterior.to_dict` has it."""
    factors = [f"{name} ×{factor:.2f} ± {spread:.0%}" for name, (factor, spread) in found["factors"].items()]
    return f"{count(found['trials'], 'measured trial')} on {found['host']}: {', '.join(factors) or 'nothing sure yet'}"


def one_line(text: str) -> str:
    """Return a text with its line breaks and runs of blanks as single blanks."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """Return a text of others without control characters, which terminals obey and XML forbids."""
    return "".join(each if each.isprintable() else " " for each in text)


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut between words and marked with `…`."""
    if len(text) <= width:
        return text
    head = text[: width - 1]
    whole = head.rpartition(" ")[0] if text[width - 1] != " " else head
    return (whole or head).rstrip(" ,;:") + "…"


def joined(parts: Sequence[str], width: int, separator: str = ", ") -> list[str]:
    """Return parts in as few lines of at most `width` characters as they need; no part is broken."""
    found: list[str] = []
    for part in parts:
        if found and len(found[-1]) + len(separator) + len(part) <= width:
            found[-1] += separator + part
        else:
            found.append(part)
    return found


def words(values: Mapping[str, JsonScalar]) -> list[str]:
    """Return `name=value` for each value."""
    return [f"{name}={value}" for name, value in values.items()]


def full_configuration(config: Config, defaults: Config) -> str:
    """Return all that differs from the defaults on one line."""
    return " ".join(words(configuration_changes(config, defaults))) or "the defaults"


def short_configuration(config: Config, defaults: Config, width: int) -> str:
    """Return as much of what differs from the defaults as fits into `width`, and how many values are left out.

    No value is cut: `quantization=fp8 block_size=32 +7 more`.
    """
    every = words(configuration_changes(config, defaults))
    if not every:
        return "the defaults"
    for count in range(len(every), 0, -1):
        rest = len(every) - count
        text = " ".join([*every[:count], *([f"+{rest} more"] if rest else [])])
        if len(text) <= width:
            return text
    return f"{len(every)} changes" if len(every) > 1 else "1 change"
