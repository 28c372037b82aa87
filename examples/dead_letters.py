"""Dead letters: what leaves a queue undone is in another topic, with the reason."""

from __future__ import annotations

import json

from raylay import EPOCH, Fabric, SyncClient

QUEUE = "work"
TOPIC = "orders"
LETTERS = "orders/failed"


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
        "dead_letters": LETTERS,
    }
    topics = [{"name": name, "message_type": "json"} for name in (TOPIC, LETTERS)]
    return Fabric("letters", topics=topics, queues=[queue]).instance("solo")


def consume(client: SyncClient) -> None:
    """A consumer that does good orders, and no others. It takes none that are `late`."""
    with client.queue(QUEUE, filter="/what != 'late'", ack="manual") as work:
        for count, message in enumerate(work, 1):
            what = message.json()["what"]
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


def main(fabric: Fabric) -> list[str]:
    """Five orders, of which one is done."""
    with fabric.sync_client("clerk") as client:
        for what in ("good", "late", "bad", "hopeless", "too much"):
            lives_s = 2 if what == "late" else 0
            client.publish(TOPIC, b'{"what": "%s"}' % what.encode(), expiration_s=lives_s)
        client.flush()
        consume(client)
        letters: dict[str, str] = {}
        for message in client.subscribe(LETTERS, bookmark=EPOCH):
            # The body is that of the order. The reason is in the correlation id.
            said = json.loads(message.correlation)
            letters[message.json()["what"]] = said["reason"]
            if len(letters) == 4:
                break
    return [f"{what}: {reason}" for what, reason in sorted(letters.items())]


if __name__ == "__main__":
    with declare().start() as made:
        print("\n".join(main(made)))
