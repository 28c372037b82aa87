"""The published AMPSConfig examples in `fixtures/amps`, completed with what they leave out.

The files are taken from the documents as they are, `...` lines and comments included. What is added
here, and nothing else: a transaction log, a transport for clients, and around a fragment the rest
of an instance.
"""

from __future__ import annotations

import re
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "amps"
LOG = """
    <TransactionLog>
        <JournalDirectory>journal</JournalDirectory>
        <Topic><Name>topic</Name><MessageType>fix</MessageType></Topic>
        <Topic><Name>^/orders/</Name><MessageType>json</MessageType></Topic>
        <Topic><Name>^/rep_topic</Name><MessageType>fix</MessageType></Topic>
        <Topic><Name>MyStuff-VIEW</Name><MessageType>json</MessageType></Topic>
    </TransactionLog>
"""
CLIENTS = """
        <Transport>
            <Name>clients</Name>
            <Type>tcp</Type>
            <InetAddr>{address}</InetAddr>
        </Transport>
"""
_LEFT_OUT = re.compile(r"^[ \t]*\.\.\..*$", re.MULTILINE)


def published(name: str) -> str:
    """The text of an example, as it is in the documents."""
    return (FIXTURES / f"{name}.xml").read_text(encoding="utf-8")


def completed(name: str, clients: str = "127.0.0.1:9007") -> str:
    """An example with what it leaves out.

    Args:
        name: of the fixture.
        clients: where the added transport for clients listens.
    """
    text = _LEFT_OUT.sub("", published(name))
    transport = CLIENTS.format(address=clients)
    if "<AMPSConfig>" not in text:
        if text.startswith("<Destination>"):
            text = text.replace(
                "</Destination>",
                "<Name>view-server</Name><SyncType>async</SyncType><Transport>"
                "<Type>amps-replication</Type><InetAddr>views:10004</InetAddr></Transport>"
                "</Destination>",
            )
            text = f"<Replication>{text}</Replication>"
        text = f"<AMPSConfig>{text}</AMPSConfig>"
    if not re.search(r"<AMPSConfig>\s*<Name>", text):
        text = text.replace("<AMPSConfig>", "<AMPSConfig><Name>example</Name>", 1)
    if "<Transports>" not in text:
        text = text.replace("</AMPSConfig>", "<Transports></Transports></AMPSConfig>")
    if "<Type>tcp</Type>" not in text:
        text = text.replace("</Transports>", f"{transport}</Transports>", 1)
    return text.replace("</AMPSConfig>", f"{LOG}</AMPSConfig>")
