"""A link of another instance, as tests speak it by hand."""

from __future__ import annotations

from typing import Final

import msgpack

DESCRIPTION: Final[bytes] = msgpack.packb({})
"""The body of its logon: an instance that logs, forwards and defines nothing, so that no check of
its Destination fails."""
