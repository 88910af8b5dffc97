"""Names on the hub that a publisher derives from a model's, such as `NAME-AWQ`: rules in `derived_names.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.yaml_file import read_yaml

_FILE = Path(__file__).with_name("derived_names.yaml")


@dataclass(frozen=True)
class Derivation:
    """A model that a name may be derived from.

    Attributes:
        base: name of the model on the hub.
        kinds: each `model_type` for which the rule holds; None: all with plain attention alone.
        config, quantization: what config.json and hf_quant_config.json have besides those of `base`.
        source: where the format's parameters are from.
    """

    base: str
    kinds: tuple[str, ...] | None
    config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None
    source: str


def derivations(name: str, known: Iterable[str]) -> Iterator[Derivation]:
    """Yield the models among the known ones that a name on the hub may be derived from."""
    owner, _, own = name.partition("/")
    for rule in _rules():
        if owner not in rule["owners"]:
            continue
        for base in known:
            maker, _, short = base.partition("/")
            if maker in rule.get("of", (maker,)) and own in [form.format(name=short) for form in rule["names"]]:
                kinds = tuple(rule["kinds"]) if "kinds" in rule else None
                yield Derivation(base, kinds, rule.get("config", {}), rule.get("quantization"), rule["source"])


@cache
def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = read_yaml(_FILE).data
    return rules
