"""Commands of a client that are answered once, by whichever server is connected: they are not
repeated at another instance."""

from __future__ import annotations

from raylay.services.client.events import CommandAnswered, CommandWanted, Effect, SendFrame
from raylay.services.errors import CommandFailed, ConnectionLost, RaylayError
from raylay.services.protocol.frames import Header


class PendingCommands:
    """The commands that wait for an answer. Owner: the client's machine, as long as it lives."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, str]] = {}
        """Unanswered commands by command id: the number of the request, and the command."""

    def wanted(self, event: CommandWanted, effects: list[Effect], status: str) -> None:
        """Sends a command of the application.

        Args:
            status: reason why no server can be asked; empty: one can.
        """
        command = str(event.header["c"])
        if status:
            error = ConnectionLost(f"{command} cannot be asked now: {status}")
            effects.append(CommandAnswered(event.number, {}, b"", error))
            return
        command_id = f"c{event.number}"
        self._asked[command_id] = event.number, command
        effects.append(SendFrame(event.header | {"cid": command_id}, event.body))

    def answered(self, header: Header, body: bytes, effects: list[Effect]) -> bool:
        """Takes an ack. Returns whether the frame answers one of these commands."""
        asked = self._asked.pop(header.get("cid") or "", None)
        if asked is None:
            return False
        number, command = asked
        error: RaylayError | None = None
        if header.get("status") != "success":
            reason = str(header.get("reason") or "refused")
            error = CommandFailed(command, reason, str(header.get("text") or ""))
        effects.append(CommandAnswered(number, header, body, error))
        return True

    def lose(self, effects: list[Effect]) -> None:
        """Notes that the connection ended: the commands fail."""
        for number, command in self._asked.values():
            error = ConnectionLost(
                f"the connection was lost before {command} was answered: it may have been done or "
                "not; ask again"
            )
            effects.append(CommandAnswered(number, {}, b"", error))
        self._asked.clear()
