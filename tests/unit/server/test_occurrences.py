"""What happens in an instance, told to who listens (services/server/occurrences.py)."""

from __future__ import annotations

from collections.abc import Mapping

from raylay.services.server.occurrences import Occurrences


def test_only_those_who_listen_to_a_kind_are_told() -> None:
    occurrences = Occurrences()
    told: list[tuple[str, Mapping[str, str]]] = []

    def take(kind: str, variables: Mapping[str, str]) -> None:
        told.append((kind, variables))

    assert not occurrences.wanted("connect-client")
    occurrences.tell("connect-client", {"AMPS_CLIENT_NAME": "nobody listens"})
    occurrences.listen(["connect-client", "logon-client"], take)
    assert occurrences.wanted("connect-client")
    occurrences.tell("connect-client", {"AMPS_CLIENT_NAME": "a"})
    occurrences.tell("subscribe", {"AMPS_TOPIC": "other kind"})
    assert told == [("connect-client", {"AMPS_CLIENT_NAME": "a"})]
    occurrences.ignore(take)
    assert not occurrences.wanted("logon-client")
