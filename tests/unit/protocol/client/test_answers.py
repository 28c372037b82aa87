"""What a client is told, beside the golden bytes of tests/golden/test_protocol_session.py."""

from __future__ import annotations

import pytest

from raylay.services.protocol.client.answers import delivery_parts
from raylay.services.protocol.frames import FrameReader, encode_front
from raylay.services.subscriptions.delivery import DeliveryContent

pytestmark = pytest.mark.covers(
    "Replication", "a session is served in any writing that a codec has"
)


def test_a_delivery_is_one_frame_and_its_records_are_not_copied() -> None:
    bodies = [b"x" * 100, b"y" * 7]
    delivery = DeliveryContent(9, 5, 2, 107, True, bodies)
    parts, size_bytes = delivery_parts("s", delivery)
    assert [part for part in parts[1:]] == bodies and parts[1] is bodies[0]
    ((header, body),) = FrameReader().feed(b"".join(parts))
    assert header == {"c": "p", "sub": "s", "n": 2, "ts": 5, "tx": 9, "tr": 1}
    assert (body, size_bytes) == (b"".join(bodies), sum(map(len, parts)))
    assert parts[0] == encode_front(header, 107)
    ((header, _),) = FrameReader().feed(b"".join(delivery_parts("s", DeliveryContent(0, 5))[0]))
    assert header == {"c": "p", "sub": "s", "n": 0, "ts": 5}, "of a topic that is not journaled"
