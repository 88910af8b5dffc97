"""Traffic as users send it: when requests arrive, of which classes, with which prompts.

A traffic file is YAML; no command takes one yet.

    arrivals: {process: poisson, rate: 32}
    requests: 2000
    max_in_flight: 128
    system_prompt: 256
    classes:
      chat: {weight: 3, input: {lognormal: {mean: 365, cv: 0.4, max: 2048}}, output: 128}
      documents: {input: 64, output: {uniform: [32, 512]}, prefix: {tokens: 2000, documents: 50, zipf: 1.1}}
      never: {weight: 0, input: 90000, output: 1}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tuner.workloads.arrivals import Arrivals, Closed, Ramp, Trace
from tuner.workloads.files import read_model
from tuner.workloads.lengths import AnyLength, Tokens


class Prefix(BaseModel):
    """Documents that prompts of a class begin with, each picked again and again: what a prefix cache can keep.

    The prompt is the document and then `input` tokens of its own. Document k of K is picked with a probability
    proportional to k ** -zipf; 0 picks all alike.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Tokens
    documents: int = Field(1, ge=1)
    zipf: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def probabilities(self) -> list[float]:
        """Return the probability of each document."""
        weights = [float(k) ** -self.zipf for k in range(1, self.documents + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]


class RequestClass(BaseModel):
    """One kind of request: its share by `weight`, and its lengths in tokens under the model's tokenizer.

    `text` is what the prompt says: words drawn at random, or one short passage over and over, which ngram and suffix
    speculation can guess.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    input: AnyLength
    output: AnyLength
    prefix: Prefix | None = None
    text: Literal["random", "repetitive"] = "random"

    def longest(self) -> int:
        """Return the tokens of the longest request, prompt and answer together."""
        return (self.prefix.tokens if self.prefix else 0) + self.input.longest() + self.output.longest()


class Traffic(BaseModel):
    """A load. It ends after `requests`, after `duration_s`, or with its trace, whichever comes first.

    With `max_in_flight` a request that is due while so many run is sent when one of them ends; its latency counts from
    when it was due. `system_prompt` tokens begin every prompt, before a class's own prefix.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arrivals: Arrivals
    requests: int | None = Field(None, ge=1)
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_in_flight: int | None = Field(None, ge=1)
    system_prompt: int = Field(0, ge=0)
    classes: dict[str, RequestClass] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_an_end(self) -> Traffic:
        if isinstance(self.arrivals, Closed):
            if self.requests is None:
                raise ValueError("a closed loop needs `requests`: how many its users send in all")
            if self.duration_s is not None or self.max_in_flight is not None:
                raise ValueError("a closed loop has `requests` and `users`; leave duration_s and max_in_flight out")
        elif isinstance(self.arrivals, Ramp):
            if self.duration_s is None:
                raise ValueError("a ramp needs `duration_s`: how long the rate takes from start_rate to end_rate")
            if self.arrivals.start_rate == self.arrivals.end_rate == 0:
                raise ValueError("a ramp from 0 to 0 sends nothing; raise end_rate")
        elif not isinstance(self.arrivals, Trace) and self.requests is None and self.duration_s is None:
            raise ValueError("the load has no end; give `requests`, `duration_s` or both")
        return self

    @model_validator(mode="after")
    def _has_weights(self) -> Traffic:
        total = sum(each.weight for each in self.classes.values())
        if not (total > 0 and math.isfinite(total)):
            raise ValueError(f"the weights of the classes sum to {total:g}; give one of them more than 0")
        return self

    def longest_request(self) -> int:
        """Return the tokens of the longest request of a class that is sent at all."""
        return self.system_prompt + max(each.longest() for each in self.classes.values() if each.weight > 0)


def load_traffic(path: Path) -> Traffic:
    """Return the traffic of a YAML file; files that it names are found beside it.

    Raises:
        UserError: with the file and what is wrong, when it is not there, no YAML or no traffic.
    """
    return read_model(path, Traffic, "traffic file", lambda data: _beside(data, path.parent))


def _beside(data: object, folder: Path) -> object:
    """Return the data with every `file` relative to the folder."""
    if isinstance(data, dict):
        return {
            key: str(folder / value) if key == "file" and isinstance(value, str) else _beside(value, folder)
            for key, value in data.items()
        }
    return data
