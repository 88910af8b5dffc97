"""`command`: one line for a shell."""

from __future__ import annotations

from tuner.engines.tensorrt_llm.options import FILE_FLAG
from tuner.export.deployment import Deployment
from tuner.export.formats.document import File, heading, installed_notes, split_references
from tuner.export.quoting import byte_escapes, quoted_text, quoted_within


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return a script of one line; `stem` is not used."""
    title = f"Starts the {deployment.program.title} server of a tuner study: one line for bash."
    head = heading(deployment, title, installed_notes(deployment))
    return (File(f"#!/usr/bin/env bash\n{head}{command_line(deployment)}\n", mode=0o700),)


def command_line(deployment: Deployment) -> str:
    """Return one line of bash that starts the server; it fails if a variable that it refers to is not set."""
    named = [f"{name}={value}" for name, value in deployment.variables.items()]
    words = [*(["env", *named] if named else []), *deployment.command]
    defaults = [
        f'{name}="${{{name}:-{quoted_within(value)}}}"' for name, value in deployment.launcher_variables.items()
    ]
    line = " ".join([*defaults, *(shell_quoted(word, deployment.references) for word in words)])
    options = deployment.options
    if options is not None:
        line = f"{line} {FILE_FLAG} /dev/fd/7 7<<<{shell_quoted(options)}"
    folder = deployment.folder
    return line if folder is None else f"cd {shell_quoted(folder)} && {line}"


def shell_quoted(word: str, references: frozenset[str] = frozenset()) -> str:
    """Return a word quoted for bash on one line; references to the variables are checked and expanded."""
    parts = [f'"${{{text}:?}}"' if is_name else _literal(text) for is_name, text in split_references(word, references)]
    return "".join(parts) or "''"


def _literal(text: str) -> str:
    if text.isprintable():
        return quoted_text(text)
    special = {"\\": "\\\\", "'": "\\'"}
    return "$'" + "".join(special.get(c) or (c if c.isprintable() else byte_escapes(c)) for c in text) + "'"
