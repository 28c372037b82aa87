"""Error lines for failures that the machine or the input causes."""

from __future__ import annotations

import errno
import os
import re
import sys

from raylay.services.errors import RaylayError

_PLACE = re.compile(r"[^\s:]+:\d+: ")
_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "it belongs to another user, or its mode forbids it",
    errno.EPERM: "it belongs to another user, or its mode forbids it",
    errno.EMFILE: "raise the limit of this shell: ulimit -n",
    errno.ENFILE: "raise the limit of this host: sysctl fs.file-max",
    errno.EROFS: "give a directory on another disk",
}
_OF_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def error_line(error: BaseException) -> str | None:
    """Returns the line, or the lines of a configuration error, for the user who typed the command.
    None: the error is a fault of Raylay's own, and its traceback belongs in a report."""
    if isinstance(error, RaylayError):
        # What stands in a file begins with its place, where editors look for it.
        return str(error) if _PLACE.match(str(error)) else f"raylay: {error}"
    text = _of_the_machine(error)
    return f"raylay: {text}" if text is not None else None


def _of_the_machine(error: BaseException) -> str | None:
    # Late: most errors are ours, and say all there is to say.
    from raylay.services.fabric.cluster.ray_access import first_line

    if type(error).__module__.partition(".")[0] == "ray":
        return f"Ray: {first_line(error)}"
    if isinstance(error, ImportError):
        return (
            f"{first_line(error)}: install Raylay again for {sys.executable}, with what the "
            "command needs (`make setup`, or pip)"
        )
    if isinstance(error, UnicodeError):
        return f"an argument or a file is not text in UTF-8: {error}"
    if isinstance(error, MemoryError):
        return "this host is out of memory"
    if not isinstance(error, OSError):
        return None
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if _is_path(name)]
    # A write says of no file where it failed.
    where = "" if names or error.errno not in _OF_WRITES else "the output, or a file of it"
    parts = [" to ".join(names) or where, error.strerror or first_line(error)]
    advice = _ADVICE.get(error.errno or 0)
    return ": ".join(filter(None, parts)) + (f"; {advice}" if advice else "")


def _is_path(name: object) -> bool:
    return isinstance(name, str | bytes) and bool(name)
