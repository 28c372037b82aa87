"""Access to a file or directory by others than its owner, and the command that ends it. The others
are all users of the host, or the members of a group."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Right = Literal["read", "change"]


class PathStep(NamedTuple):
    """A directory above a file, or the file itself."""

    path: str
    mode: int
    group: int


class ExposedPath(NamedTuple):
    """A file or directory that others may read or change."""

    path: str
    right: Right
    """The more dangerous right that others have: to change is worse than to read."""
    who: str
    """The others, in words: all users of the host, or a group."""
    change: str
    """The command that takes the right from the others."""

    @property
    def text(self) -> str:
        """Returns the finding as a sentence, without a full stop."""
        return f"{self.who} may {self.right} {self.path}"


def exposed(path: Path) -> list[ExposedPath]:
    """Returns what others may access, by the modes of a file or directory and of all directories
    above it. Empty also if the path does not exist, or this user may not examine it."""
    try:
        steps = steps_to(path)
    except (OSError, RuntimeError):  # What is a circle of links is a RuntimeError.
        return []
    return judge(steps, os.getegid())


def steps_to(path: Path) -> list[PathStep]:
    """Returns the directories from the root to a file, and the file, with links resolved.

    Raises:
        OSError, RuntimeError: the path does not exist, or cannot be examined.
    """
    whole = path.resolve()
    return [
        PathStep(str(each), status.st_mode, status.st_gid)
        for each in (*reversed(whole.parents), whole)
        for status in (each.stat(),)
    ]


def judge(steps: Sequence[PathStep], own_group: int) -> list[ExposedPath]:
    """Returns what others may access, by the modes of these steps.

    Nobody reaches an entry below a directory that he may not pass. In a directory that others may
    write to, they can replace entries, unless it has the sticky bit. The group of root and this
    user's own group do not count as others there.
    """
    found = []
    all_pass = group_passes = True
    for step in steps[:-1]:
        if not step.mode & stat.S_ISVTX:
            by_all = all_pass and step.mode & 0o003 == 0o003
            by_group = (
                group_passes and step.mode & 0o030 == 0o030 and step.group not in (0, own_group)
            )
            if by_all or by_group:
                command = f"chmod go-w {shlex.quote(step.path)}"
                found.append(ExposedPath(step.path, "change", _who(by_all), command))
        all_pass = all_pass and bool(step.mode & 0o001)
        group_passes = group_passes and bool(step.mode & 0o011)
    own = steps[-1]
    of_all = own.mode & 0o007 if all_pass else 0
    of_group = own.mode >> 3 & 0o007 if group_passes else 0
    if of_all | of_group:
        is_directory = stat.S_ISDIR(own.mode)
        # Names in a directory are changed by those who may also pass it.
        writes = 0o003 if is_directory else 0o002
        changes = (of_all & writes == writes) or (of_group & writes == writes)
        command = f"chmod {700 if is_directory else 600} {shlex.quote(own.path)}"
        found.append(ExposedPath(own.path, "change" if changes else "read", _who(of_all), command))
    return found


def _who(is_all: int) -> str:
    return "every user of this host" if is_all else "a group"
