"""Access of others than its owner to a file or directory, and the command that closes it. Others
are every user of the host, or the members of a group."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Right = Literal["read", "change"]


class PathStep(NamedTuple):
    """One directory on the way to a file, or the file itself at the end."""

    path: str
    mode: int
    group: int


class ExposedPath(NamedTuple):
    """One file or directory that is open to others."""

    path: str
    right: Right
    """The worse one of both."""
    who: str
    change: str
    """The command that mends it."""

    @property
    def text(self) -> str:
        """The finding as a sentence, without a full stop."""
        return f"{self.who} may {self.right} {self.path}"


def exposed(path: Path) -> list[ExposedPath]:
    """Judges an existing file or directory by the modes of all directories above it; empty also
    where there is none, or this user may not look."""
    try:
        steps = steps_to(path)
    except (OSError, RuntimeError):  # What is a circle of links is a RuntimeError.
        return []
    return judge(steps, os.getegid())


def steps_to(path: Path) -> list[PathStep]:
    """The way to a file, from the root on, without links.

    Raises:
        OSError, RuntimeError: It is not there, or cannot be looked at.
    """
    whole = path.resolve()
    return [
        PathStep(str(each), status.st_mode, status.st_gid)
        for each in (*reversed(whole.parents), whole)
        for status in (each.stat(),)
    ]


def judge(steps: Sequence[PathStep], own_group: int) -> list[ExposedPath]:
    """The judgement of `exposed`.

    A directory that others cannot pass closes what is below it. In one that they may write to,
    without the sticky bit, they can put something else in the place of what is there: a group that
    may is none but root's or this user's own.
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
