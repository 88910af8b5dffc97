"""The record of a server's answers, which a database keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any


@dataclass(frozen=True)
class AnswersKey:
    """What determines the answers of a server; it is asked once for each key.

    Attributes:
        weights: digest of the checkpoint's files.
        formats: the server's flags and variables, as words.
        engine: name and version of the engine.
        device: name of the GPU or CPU, whose kernels compute the answers.
        asked: digest of the texts or questions.
    """

    weights: str
    formats: tuple[str, ...]
    engine: str
    device: str
    asked: str

    @property
    def digest(self) -> str:
        """A digest of all fields."""
        words = (self.weights, self.engine, self.device, self.asked, *self.formats)
        return sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class AnswersRecord:
    """What a server answered.

    Attributes:
        key: what determines it.
        model: name of the checkpoint.
        created_at: when the server had answered.
        seconds: from its launch until it was stopped.
        answers: the content, plain JSON.
    """

    key: AnswersKey
    model: str
    created_at: datetime
    seconds: float
    answers: Mapping[str, Any] = field(default_factory=dict)
