"""Files that a fabric writes on this machine, and the errors where the machine refuses."""

from __future__ import annotations

import tempfile
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.storage.files import PRIVATE_FILE_MODE, make_directory, write_durably


def write_private_text(path: Path, text: str, mode: int = PRIVATE_FILE_MODE) -> None:
    """Writes a file that only its owner may read, unless the mode says so, and makes its directory.
    It is on the disk when this returns, whole; else what was there before is there still.

    Raises:
        FabricError: it cannot be written; says where and why.
    """
    try:
        make_directory(path.parent)
        write_durably(path, text.encode("utf-8"), mode)  # A record has the key of its fabric.
    except OSError as error:
        raise FabricError(f"{path} cannot be written: {error.strerror}") from None


def temporary_directory(fabric: str) -> str:
    """Returns a new directory for a fabric that was given none.

    Raises:
        FabricError: none can be made.
    """
    try:
        return tempfile.mkdtemp(prefix=f"raylay-{fabric}-")
    except OSError as error:
        raise FabricError(
            f"no temporary directory can be made for fabric {fabric}: {error.strerror}; give one"
        ) from None
