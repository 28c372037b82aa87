"""Commands of a client that are answered once."""

from __future__ import annotations

from raylay.services.client.events import CommandAnswered, CommandWanted, Effect, SendFrame
from raylay.services.client.pending_commands import PendingCommands
from raylay.services.errors import CommandFailed, ConnectionLost


def asked(commands: PendingCommands, number: int, status: str = "") -> list[Effect]:
    effects: list[Effect] = []
    commands.wanted(CommandWanted(number, {"c": "queue_status", "t": "q"}, b"x"), effects, status)
    return effects


def test_a_question_is_answered_by_its_number() -> None:
    commands, effects = PendingCommands(), []  # type: ignore[var-annotated]
    (first,), (second,) = asked(commands, 1), asked(commands, 2)
    assert isinstance(first, SendFrame) and isinstance(second, SendFrame)
    assert first.header == {"c": "queue_status", "t": "q", "cid": "c1"} and first.body == b"x"
    answer = {"a": "processed", "cid": "c2", "status": "success"}
    assert commands.answered(answer, b"y", effects)
    assert effects == [CommandAnswered(2, answer, b"y")]
    assert not commands.answered(answer, b"y", effects), "once"
    assert not commands.answered({"cid": "h1"}, b"", effects), "somebody else's"
    assert not commands.answered({}, b"", effects)


def test_a_refusal_is_an_error() -> None:
    commands, effects = PendingCommands(), []  # type: ignore[var-annotated]
    asked(commands, 1)
    refusal = {"cid": "c1", "status": "failure", "reason": "no_queue", "text": "there is none"}
    commands.answered(refusal, b"", effects)
    (answered,) = effects
    assert isinstance(answered.error, CommandFailed) and answered.error.reason == "no_queue"
    assert "there is none" in str(answered.error)


def test_where_there_is_nobody_to_ask_it_says_so() -> None:
    (answered,) = asked(PendingCommands(), 1, "looking for a server")
    assert isinstance(answered, CommandAnswered)
    assert isinstance(answered.error, ConnectionLost)
    assert str(answered.error) == "queue_status cannot be asked now: looking for a server"


def test_with_the_connection_all_questions_end() -> None:
    commands, effects = PendingCommands(), []  # type: ignore[var-annotated]
    asked(commands, 1)
    asked(commands, 2)
    commands.lose(effects)
    assert [each.number for each in effects] == [1, 2]
    assert all(isinstance(each.error, ConnectionLost) for each in effects)
    effects.clear()
    commands.lose(effects)
    assert not effects
