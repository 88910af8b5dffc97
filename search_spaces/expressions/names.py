"""Values of the names in an expression: parameters, effective values and facts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from search_spaces.expressions.facts import shown_fact
from search_spaces.expressions.language import UNKNOWN, parsed
from search_spaces.parameter import ParameterValue
from search_spaces.schema import DefaultCase, ParameterSpec

_EFFECTIVE = "effective."


class Names:
    """The values of all names for one configuration in one context.

    `max_num_seqs` is the configuration's value, else the one in the study's own server arguments (`fixed`), else None.
    `effective.max_num_seqs` is the same, else the engine's default, else UNKNOWN.
    """

    def __init__(
        self,
        specs: Mapping[str, ParameterSpec],
        facts: Mapping[str, object],
        fixed: Mapping[str, object],
        config: Mapping[str, ParameterValue],
    ) -> None:
        self._specs = specs
        self._facts = facts
        self._fixed = fixed
        self._config = config

    def lookup(self, name: str) -> object:
        """Return the value of a dotted name."""
        if name.startswith(_EFFECTIVE):
            return self.effective(name.removeprefix(_EFFECTIVE))
        if name in self._facts:
            return self._facts[name]
        value = self._config.get(name)
        return self._fixed.get(name) if value is None else value

    def effective(self, name: str) -> object:
        """Return the value that the engine uses for a parameter; UNKNOWN if it is not known."""
        value = self.lookup(name)
        if value is not None:
            return value
        default = self._default(name)
        return UNKNOWN if default is None else default

    def default(self, name: str) -> ParameterValue:
        """Return the engine's own default of a parameter in this configuration; None if it is not known."""
        value = self._default(name)
        return value if isinstance(value, str | int | float | bool) else None

    def _default(self, name: str) -> object:
        spec = self._specs.get(name)
        if spec is None or not isinstance(spec.engine_default, tuple):
            return None if spec is None else spec.engine_default
        for case in spec.engine_default:
            holds = True if case.when is None else parsed(case.when).holds(self.lookup)
            if holds is None:
                return None
            if holds:
                return self._case_value(case)
        return None

    def _case_value(self, case: DefaultCase) -> object:
        return case.value if case.expression is None else parsed(case.expression).evaluate(self.lookup)

    def fill(self, text: str) -> str:
        """Return `text` with each `{name}` replaced by its value."""
        return re.sub(r"\{([\w.]+)\}", lambda match: shown_fact(match[1], self.lookup(match[1])), text)
