"""The use case of `tuner study report --check`: whether a bundle of somebody else can become a row of the gallery.

Bundles come from strangers: nothing is unpacked, sizes and names are limited, and no control character is printed.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import SettingError, UserError, reason_of
from tuner.results.text import printable
from tuner.use_cases.bundle import CONTENTS, FIRST

_NEEDED = ("trials.csv", "conclusion.json", "hardware.json")
_MOST_BYTES = 64 * 2**20
_COLUMNS = ("number", "round", "kind", "score")


def check_bundle(path: Path) -> list[str]:
    """Return what a bundle says, as lines: card, engine, model, measurements, and the study's conclusion.

    Raises:
        SettingError: if the file cannot be read.
        UserError: if it is no bundle, lacks a file, is too large, is simulated, or has not ended.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            files = _read(path, packed)
        rows = [*csv.DictReader(io.StringIO(files["trials.csv"]))]
        hardware, conclusion = _document(files, "hardware.json"), _document(files, "conclusion.json")
    except OSError as error:
        remedy = "give a bundle that `tuner study report` wrote"
        raise SettingError("check", str(path), f"the file cannot be read: {reason_of(error)}", remedy) from None
    except (EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: no bundle of `tuner study report` ({error}); write it again") from None
    return [printable(line) for line in _lines(path, hardware, conclusion, rows)]


def _read(path: Path, packed: zipfile.ZipFile) -> dict[str, str]:
    """Return the needed files of an archive, by name."""
    names = packed.namelist()
    strange = [name for name in names if name not in CONTENTS and name != FIRST]
    if strange:
        raise UserError(f"{path}: {strange[0]!r} is no file of a bundle; write it again")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} left out, and the gallery needs it; write it again with it")
    if sum(each.file_size for each in packed.infolist()) > _MOST_BYTES:
        raise UserError(f"{path}: more than {_MOST_BYTES >> 20} MiB; write it again with fewer files")
    return {name: packed.read(name).decode("utf-8") for name in _NEEDED}


def _document(files: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for null."""
    found = json.loads(files[name])
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{name} is no JSON object")
    return found or {}


def _lines(
    path: Path, hardware: Mapping[str, Any], conclusion: Mapping[str, Any], rows: list[dict[str, str]]
) -> Iterator[str]:
    if hardware.get("numbers") != "measured":
        raise UserError(f"{path}: its numbers are {hardware.get('numbers')!r}; the gallery has measured ones only")
    absent = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if absent:
        raise UserError(f"{path}: trials.csv has no {', '.join(absent)}; write it again with these columns")
    if not conclusion.get("reason"):
        raise UserError(f"{path}: the study has not ended; continue it with its own command, then write it again")
    rounds = sum(row["kind"] == "confirm" for row in rows)
    found = (hardware.get(name) for name in ("card", "engine", "model"))
    card, engine, model = (each if isinstance(each, dict) else {} for each in found)
    yield f"card          {', '.join(f'{count} × {name}' for name, count in card.items()) or 'not recorded'}"
    yield f"engine        {engine.get('name')} {engine.get('version')}"
    yield f"model         {model.get('name')}"
    yield f"measurements  {len(rows) - rounds} of the search, {rounds} of the finals"
    yield f"conclusion    {conclusion['reason']}"
