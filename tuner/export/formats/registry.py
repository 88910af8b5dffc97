"""The deployment formats by name: those of the tuner, and those that packages register as `tuner.exporters`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from records.plugins import plugins, unusable
from search_spaces.schema import VLLM
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.formats import command, compose, kserve, kubernetes, ray_serve, systemd, vllm_config
from tuner.export.formats.document import File
from tuner.files import write_output
from tuner.settings.study import SCRIPT_FILE

GROUP = "tuner.exporters"
"""The entry point group: each entry is a `Format`, and its name is that of `tuner study export --format`."""

SCRIPT = "script"
"""The format of `best_serve.sh`, which can also verify its server; `tuner.export.render` writes it."""


@dataclass(frozen=True)
class Format:
    """A deployment format.

    Attributes:
        render: returns the files for a deployment and the stem of the path that the user chose.
        file: name of the file, unless the user chooses another.
        what: what the file is, for messages.
        any_engine: whether it starts servers of every engine; otherwise of vLLM only.
    """

    render: Callable[[Deployment, str], tuple[File, ...]]
    file: str
    what: str
    any_engine: bool = False


FORMATS = {
    "command": Format(command.render, "serve_command.sh", "one line for bash", any_engine=True),
    "vllm-config": Format(vllm_config.render, "vllm.yaml", "the file of `vllm serve --config`"),
    "compose": Format(compose.render, "compose.yaml", "a Docker Compose file"),
    "kubernetes": Format(kubernetes.render, "kubernetes.yaml", "a Deployment and its Service"),
    "kserve": Format(kserve.render, "kserve.yaml", "KServe's LLMInferenceService and InferenceService"),
    "ray-serve": Format(ray_serve.render, "ray_serve.yaml", "a Ray Serve configuration"),
    "systemd": Format(systemd.render, "vllm-server.service", "a systemd unit", any_engine=True),
}


@cache
def formats() -> dict[str, Format]:
    """Return every format beside the script by its name.

    Raises:
        PluginError: for a registered format that cannot be loaded, or has the name of another one.
    """
    found = dict(FORMATS)
    for entry, each in plugins(GROUP, Format):
        if entry.name in (SCRIPT, *found):
            raise unusable(entry, "has the name of another format")
        found[entry.name] = each
    return found


def names() -> tuple[str, ...]:
    """Return what `tuner study export --format` takes."""
    return (SCRIPT, *formats())


def format_named(name: str) -> Format | None:
    """Return a format by its name; None for the script.

    Raises:
        SettingError: for an unknown name.
    """
    if name not in names():
        raise SettingError("format", name, f"the formats are {', '.join(names())}", "choose one")
    return formats().get(name)


def default_file(name: str) -> Path:
    """Return the file that a format is written to, unless the user chooses another.

    Raises:
        SettingError: for an unknown name.
    """
    found = format_named(name)
    return Path(SCRIPT_FILE if found is None else found.file)


def write_deployment(
    chosen: Format, deployment: Deployment, path: Path, check: Callable[[Path], None] | None = None
) -> tuple[Path, ...]:
    """Write the files of a format and return their paths, the chosen one first.

    Args:
        chosen: the format.
        deployment: what is written.
        path: of the first file.
        check: called with each path before anything is written; it raises where the path must not be replaced.

    Raises:
        SettingError: if the format cannot hold the deployment; nothing is written then.
        OSError: if a file cannot be written.
    """
    program = deployment.program
    if not chosen.any_engine and program.engine != VLLM:
        able = ", ".join([SCRIPT, *(name for name, each in formats().items() if each.any_engine)])
        rule = f"{chosen.what}: for vLLM's servers only, and the study ran {program.title}"
        raise SettingError("format", None, rule, f"choose one of {able}")
    if deployment.nodes > 1:
        rule = f"{chosen.what}: for one machine only, and the server of this trial ran on {deployment.nodes}"
        raise SettingError("format", None, rule, "choose {format} script, which starts one rank")
    for text in (*deployment.words, *deployment.variables, *deployment.variables.values()):
        try:
            text.encode()
        except UnicodeEncodeError:
            rule = f"{text!a} is not UTF-8 text, which only the script can hold"
            raise SettingError("format", None, rule, "choose {format} script") from None
    files = chosen.render(deployment, path.stem)
    paths = tuple(path if file.suffix is None else path.with_suffix(file.suffix) for file in files)
    if check is not None:
        for target in paths:
            check(target)
    for target, file in zip(paths, files, strict=True):
        write_output(target, file.text, mode=file.mode)
    return paths
