"""`systemd`: a unit. Quoting and escapes are those of systemd.syntax(7) and systemd.service(5)."""

from __future__ import annotations

import re

from search_spaces.schema import VLLM
from tuner.engines.tensorrt_llm.options import FILE_FLAG
from tuner.export.deployment import Deployment
from tuner.export.formats.document import PORT, File, heading, installed_notes, reads_hub, refused, split_references
from tuner.export.quoting import VARIABLE_NAME, byte_escapes
from tuner.processes.secrets import referenced

FORMAT = "systemd"
_UNIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the unit and, for a program that reads one, the file of options; secrets are in the file /etc/STEM.env.

    Raises:
        SettingError: for a variable that a unit cannot set.
    """
    stem = stem if _UNIT_NAME.fullmatch(stem) else deployment.name
    title = f"systemd unit of the {deployment.program.title} server of a tuner study."
    notes = [f"start it: cp {stem}.service /etc/systemd/system/ && systemctl enable --now {stem}"]
    if deployment.references:
        lines = ", ".join(f"{name}=…" for name in sorted(deployment.references))
        notes.insert(0, f"first write the secrets to /etc/{stem}.env, readable by root only: {lines}")
    options = deployment.options
    if options is not None:
        notes.insert(0, f"first copy the options, which the server reads: cp {stem}.yaml /etc/")
    if reads_hub(deployment):
        notes.append(f"if the model is gated, write HF_TOKEN=… to /etc/{stem}.env, readable by root only")
    notes += installed_notes(deployment)
    if deployment.model_folder is not None:
        notes.append(f"the unit's user must be able to read {deployment.model_folder}")
    unit = "\n".join([*_unit(deployment), *_service(deployment, stem)])
    files = () if options is None else (File(options, suffix=".yaml"),)
    return (File(heading(deployment, title, notes) + unit), *files)


def quoted(word: str, references: frozenset[str] = frozenset(), *, expanded: bool = True) -> str:
    """Return a word of a unit's setting; a reference to one of the variables is expanded by systemd.

    Args:
        word: the word.
        references: the variables.
        expanded: whether systemd expands `$` in the setting, as in `ExecStart=`.
    """
    text = "".join(
        f"${{{part}}}" if is_name else _escaped(part, expanded=expanded)
        for is_name, part in split_references(word, references)
    )
    return text if _PLAIN.fullmatch(word) else f'"{text}"'


def _escaped(text: str, *, expanded: bool) -> str:
    doubled = {"%": "%%", "\\": "\\\\", '"': '\\"', **({"$": "$$"} if expanded else {})}
    return "".join(doubled.get(c) or (c if c.isprintable() else byte_escapes(c)) for c in text)


def _unit(deployment: Deployment) -> list[str]:
    engine = deployment.program.title
    description = f"{engine} server of tuner study {deployment.study}, trial {deployment.trial}"
    printable = "".join(c if c.isprintable() and c != "\\" else "?" for c in description).replace("%", "%%")
    return [
        "[Unit]",
        f"Description={printable}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
    ]


def _service(deployment: Deployment, stem: str) -> list[str]:
    known = deployment.references
    plain = {name: value for name, value in deployment.variables.items() if not referenced([value]) & known}
    secret = {name: value for name, value in deployment.variables.items() if name not in plain}
    for name in plain:
        if not VARIABLE_NAME.fullmatch(name):
            raise refused(FORMAT, f"a unit cannot set the variable {name!r}")
    cache = f"/var/cache/{stem}"
    caches = {"HF_HOME": f"{cache}/huggingface", "VLLM_CACHE_ROOT": f"{cache}/vllm"}
    own = {"HOME": cache, **(caches if deployment.program.engine == VLLM else {})}
    plain = {**deployment.launcher_variables, **plain}
    return [
        "[Service]",
        "Type=exec",
        *(f"Environment={quoted(f'{name}={value}', expanded=False)}" for name, value in {**own, **plain}.items()),
        *([] if deployment.folder is None else [f"WorkingDirectory={_path(deployment.folder)}"]),
        *_secret_lines(known, stem, optional=reads_hub(deployment)),
        f"ExecStart={' '.join(_start(deployment, secret, stem))}",
        "# the unit is started when the server answers",
        f'ExecStartPost=/bin/sh -c "{_READY_COMMAND if deployment.program.command else _READY}"',
        f"TimeoutStartSec={deployment.start_limit_s}",
        "Restart=on-failure",
        "RestartSec=10",
        "KillMode=mixed",
        "TimeoutStopSec=60",
        "DynamicUser=yes",
        f"CacheDirectory={stem}",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]


_READY = f"until curl -sf -o /dev/null http://127.0.0.1:{PORT}/health; do kill -0 ${{MAINPID}} || exit 1; sleep 1; done"
_READY_COMMAND = _READY.replace("/health;", f"/health || curl -sf -o /dev/null http://127.0.0.1:{PORT}/v1/models;")
"""A server that is no known engine may have no `/health`."""


def _path(folder: str) -> str:
    """Return a path as systemd reads it: `%` is doubled, and there are no quotation marks."""
    if not folder.isprintable() or folder != folder.strip():
        raise refused(FORMAT, f"a unit cannot run in the folder {folder!r}")
    return folder.replace("%", "%%")


def _secret_lines(names: frozenset[str], stem: str, *, optional: bool) -> list[str]:
    if not names:
        return [f"EnvironmentFile=-/etc/{stem}.env"] if optional else []
    checks = [f'ExecStartPre=/usr/bin/test -n "${{{name}}}"' for name in sorted(names)]
    return [f"EnvironmentFile=/etc/{stem}.env", *checks]


def _start(deployment: Deployment, secret: dict[str, str], stem: str) -> list[str]:
    """Return the quoted words of the command; `env` sets the variables that refer to others, which a unit cannot."""
    known = deployment.references
    named = [f"{name}={value}" for name, value in secret.items() if value != f"${{{name}}}"]
    program = deployment.executable or deployment.program.name
    alone = program.startswith("/") and _PLAIN.fullmatch(program) and not named
    start = [program] if alone else ["/usr/bin/env", *named, program]
    listening = deployment.program.listening(deployment.plain_words, "127.0.0.1", PORT)
    options = () if deployment.options is None else (FILE_FLAG, f"/etc/{stem}.yaml")
    words = [*start, *listening, *options]
    return [quoted(word, known) for word in words]
