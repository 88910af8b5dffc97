"""Remove from texts what a user does not pass on: secrets, paths, user names, names of hosts and their addresses.

The rules err on the side of removing: a secret is known by its value, by its form (`hf_…`), or by the name before it
(`API_KEY=…`). Texts keep their words, so that a failure can still be understood.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.processes.secrets import MASK, Secrets, is_secret_variable, mask_url_passwords

CUT = "…"
"""Stands for the folders of a path."""

USER, HOST, ADDRESS = "USER", "HOST", "ADDRESS"
GENERIC = frozenset(
    {
        *("admin", "colab", "docker", "jovyan", "kaggle", "localhost", "nobody", "root", "ubuntu", "user"),
        *("cuda", "engine", "model", "nvidia", "qwen", "serve", "server", "tesla", "tuner", "vllm", "worker"),
    }
)
"""Names of users and hosts that name nobody, or words of every study; they stay."""

LEAST_NAME = 4
"""Shorter names of users and hosts are not searched for in texts: they occur by chance."""

LEAST_FOLDER = 5
"""The same for folders, `/` included: `/opt` is no secret."""

_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Tokens of Hugging Face, OpenAI, GitHub, GitLab, Slack and AWS, and JSON web tokens."""

_NAMED = re.compile(
    r"(?P<name>[\w.-]{0,60}(?:key|token|password|passwd|secret|credential)s?)(?P<between>[\"']?(?:\s*[=:]\s*|\s+)[\"'\[(]*)"
    r"(?P<value>\$\{\w+\}|[^\s\"',;&)}\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_PLAIN = re.compile(r"[\d.,]{1,7}|\$\{\w+\}|\*+|none|null|true|false", re.IGNORECASE)
"""Values that are no secret after a name such as `output_token:`: a short number, a reference, nothing."""

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{0,20})://([^\s\"'<>|]+)", re.IGNORECASE)
_PUBLIC = re.compile(
    r"(?:[\w-]+\.)*(?:huggingface\.co|hf\.co|github\.com|vllm\.ai|pytorch\.org|nvidia\.com|python\.org|pypi\.org|ray\.io"
    r"|readthedocs\.io|localhost)|127\.\d+\.\d+\.\d+|0\.0\.0\.0"
)
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]+)*\.[a-z]{2,}\b", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")

_PART = r"[^\s/\"'`,;:()\[\]{}<>|=]"
_PATH = re.compile(rf"(?<![\w./~…-])(?:(?:~[\w.-]*)?/(?:{_PART}+/)*{_PART}*|~[A-Za-z_][\w-]*)")
_CUT_PATH = re.compile(rf"{CUT}(?:/{_PART}+){{2,}}")
_KEPT_PATH = re.compile(r"/(?:usr|lib|lib64|bin|sbin|proc|sys|dev|etc|v1|v2|metrics|health|ping|version)(?:/|$)")
_PACKAGES = "/site-packages/"
_OF_USERS = re.compile(rf"/(?:home|Users)/({_PART}+)")


def users_in(texts: Iterable[str]) -> set[str]:
    """Return the names of users whose home folders the texts name."""
    return {name for text in texts for name in _OF_USERS.findall(text)}


@dataclass(frozen=True)
class PrivateTexts:
    """Texts without what is private.

    Attributes:
        secrets: name to value of what no text may contain.
        folders: paths of which no part may remain.
        users: names of users.
        hosts: names of hosts.
    """

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    folders: Collection[str] = ()
    users: Collection[str] = ()
    hosts: Collection[str] = ()

    def clean(self, text: str) -> str:
        """Return the text without secrets, folders, addresses, and names of users and hosts."""
        text = _without_credentials(self.exact(text))
        text = _URL.sub(_public_url, text)
        text = _IPV4.sub(ADDRESS, _MAIL.sub(f"{USER}@{HOST}", text))
        text = _CUT_PATH.sub(_last_part, _OF_USERS.sub(CUT, _PATH.sub(_last_part, text)))
        for names, word in ((self.users, USER), (self.hosts, HOST)):
            text = self._without_names(text, names, word)
        return text

    def exact(self, text: str) -> str:
        """Return the text without the values of secrets and the folders, as they are written."""
        text = Secrets(self.secrets).redact(text)
        for folder in self._folders:
            text = re.sub(rf"{re.escape(folder)}(?=[/\"'`\s,;:)\]}}<]|$)", CUT, text)
        return text

    def walk(self, value: Any) -> Any:
        """Return a JSON value with every text clean; names of a mapping's members stay."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, Mapping):
            return {key: self.walk(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.walk(each) for each in value]
        return value

    @cached_property
    def _folders(self) -> list[str]:
        found = {folder.rstrip("/") for folder in self.folders}
        return sorted((each for each in found if len(each) >= LEAST_FOLDER), key=len, reverse=True)

    @staticmethod
    def _without_names(text: str, names: Collection[str], word: str) -> str:
        for name in sorted(names, key=len, reverse=True):
            if len(name) >= LEAST_NAME and name.lower() not in GENERIC:
                pattern = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
                text = re.sub(pattern, word, text, flags=re.IGNORECASE)
        return text


def _without_credentials(text: str) -> str:
    """Return the text without tokens, passwords of URLs, and values behind the name of a secret."""
    text = mask_url_passwords(_TOKEN.sub(MASK, text))
    return _NAMED.sub(_masked_value, _BEARER.sub(rf"\1 {MASK}", text))


def _masked_value(match: re.Match[str]) -> str:
    """Return a name with `***` for its value; only a flag's value follows after a blank."""
    name, between, value = match["name"], match["between"], match["value"]
    spaced = not between.strip("\"' \t\n") and not name.startswith("--")
    words = name.lstrip("-").replace("-", "_").replace(".", "_")
    if spaced or _PLAIN.fullmatch(value) or not is_secret_variable(words):
        return match[0]
    return f"{name}{between}{MASK}"


def _public_url(match: re.Match[str]) -> str:
    """Return a URL as it is on a public host or this machine, else its scheme alone."""
    scheme, rest = match.groups()
    if scheme.lower() == "file":
        return f"file:{rest}"
    place = rest.partition("/")[0].rpartition("@")[2].partition(":")[0]
    return match[0] if _PUBLIC.fullmatch(place) and "@" not in rest else f"{scheme}://{CUT}"


def _last_part(match: re.Match[str]) -> str:
    """Return the last part of an absolute path; that of a package from the package on, and a system's as it is."""
    path = match[0]
    parts = path.rstrip("/").split("/")
    if (len(parts) <= 2 and not path.startswith("~")) or _KEPT_PATH.match(path):
        return path  # also a division, or a route of a server such as /health
    if _PACKAGES in path:
        return CUT + path[path.index(_PACKAGES) :]
    is_home = len(parts) == 1 or (len(parts) == 3 and parts[1] in ("home", "Users"))
    return CUT if is_home else f"{CUT}/{parts[-1]}"
