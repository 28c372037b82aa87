"""The fabric that a command looks at or changes, by whichever way leads to it now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raylay.services.commands.shared.options import running
from raylay.services.commands.shared.printing import echo

if TYPE_CHECKING:
    from raylay.services.fabric.by_interface import FabricAccess


@contextmanager
def controlled(fabric: str, http: list[str] | None) -> Iterator[FabricAccess]:
    """Yields the fabric that a command means, by Ray, or by its instances' administrator's
    interfaces: where these are named, and where Ray's head does not answer. Says on standard error
    which way was taken, if it is not Ray's.

    Args:
        fabric: name of the fabric; empty: the only one that runs.
        http: addresses of interfaces, which are used in place of a fabric of this host.
    """
    entry = None if http else running(fabric)
    # Late: a fabric is looked for without what it takes to ask it.
    from raylay.services.fabric.by_interface import reach

    with reach(entry, http or (), lambda text: echo(f"raylay: {text}", err=True)) as found:
        yield found
