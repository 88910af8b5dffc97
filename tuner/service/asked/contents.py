"""Contents that a submission has instead of files, and the files that they refer to.

A traffic file may name prompts, times and lengths, a search space may include others. Each name has to be one of the
submission's own files, so that no file of the server is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from search_spaces.yaml_file import INCLUDE, YamlError, named_files, parse_yaml
from tuner.errors import SettingError, UserError, as_text
from tuner.service.asked.settings import FILES
from tuner.settings.study import LARGEST_CONTENT, StudySettings

Asked = TypeVar("Asked", bound=StudySettings)
CONTENTS = {"space": ".yaml", "quality_task": ".jsonl"}
"""Settings that are a name or, if they have several lines, the content of a file, and that file's suffix."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_FILES = 20


def files_of(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a submission's settings, by name.

    Raises:
        SettingError: for a name that is not a plain one, or a content that is not a text.
    """
    files = given.get(FILES, {})
    if not isinstance(files, Mapping) or len(files) > MOST_FILES:
        raise SettingError(FILES, None, f"{FILES}: give at most {MOST_FILES} contents by their names")
    for name, content in files.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            rule = "a file's name has up to 100 letters, digits and ._- and no folder"
            raise SettingError(FILES, str(name)[:100], rule, "rename it")
        if not isinstance(content, str) or len(content) > LARGEST_CONTENT:
            raise SettingError(FILES, name, f"its content is not a text of at most {LARGEST_CONTENT:,} characters")
    return dict(files)


def check_contents(settings: StudySettings, files: Mapping[str, str]) -> None:
    """Refuse contents that refer to a file that the submission does not have, and so on for each file they refer to.

    Raises:
        SettingError: with the content that does, or that is not YAML.
    """
    space = settings.space if settings.space is not None and "\n" in settings.space else None
    parts = [*(("workload", text) for text in settings.files), *([] if space is None else [("space", space)])]
    parts += [(FILES, text) for name, text in files.items() if name.endswith((".yaml", ".yml"))]
    seen = {name for name in files if name.endswith((".yaml", ".yml"))}
    while parts:
        field, text = parts.pop()
        for key, name in _named(field, text):
            if not isinstance(name, str) or name not in files:
                rule = as_text(f"{field}: {str(name)[:100]!r} is not one of the submission's files")
                raise SettingError(field, None, rule, "send its content in `files`, under that name")
            if key == INCLUDE and name not in seen:
                seen.add(name)
                parts.append((FILES, files[name]))


def _named(field: str, text: str) -> list[tuple[str, object]]:
    """Return the key and the value of each name of a file in a content."""
    try:
        return list(named_files(parse_yaml(text.encode(), Path(field)).data))
    except YamlError as error:
        raise SettingError(field, None, as_text(f"{field}: {error}")) from None


def with_files(settings: Asked, files: Mapping[str, str], folder: Path) -> Asked:
    """Write contents and files into a folder, and return the settings with the paths of the contents."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _written(folder / name, content)
    paths = [_written(folder / f"workload-{index}.yaml", text) for index, text in enumerate(settings.files)]
    changed: dict[str, Any] = {"workload": tuple(paths)}
    for name, suffix in CONTENTS.items():
        text = getattr(settings, name)
        if text is not None and "\n" in text:
            changed[name] = _written(folder / f"{name}{suffix}", text)
    return replace(settings, **changed)


@contextmanager
def read_only(settings: Asked, files: Mapping[str, str]) -> Iterator[Asked]:
    """Yield the settings with the paths of their contents, which are removed afterwards; errors do not name the folder.

    Raises:
        UserError: as the code of the context, with names of files instead of their paths.
    """
    with TemporaryDirectory(prefix="tuner-asked-") as folder:
        try:
            yield with_files(settings, files, Path(folder))
        except SettingError as error:
            value = error.value.replace(f"{folder}/", "") if isinstance(error.value, str) else error.value
            rule, remedy = (text.replace(f"{folder}/", "") for text in (error.rule, error.remedy))
            raise SettingError(error.field, value, rule, remedy) from None
        except UserError as error:
            raise UserError(str(error).replace(f"{folder}/", "")) from None


def _written(path: Path, content: str) -> str:
    path.write_text(content, encoding="utf-8")
    return str(path)
