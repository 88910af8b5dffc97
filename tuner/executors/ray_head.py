"""Start the processes of a local Ray, and end them with the standard input.

    python -m tuner.executors.ray_head FOLDER CPUS GPUS

Ray has a small object store (trials send kilobytes; Ray would size it from the machine's memory), no dashboard and no
usage report. The program writes the address of the control store into `FOLDER/address` once Ray has started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray

from storage.errors import first_line

ADDRESS, LOG = "address", "log"
"""Files of the folder: the address of the control store, and what this program prints."""
SESSIONS = "r"
"""Ray opens its temporary folder to all users, so it gets one inside a folder that only this user can enter."""
OBJECT_STORE_BYTES = 80 * 1024 * 1024


def main(folder: Path, cpus: int, gpus: int) -> None:
    """Start Ray, and keep it until the standard input ends. Ray's processes end with the process that started them."""
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=gpus,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=os.fspath(folder / SESSIONS),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except Exception as error:  # noqa: BLE001  Ray raises plain `Exception` if a part of it does not start
        sys.exit(first_line(error))
    new = folder / f"{ADDRESS}.new"
    new.write_text(ray.get_runtime_context().gcs_address)
    new.rename(folder / ADDRESS)
    sys.stdin.read()
    os._exit(0)  # not `ray.shutdown`, which waits for parts that may have ended


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
