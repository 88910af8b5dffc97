"""Recognise secrets, and keep their values out of everything that is stored, printed or in a process's arguments.

A secret is stored as a reference to an environment variable, `${NAME}`. The worker expands references when it starts a
server, and the exported script when it is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A reference to an environment variable, in the value of a variable or an argument of a server."""

MASK = "***"
_SECRET_WORD = re.compile(r"(?:KEYS?|TOKEN|PASSWORDS?|PASSWD|SECRETS?|CREDENTIALS?)$")
_URL_PASSWORDS = (
    re.compile(r"(?<=://)([^\s/@:]*:)([^\s/@]+)(?=@)"),  # scheme://user:password@host
    re.compile(r"([?&][\w.-]*pass\w*=)([^&\s]+)"),  # …?sslpassword=password
)
_LEAST_LENGTH = 6
"""Shorter values are not searched for in texts: they occur by chance."""


def referenced(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of the variables that the texts refer to."""
    return frozenset(name for text in texts for name in REFERENCE.findall(text))


def is_secret_variable(name: str) -> bool:
    """Return whether the name says that the variable is a secret: `HF_TOKEN`, `OPENAI_APIKEY`, not `MAX_TOKENS`."""
    return any(_SECRET_WORD.search(word) for word in name.upper().split("_"))


def is_secret_flag(flag: str) -> bool:
    """Return whether the name says that the flag is a secret: `--api-key`, not `--long-prefill-token-threshold`."""
    return _SECRET_WORD.search(re.split(r"[-_.]", flag.upper())[-1]) is not None


def mask_url_passwords(text: str) -> str:
    """Return the text with `***` for the passwords of its URLs."""
    for pattern in _URL_PASSWORDS:
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def url_passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in a text that are no references."""
    found = [match[2] for pattern in _URL_PASSWORDS for match in pattern.finditer(text)]
    return [password for password in found if not REFERENCE.fullmatch(password)]


@dataclass(frozen=True)
class Secrets:
    """The values of the environment variables that a study refers to; its text does not show them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def expand(self, text: str) -> str:
        """Return the text with the values for the references."""
        return REFERENCE.sub(lambda match: self.values.get(match[1], match[0]), text)

    def expand_all(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the texts with the values for the references."""
        return tuple(map(self.expand, texts))

    def redact(self, text: str) -> str:
        """Return the text with the references for the values."""
        for name, value in self._longest_first():
            text = text.replace(value, f"${{{name}}}")
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        """Return the bytes with the references for the values."""
        for name, value in self._longest_first():
            data = data.replace(value.encode(), f"${{{name}}}".encode())
        return data

    def _longest_first(self) -> list[tuple[str, str]]:
        found = [(name, value) for name, value in self.values.items() if len(value) >= _LEAST_LENGTH]
        return sorted(found, key=lambda pair: -len(pair[1]))


NO_SECRETS = Secrets()


def shell_word(text: str, names: Collection[str]) -> str:
    """Return a word quoted for a shell, which expands the references to the variables `names` and nothing else."""
    parts: list[str] = []
    position = 0
    for match in REFERENCE.finditer(text):
        if match[1] in names:
            parts += [text[position : match.start()], match[0]]
            position = match.end()
    if not parts:
        return shlex.quote(text)
    literals = [*parts[::2], text[position:]]
    quoted = [shlex.quote(literal) if literal else "" for literal in literals]
    joined = zip(quoted[:-1], parts[1::2], strict=True)
    return "".join(f'{literal}"{reference}"' for literal, reference in joined) + quoted[-1]
