"""The AMPSConfig of docs/actions.md: what its examples share, and each of them as a whole file."""

from __future__ import annotations

import re

from support.actions_page import PAGE

FILE = """<AMPSConfig>
  <Name>north</Name>
  <Transports>
    <Transport>
      <Name>clients</Name><Type>tcp</Type><InetAddr>127.0.0.1:{port}</InetAddr>
      <MessageType>json</MessageType>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <JournalArchiveDirectory>archive</JournalArchiveDirectory>
    <Topic><Name>.*</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  {shared}
  <Actions>{actions}</Actions>
  {more}
</AMPSConfig>
"""
_EXAMPLE = re.compile(r"^### (.+?)$.*?^```xml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHARED = re.compile(r"^```xml\n(<SOW>.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """Returns the actions of each example by its title."""
    return dict(_EXAMPLE.findall(PAGE.read_text(encoding="utf-8")))


def whole(actions: str, more: str = "", port: int = 9007) -> str:
    """Returns a whole file with some actions.

    Args:
        more: further elements.
    """
    (shared,) = _SHARED.findall(PAGE.read_text(encoding="utf-8"))
    return FILE.format(shared=shared, actions=actions, more=more, port=port)
