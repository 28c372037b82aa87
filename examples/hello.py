"""One instance: publish a message, read it back from the log."""

from __future__ import annotations

from raylay import EPOCH, Fabric

with (
    Fabric("hello").instance("solo").start() as fabric,
    fabric.sync_client("greeter") as client,
):
    client.publish("greetings", b'{"text": "hello, world"}')
    client.flush()  # returns when the message is on disk
    for message in client.subscribe("greetings", bookmark=EPOCH):
        print(message.bookmark, message.body.decode())
        break
