"""Check the places that a study writes to, before anything starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tuner.errors import SettingError, UserError
from tuner.owner import refuse_other_file
from tuner.settings.study import SCRIPT

MINIMUM_FREE_BYTES = 500 * 1024 * 1024


def check_disk(folder: Path) -> None:
    """Refuse a folder that is not writable, or whose disk is too full for logs and results.

    Raises:
        UserError: with the folder and what is free.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if free < MINIMUM_FREE_BYTES:
        raise UserError(
            f"{existing} has {free / 2**20:.0f} MiB free and a study needs {MINIMUM_FREE_BYTES / 2**20:.0f}; "
            "free some, or work in another folder"
        )
    if not os.access(existing, os.W_OK):
        remedy = "work in another folder, or give {storage}"
        raise SettingError("storage", None, f"{existing} is not writable", remedy)


def check_output(output: Path, study: str) -> None:
    """Refuse a path at which the script of a study cannot be written, or that the user chose and has another file.

    Raises:
        SettingError: with the path.
    """
    folder = output.absolute().parent
    if output.is_dir() or not folder.is_dir():
        rule = "this is a folder" if output.is_dir() else f"there is no folder {folder}"
        raise SettingError("output", str(output), rule, "give a file in a folder that exists")
    written = output if output.exists() and not output.is_file() else folder  # a device or a FIFO is written through
    if not os.access(written, os.W_OK):
        raise SettingError("output", str(output), f"{written} is not writable", "choose another file")
    if output != Path(SCRIPT):
        refuse_other_file(output, study)
