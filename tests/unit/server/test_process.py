"""What the processes of instances do for their interpreter."""

from __future__ import annotations

import gc

from raylay.services.server.process import keep_what_is_there


def test_what_is_there_is_walked_no_more_and_what_comes_is() -> None:
    before = gc.get_freeze_count()
    held = [[number] for number in range(1_000)]
    try:
        keep_what_is_there()
        assert gc.get_freeze_count() >= before + len(held)
        later: list[object] = []
        assert any(each is later for each in gc.get_objects())
        assert not any(each is held for each in gc.get_objects())
    finally:
        gc.unfreeze()
