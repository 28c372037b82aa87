"""The SOW store of simulated instances whose keys are made of fields: production's blocks and their
index, in memory. A crash leaves the blocks, and the index is read from their heads again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from raylay.storage.sow import Changes, MemorySowStore, MemoryTopic
from raylay.storage.sow_blocks import (
    Place,
    TopicBlocks,
    generated,
    generated_all,
    split_entries,
)


class BlockTopic(MemoryTopic):
    """One topic: records with generated keys in blocks, all other entries as in memory.

    Args:
        kind: the class of its blocks.
        blocks: what is on the disk.
    """

    def __init__(self, kind: type[TopicBlocks], blocks: dict[int, bytes]) -> None:
        super().__init__()
        self.on_disk = blocks
        self._kind = kind
        self._blocks = kind()
        self._blocks.load(sorted(blocks.items()))

    def _read(self, place: Place) -> bytes:
        block, offset, length = place
        return self.on_disk[block][offset : offset + length]

    def get(self, key: bytes) -> bytes | None:
        digest = generated(key)
        if digest is None:
            return super().get(key)
        place = self._blocks.index.find(digest)
        return None if place is None else self._read(place)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        digests = generated_all(keys)
        if digests is None:
            return list(map(self.get, keys))
        places = map(self._blocks.index.find, digests)
        return [None if place is None else self._read(place) for place in places]

    def last(self, start: bytes, end: bytes) -> bytes | None:
        found = (super().last(start, end), self._blocks.index.last(start, end))
        return max((key for key in found if key is not None), default=None)

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        keys, places = self._blocks.index.entries(start, end, most)
        made = zip(keys, map(self._read, places), strict=True)
        return sorted((*super().chunk(start, end, most), *made))[:most]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self.chunk(start, end, len(self._entries) + self._blocks.index.count)

    def take(self, entries: Changes, txid: int) -> None:
        made, rest = split_entries(entries)
        plan = self._blocks.plan(made, self.on_disk.__getitem__)
        for number in plan.removed:
            del self.on_disk[number]
        self.on_disk.update(plan.blocks)
        self._blocks.apply(plan, nullcontext())
        super().take(rest, txid)

    def clear(self) -> None:
        super().clear()
        self.on_disk.clear()
        self._blocks = self._kind()

    def crash(self) -> BlockTopic:
        """Returns the topic as another life reads it from the disk."""
        other = BlockTopic(self._kind, dict(self.on_disk))
        tree = MemoryTopic.chunk(self, b"", b"\xff", len(self._entries))
        MemoryTopic.take(other, dict(tree), self.txid)
        return other


class BlockSowStore(MemorySowStore):
    """The topics of one instance.

    Args:
        kind: the class of their blocks.
    """

    def __init__(self, kind: type[TopicBlocks]) -> None:
        super().__init__()
        self._kind = kind

    def topic(self, name: str) -> MemoryTopic:
        return self._topics.setdefault(name, BlockTopic(self._kind, {}))

    def crash(self) -> BlockSowStore:
        other = BlockSowStore(self._kind)
        for name, topic in self._topics.items():
            assert isinstance(topic, BlockTopic)
            other._topics[name] = topic.crash()
        return other
