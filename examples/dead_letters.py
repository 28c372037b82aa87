"""Dead letters: what leaves a queue undone is published to another topic, with the reason.

Instances tell of it by events. An event has the bookmark of the message, which is in the log.
"""

from __future__ import annotations

import json
import time

from raylay import EPOCH, Fabric, SyncClient

QUEUE = "work"
TOPIC = "orders"
LETTERS = "orders/failed"
TIMEOUT_S = 30.0


def declare() -> Fabric:
    """A queue whose messages expire: after 2 s, or when they are given back for the second time."""
    queue = {
        "name": QUEUE,
        "message_type": "json",
        "underlying": TOPIC,
        "expiration": "2s",
        "cancels_max": 2,
    }
    topics = [{"name": name, "message_type": "json"} for name in (TOPIC, LETTERS)]
    return Fabric("letters", topics=topics, queues=[queue]).instance("solo")


def consume(client: SyncClient) -> None:
    """A consumer that does good orders, and no others. It takes none that are `late`."""
    with client.queue(QUEUE, filter="/what != 'late'", ack="manual") as work:
        for count, message in enumerate(work, 1):
            what = json.loads(message.body)["what"]
            if what == "good":
                message.acknowledge()
            elif what == "bad":
                message.expire()
            else:
                message.cancel()
            if count == 4:  # The hopeless one comes twice.
                break
    client.flush()


def read(client: SyncClient, bookmark: str) -> bytes:
    """The message with this bookmark."""
    found = client.subscribe(TOPIC, bookmark=EPOCH, filter=f"BOOKMARK() = '{bookmark}'")
    body = next(iter(found)).body
    found.unsubscribe()
    return body


def write_letters(fabric: Fabric, client: SyncClient, count: int) -> None:
    """Publishes so many dead letters, as the events come."""
    end_s = time.monotonic() + TIMEOUT_S
    for event in fabric.events(follow=True, stop=lambda: time.monotonic() > end_s):
        if event["event"] == "queue_message_expired":
            body = json.loads(read(client, event["bookmark"]))
            client.publish(LETTERS, json.dumps(body | {"reason": event["reason"]}).encode())
            count -= 1
            if not count:
                break
    client.flush()


def main(fabric: Fabric) -> list[str]:
    """Four orders, of which one is done."""
    with fabric.sync_client("clerk") as client:
        for what in ("good", "late", "bad", "hopeless"):
            client.publish(TOPIC, b'{"what": "%s"}' % what.encode())
        client.flush()
        consume(client)
        write_letters(fabric, client, 3)
        letters: dict[str, str] = {}
        for message in client.subscribe(LETTERS, bookmark=EPOCH):
            letter = json.loads(message.body)
            letters[letter["what"]] = letter["reason"]
            if len(letters) == 3:
                break
    return [f"{what}: {reason}" for what, reason in sorted(letters.items())]


if __name__ == "__main__":
    with declare().start() as made:
        print("\n".join(main(made)))
