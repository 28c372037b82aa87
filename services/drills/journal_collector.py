"""Reads the journals of a fabric's instances for the verdict of a drill, each on its own host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.drills.faults import FaultPlaces
from raylay.services.drills.judgement import read_journal
from raylay.services.drills.loads.sow_load import read_changes
from raylay.services.drills.queue_reading import Read, read_queue
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.messages.records import Run
from raylay.services.messages.topics import DRILL_QUEUE, DRILL_WORK_TOPIC
from raylay.services.verification.laws.sow_topics import SowWrite

Content = TypeVar("Content")


class JournalCollector:
    """Reads journals, and notes those that cannot be read to their end.

    Attributes:
        unread: a sentence for each journal that could not be read to its end.
    """

    def __init__(self, fabric: Fabric, places: FaultPlaces) -> None:
        self._fabric = fabric
        self._places = places
        self.unread: list[str] = []

    def runs(self, name: str, after_txid: int, publishers: Iterable[int]) -> list[Run]:
        """Returns the runs of these publishers that an instance journaled behind `after_txid`;
        none where its host cannot be asked."""
        nothing: list[Run] = []
        found, _ = self._read(name, read_journal, nothing, after_txid, publishers)
        return found

    def queue(self, name: str, after_txid: int, publishers: Iterable[int]) -> Read | None:
        """Returns the content of an instance's journal on the drills' queue behind `after_txid`;
        None where it cannot be read to its end."""
        found, is_whole = self._read(
            name, read_queue, None, after_txid, DRILL_WORK_TOPIC, DRILL_QUEUE, publishers
        )
        return found if is_whole else None

    def sow_writes(
        self, name: str, after_txid: int, publishers: Iterable[int]
    ) -> list[SowWrite] | None:
        """Returns these publishers' writes to the drills' SOW topic in an instance's journal behind
        `after_txid`; None where it cannot be read to its end."""
        found, is_whole = self._read(name, read_changes, None, after_txid, publishers)
        return found if is_whole else None

    def lost_runs(self, name: str, aside: Path) -> list[Run]:
        """Returns the runs in the journal of a disk that an instance lost.

        Args:
            aside: the directory that holds the content of the lost disk.
        """
        runs, why = read_journal(aside, 0, archive=self._archive(name, aside))
        if why:
            self.unread.append(f"the journal that {name} lost cannot be read further: {why}")
        return runs

    def _read(
        self,
        name: str,
        function: Callable[..., tuple[Content, str]],
        without: Content,
        *arguments: Any,
    ) -> tuple[Content, bool]:
        """Returns the result of a reading function, and whether it came to the journal's end;
        `without` where the host cannot be asked."""
        directory = self._places.directory(name)
        found, why = without, ""
        try:
            found, why = self._places.errand(
                name, function, directory, *arguments, self._archive(name, directory)
            )
        except FabricError as error:
            why = str(error)
        if why:
            self.unread.append(f"the journal of {name} cannot be read further: {why}")
        return found, not why

    def _archive(self, name: str, directory: Path) -> Path | None:
        """Returns the directory of the archived segments of an instance whose data is in
        `directory` now."""
        chosen = self._fabric.instance_config(name).journal.archive_directory
        if chosen is None:
            return None
        own = self._fabric.data_directory(name)
        path = Path(chosen)
        return directory / path.relative_to(own) if path.is_relative_to(own) else path
