"""One commit, or a slice of it, on its way through the folds of an instance's features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raylay.services.messages.records import Run

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.sow.topic import SowChange


@dataclass(slots=True)
class CommitBatch:
    """One commit on its way through the folds. Each feature may add to it for the features that
    follow.

    Attributes:
        runs: the committed runs, in the journal's order, including notes.
        last_txid: transaction id up to which everything is on disk.
        changes: changes that the commit made to records of SOW topics, in order.
    """

    runs: list[Run]
    last_txid: int
    changes: list[SowChange] = field(default_factory=list)
