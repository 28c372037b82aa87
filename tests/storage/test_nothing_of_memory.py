"""What a process had in memory, a password say, does not come into its files."""

from __future__ import annotations

from pathlib import Path

from raylay.storage.state import LmdbStateStore

SECRET = b"the words that somebody logged on with"
STORAGE = Path(__file__).parents[2] / "storage"


def fill_memory() -> None:
    """Memory that is given back, as that of logons is, with what stood in it."""
    held = [bytearray(SECRET * (size // len(SECRET))) for size in (3000, 4000, 4050, 8100) * 500]
    del held


def test_pages_hold_nothing_of_what_was_in_memory(tmp_path: Path) -> None:
    store = LmdbStateStore(tmp_path / "state.lmdb")
    for number in range(50):
        fill_memory()
        store.put({f"key/{number}": b"value"})
    store.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET[:20] not in path.read_bytes(), path


def test_no_file_is_opened_so_that_it_could() -> None:
    """What LMDB gets of memory is cleared unless `meminit` says that it need not be."""
    for path in STORAGE.glob("*.py"):
        assert "meminit" not in path.read_text(encoding="utf-8"), path
