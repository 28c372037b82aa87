"""Mistakes about SOW topics, planted for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylay.services.core.feature import FeatureRegistry
from raylay.services.core.sow import SowFeature, SowPending
from raylay.services.messages.plain_records import PlainRecords
from raylay.services.messages.records import Record
from raylay.services.sow.staging import LOOKED_MAX, SowStaging
from raylay.services.sow.state import RecordAuthor, SowRecord, SowState, StoredChange, Tombstone
from raylay.storage.sow_blocks import TopicBlocks


class AsksTooSoon(FeatureRegistry):
    """A query does not wait until what was committed is folded."""

    def behind(self) -> None:
        return None


class FreesWhatItLacks(SowFeature):
    """The journal is removed as if the SOW were on disk already."""

    def removable(self, before_txid: int) -> int:
        super().removable(before_txid)
        return before_txid


class UnwrittenIsWritten(SowFeature):
    """A commit of the store that failed counts like any."""

    def not_saved(self) -> None:
        self.saved()


class ClaimsWhatIsToCome(SowFeature):
    """The store says that it has a transaction more than it has."""

    def pending(self) -> SowPending:
        return {name: (entries, txid + 1) for name, (entries, txid) in super().pending().items()}


class ForgetsDeletions(SowState):
    """Nobody remembers who deleted a record."""

    def tombstone(self, key: bytes) -> Tombstone | None:
        return None


class LateOverwrites(SowState):
    """What comes late of a publisher counts like any."""

    def _is_late(
        self, author: RecordAuthor, updated_us: int, key: bytes, previous: SowRecord | None
    ) -> bool:
        return self.last_writer and super()._is_late(author, updated_us, key, previous)


class LastWriterByArrival(SowState):
    """The last one that came counts, whoever asked for what."""

    def __init__(self, *arguments: Any, last_writer: bool = False) -> None:
        super().__init__(*arguments)


class DeletesWhatIsLater(SowState):
    """A deletion takes away what was written after it."""

    def delete(self, key: bytes, *arguments: Any, by: RecordAuthor | None = None) -> Any:
        *before, given = (*arguments, by) if len(arguments) < 4 else arguments
        later = None if given is None else given._replace(stamp_us=1 << 62, sequence=1 << 62)
        change = super().delete(key, *before, by=later)
        if later is not None and given is not None:
            held = self.tombstone(key)
            if held is not None and held.author == later:
                self._set_tombstone(key, held._replace(author=given))
        return change


class MergesIntoWhatIsFolded(SowStaging):
    """Makes of a delta what it would be if nothing were on its way to the disk."""

    def value(self, key: bytes, now_us: int) -> SowRecord | None:
        return self._topic.state.get(key)


class DeletesWhatIsFolded(SowStaging):
    """Deletes what passed a filter among what is on the disk."""

    def _found(self, record: Record, said: dict[str, Any], limit: Any) -> list[bytes]:
        finding = self._finding(record, said, limit)
        finding.take(LOOKED_MAX)
        found = finding.keys(self._topic.state.get, ())
        finding.close()
        return found


class DeletesWhatPassed(SowStaging):
    """Deletes what passed a filter when somebody looked, whatever came since."""

    def _found(self, record: Record, said: dict[str, Any], limit: Any) -> list[bytes]:
        finding = self._findings.get((record.publisher, record.sequence))
        if finding is None:
            return super()._found(record, said, limit)
        finding._changed.clear()
        found = finding.keys(self._topic.state.get, ())
        finding.close()
        return found


class KeepsWhatFailed(SowStaging):
    """What was staged is a value where the append failed."""

    def failed(self, committed_txid: int) -> None:
        gone = [each for each in self._runs if each.run.first_txid > committed_txid]
        self._caught_up()
        over = self._over
        super().failed(committed_txid)
        if gone:
            self._over = over


class KeepsTheFirstOfARun(SowState):
    """Takes the first of the messages of one key in a run that is folded at once."""

    def put_run(
        self, keys: Sequence[bytes], plain: PlainRecords, first_txid: int, received_us: int
    ) -> list[StoredChange]:
        changes = super().put_run(keys, plain, first_txid, received_us)
        seen: set[bytes] = set()
        firsts: dict[bytes, bytes | None] = {}
        for entry, previous, _ in changes:
            if entry in seen:
                firsts.setdefault(entry, previous)
            seen.add(entry)
        for entry, value in firsts.items():
            self._unsaved[entry] = value
        return changes


class ForgetsKills(TopicBlocks):
    """The blocks do not say which records of others are dead."""

    def _packed(
        self, records: list[tuple[bytes, Any, bytearray | None, int]], kills: list[tuple[int, int]]
    ) -> Any:
        return super()._packed(records, [each for each in kills if not each[1]])
