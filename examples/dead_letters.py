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
    """A queue whose messages expire when they are given back, or kept too long, for the second
    time."""
    queue = {
        "name": QUEUE,
        "message_type": "json",
        "underlying": TOPIC,
        "lease": "1s",
        "deliveries_max": 2,
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
            elif what == "hopeless":
                message.cancel()
            # Else it is more than this consumer can do, and its lease ends.
            if count == 6:  # The hopeless one comes twice, and so does the one that is too much.
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
    """Five orders, of which one is done."""
    with fabric.sync_client("clerk") as client:
        for what in ("good", "late", "bad", "hopeless", "too much"):
            lives_s = 2 if what == "late" else 0
            client.publish(TOPIC, b'{"what": "%s"}' % what.encode(), expiration_s=lives_s)
        client.flush()
        consume(client)
        write_letters(fabric, client, 4)
        letters: dict[str, str] = {}
        for message in client.subscribe(LETTERS, bookmark=EPOCH):
            letter = json.loads(message.body)
            letters[letter["what"]] = letter["reason"]
            if len(letters) == 4:
                break
    return [f"{what}: {reason}" for what, reason in sorted(letters.items())]


if __name__ == "__main__":
    with declare().start() as made:
        print("\n".join(main(made)))
