"""Filters that work too much, at an instance: those who wrote them are told, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from argon2 import PasswordHasher
from support.attacker import ATTACKER, PASSWORD, TOPIC, VICTIM, VICTIMS_TOPIC, guarded
from unit.expressions.test_work import forget
from unit.server.clients.test_queries import Door, House, ask, bodies_of, frames_until, in_house

from raylay.services.config.transport import CLIENT_TRANSPORT
from raylay.services.expressions import budgets
from raylay.services.expressions.budgets import BURST_STEPS, COMPILE_BURST_STEPS, FilterBudgets
from raylay.services.expressions.work import NEWS, WORK_MAX, EvaluationAccount, give_up
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.security.connection_shares import ShareHolder
from raylay.services.security.logon_turns import network_of
from raylay.services.server.clients import connection
from raylay.services.server.clients.costly_filters import TELL_S, CostlyFilters
from raylay.services.subscriptions.costly import FILTER_TOO_COSTLY, TOO_COSTLY

pytestmark = pytest.mark.covers(
    "Configuration", "filters that work too much end their own subscription"
)

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
GROWING = "/id"
for _ in range(20):
    GROWING = f"REGEXP_REPLACE({GROWING}, '7', '77')"
GROWING += " = 'x'"
"""More than an evaluation may do where the id is 7, little elsewhere."""


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    forget()
    yield
    forget()


def own(name: str) -> str:
    """That filter, as nobody else has written it: what is compiled is kept for who asks again."""
    return f"{GROWING} OR /id = '{name}'"


def is_refusal(sub: str) -> Callable[[Header], bool]:
    return lambda each: each.get("sub") == sub and each.get("reason") == FILTER_TOO_COSTLY


def subscribe(sub: str, filter_: str, bookmark: str = "") -> bytes:
    header: dict[str, Any] = {"c": "subscribe", "sub": sub, "t": "orders", "cid": sub}
    header["o"] = {"filter": filter_}
    return encode_frame(header | ({"bm": bookmark} if bookmark else {}))


def events(house: House, name: str) -> list[dict[str, Any]]:
    return [each for each in house.server.events() if each["event"] == name]


def test_a_subscription_whose_filter_works_too_much_ends_and_others_go_on(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, costly = await house.client("p"), await house.client("costly")
        other = await house.client("other")
        costly.send(subscribe("s", own("live")), subscribe("fine", "/id = 7"))
        await costly.answer_to("fine")
        other.send(subscribe("s", "/id = 7"))
        await other.answer_to("s")
        count, before = 30, NEWS.steps
        await house.publish(door, "p", *({"id": 7, "n": n} for n in range(count)))
        found = await frames_until(costly, is_refusal("s"))
        assert found[-1][0]["text"] == TOO_COSTLY
        assert not [each for each in found if each[0]["c"] == "p" and each[0]["sub"] == "s"]
        assert len(house.server.parts.clients.live) == 2
        # Once it is exhausted nothing more is tried: that is what keeps the turn short.
        assert NEWS.steps - before < 20 * WORK_MAX
        await house.publish(door, "p", {"id": 7, "n": count})
        for reader, name in ((costly, "fine"), (other, "s")):
            got: list[int] = [] if reader is other else numbers(found, name)
            while len(got) < count + 1:
                got += numbers(await frames_until(reader, is_of(name)), name)
            assert got == list(range(count + 1)), name
        (told,) = events(house, FILTER_TOO_COSTLY)
        assert (told["client"], told["subscription"]) == ("costly", "s")
        (given_up,) = events(house, "filter_given_up")
        assert given_up["messages"] >= 1 and given_up["filter"] == own("live")[:200]
        assert house.server.status()["filters_given_up"] >= 1

    in_house(tmp_path, visit)


def test_who_follows_records_ends_too_and_the_same_filter_of_another_topic_does_not(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        door, costly = await house.client("p"), await house.client("costly")
        other = await house.client("other")
        text = own("followed")
        costly.send(ask("f", command="sow_and_subscribe", filter=text))
        await costly.answer_to("f")
        header = {"c": "subscribe", "sub": "s", "t": "plain", "cid": "s", "o": {"filter": text}}
        other.send(encode_frame(header))
        await other.answer_to("s")
        before = NEWS.steps
        await house.publish(door, "p", *({"id": 7, "n": n} for n in range(100)))
        await frames_until(costly, is_refusal("f"))
        assert NEWS.steps - before < 20 * WORK_MAX
        await house.publish(door, "p", {"id": "followed"}, topic="plain")
        found = await frames_until(other, is_of("s"))
        assert not any(map(is_refusal("s"), (header for header, _ in found)))
        assert len(events(house, FILTER_TOO_COSTLY)) == 1

    in_house(tmp_path, visit)


def test_a_replay_ends_at_the_first_message_that_its_filter_gives_up(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        trees = ({"id": 7 if n == 3 else f"few {n}", "n": n} for n in range(5))
        await house.publish(door, "p", *trees)
        any_of = " OR ".join(f"/id = 'few {n}'" for n in range(5))
        door.send(subscribe("r", f"{any_of} OR {GROWING}", "0"))
        found = await frames_until(door, is_refusal("r"))
        assert numbers(found, "r") in ([], [0, 1, 2]), "and none behind what nobody judged"
        door.send(encode_frame({"c": "ping", "cid": "behind"}))
        found = await frames_until(door, lambda each: each.get("cid") == "behind")
        assert numbers(found, "r") == [], "nor behind the refusal"

    in_house(tmp_path, visit)


def test_a_query_is_not_refused_for_what_another_one_was_given_up_for(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", {"id": 7})
        await house.publish(door, "p", {"id": 6}, topic="trades")
        for topic, reason in (("orders", FILTER_TOO_COSTLY), ("trades", None)) * 2:
            door.send(ask("q", topic, filter=own("of two topics")))
            found = await frames_until(
                door, lambda each: each.get("a") == "completed" or "reason" in each
            )
            assert found[-1][0].get("reason") == reason, topic

    in_house(tmp_path, visit)


def test_what_was_given_up_is_told_now_and_then() -> None:
    said: list[dict[str, Any]] = []
    loop = SimpleNamespace(time=lambda: now_s)
    runtime: Any = SimpleNamespace(
        report=lambda event, **told: said.append({"event": event, **told}),
        loop=loop,
        steady_us=lambda: int(now_s * 1e6),
    )
    clients: Any = SimpleNamespace(sessions={}, budgets=FilterBudgets(lambda ends: None))
    filters = CostlyFilters(runtime, clients)
    effort, now_s = EvaluationAccount("/a LIKE 'b'"), 100.0
    for passed_s, given_up, told in ((0, 1, 1), (TELL_S - 1, 2, 0), (1, 3, 5), (TELL_S, 0, 0)):
        now_s += passed_s
        for _ in range(given_up):
            give_up(effort)
        said.clear()
        filters.check()
        expected = {"event": "filter_given_up", "filter": effort.text, "messages": told}
        assert said == [expected] * bool(told)


def is_of(name: str) -> Callable[[Header], bool]:
    return lambda each: each["c"] == "p" and each["sub"] == name


def numbers(found: list[Any], name: str) -> list[int]:
    return bodies_of([each for each in found if is_of(name)(each[0])])


def test_a_replay_whose_filter_works_too_much_ends_before_it_passes_over_anything(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        door, costly = await house.client("p"), await house.client("costly")
        other = await house.client("other")
        wanted = [n for n in range(200) if n % 10 == 0]
        trees = ({"id": f"replay {n}" if n % 10 == 0 else 7, "n": n} for n in range(200))
        await house.publish(door, "p", *trees)
        any_of = " OR ".join(f"/id = 'replay {n}'" for n in wanted)
        costly.send(subscribe("r", f"{any_of} OR {GROWING}", "0"))
        other.send(subscribe("r", any_of, "0"))
        found = await frames_until(costly, is_refusal("r"))
        got = numbers(found, "r")
        assert got == wanted[: len(got)] and len(got) < len(wanted), "and none behind a gap"
        got = []
        while len(got) < len(wanted):
            got += numbers(await frames_until(other, is_of("r")), "r")
        assert got == wanted
        (told,) = events(house, FILTER_TOO_COSTLY)
        assert (told["client"], told["subscription"]) == ("costly", "r")

    in_house(tmp_path, visit)


def test_a_query_whose_filter_works_too_much_is_refused(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", *({"id": n} for n in range(20)))
        for number, more in enumerate(({}, {"order_by": "/id"}, {"filter_": "TOPIC_NAME() = 'x'"})):
            text = own(f"query {number}") + (" OR TOPIC_NAME() = 'x'" if "filter_" in more else "")
            options = {key: value for key, value in more.items() if key != "filter_"}
            door.send(ask("q", filter=text, **options))
            found = await frames_until(door, lambda each: each.get("reason") is not None)
            assert found[-1][0]["reason"] == FILTER_TOO_COSTLY, found[-1]
            door.send(ask("after", filter="/id = 3"))
            found = await frames_until(
                door, lambda each: each.get("cid") == "after" and each.get("a") == "completed"
            )
            assert [len(records) for header, records in found if header["c"] == "sow"] == [1]

    in_house(tmp_path, visit)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", " OR TOPIC_NAME() = 'none'"])
def test_a_query_whose_filter_works_much_leaves_turns_to_others(tmp_path: Path, more: str) -> None:
    """What is judged in one turn is one record, where that takes milliseconds."""

    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        # Far from what one evaluation may take, but much.
        text = "x" * 200_000
        await house.publish(door, "p", *({"id": n, "s": text} for n in range(30)))
        door.send(ask("q", filter=f"CRC32(/s) = 1 OR /id = 29{more}", batch=1))
        turns = 0

        def is_end(each: Header) -> bool:
            return each["c"] == "group_end"

        waiting = asyncio.ensure_future(frames_until(door, is_end))
        while not waiting.done():
            other.send(encode_frame({"c": "ping", "cid": f"ping {turns}"}))
            await other.answer_to(f"ping {turns}")
            turns += 1
            await asyncio.sleep(0)
        rows = [records for header, records in waiting.result() if header["c"] == "sow"]
        assert len(rows) == 1 and turns >= 10, turns

    in_house(tmp_path, visit)


async def user(house: House, name: str, client: str) -> Door:
    return await house.client(client, CLIENT_TRANSPORT, user_id=name, pw=PASSWORD)


def adding_up(number: int, topic: str, sub: str) -> bytes:
    """Subscribes by a costly filter, which is true: two of them fit into a turn of one user."""
    header = {"c": "subscribe", "sub": sub, "t": topic, "cid": sub}
    return encode_frame(header | {"o": {"filter": f"ARRAY_SUM(/a) > {number}"}})


def test_filters_of_one_user_share_a_budget_over_connections_and_others_have_their_own(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        one, other = await user(house, ATTACKER, "one"), await user(house, ATTACKER, "other")
        victim = await user(house, VICTIM, "victim")
        for number in range(2):
            one.send(adding_up(number, TOPIC, f"{number}"))
            await one.answer_to(f"{number}")
        other.send(adding_up(2, TOPIC, "third"))
        await other.answer_to("third")
        for number in range(3):
            # Of the same texts: what stops for one user goes on for another one.
            victim.send(adding_up(number, VICTIMS_TOPIC, f"{number}"))
            await victim.answer_to(f"{number}")
        message = {"id": 1, "a": list(range(30_000))}
        await house.publish(one, "one", message, topic=TOPIC)
        await frames_until(other, is_refusal("third"))
        one.send(encode_frame({"c": "ping", "cid": "behind"}))
        found = await frames_until(one, lambda each: each.get("cid") == "behind")
        assert len(house.server.parts.clients.live) == 5 and not any(
            is_refusal("0")(h) for h, _ in found
        )
        assert {told["subscription"] for told in events(house, FILTER_TOO_COSTLY)} == {"third"}
        assert len(house.server.parts.clients.budgets) == 2, "one for each user"
        await house.publish(victim, "victim", {"n": 5, "a": [3] * 100}, topic=VICTIMS_TOPIC)
        got: dict[str, list[int]] = {f"{number}": [] for number in range(3)}
        while not all(got.values()):
            found = await frames_until(victim, lambda each: each["c"] == "p")
            for name in got:
                got[name] += numbers(found, name)
        assert set(map(tuple, got.values())) == {(5,)}

    in_house(tmp_path / "data", visit, guarded(tmp_path, CHEAP))


def test_a_query_waits_where_its_user_s_filters_have_worked_much(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", *({"id": n, "n": n} for n in range(3)))
        budget = house.server.parts.clients.budgets.of(
            ShareHolder("", network_of(door.connection.peer))
        )
        budget.spend_slowly(100 * BURST_STEPS)
        door.send(ask("q", filter="/id >= 0"), ask("all"))
        for number in range(20):
            door.send(encode_frame({"c": "ping", "cid": f"{number}"}))
            found = await frames_until(door, is_answer(f"{number}", "processed"))
            assert not [header for header, _ in found if header["c"] == "sow"]
        budget.recover(100 * BURST_STEPS)
        found = await frames_until(door, is_answer("all", "completed"))
        rows = [header["sub"] for header, records in found if header["c"] == "sow" for _ in records]
        assert rows == ["q"] * 3 + ["all"] * 3

    in_house(tmp_path, visit)


def is_answer(command_id: str, kind: str) -> Callable[[Header], bool]:
    return lambda each: (each.get("cid"), each.get("a")) == (command_id, kind)


def test_a_user_s_long_filters_wait_for_one_another_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "COMPILE_STEPS_PER_S", 1)
    monkeypatch.setattr(connection, "FILTER_WAIT_MAX_S", 0.01)
    count = 40

    async def visit(house: House) -> None:
        one, other = await user(house, ATTACKER, "one"), await user(house, ATTACKER, "other")
        victim = await user(house, VICTIM, "victim")
        texts = [" OR ".join(f"/f{n} = '{m}'" for n in range(480)) for m in range(count)]
        one.send(*(subscribing(f"{n}", TOPIC, text) for n, text in enumerate(texts)))
        budget = house.server.parts.clients.budgets.of(ShareHolder(ATTACKER, ""))
        while not budget.compile_wait_s:
            await asyncio.sleep(0)
        clients = house.server.parts.clients
        before = len(clients.live)
        # A short one on another connection does not wait, and a long one of another user neither.
        other.send(subscribing("short", TOPIC, "/a = 1"))
        await other.answer_to("short")
        victim.send(subscribing("long", VICTIMS_TOPIC, texts[-1]))
        await victim.answer_to("long")
        for _ in range(10 * count):
            await asyncio.sleep(0)
        assert len(clients.live) == before + 2 < count, "she waits"
        budget.recover(0, 100 * COMPILE_BURST_STEPS)
        while len(clients.live) < count + 2:
            budget.recover(0, COMPILE_BURST_STEPS)
            await asyncio.sleep(0.001)
        await one.answer_to(f"{count - 1}")
        # Who leaves while he waits leaves nothing.
        one.send(
            *(subscribing(f"more {n}", TOPIC, text + " OR /x = 1") for n, text in enumerate(texts))
        )
        while not budget.compile_wait_s:
            await asyncio.sleep(0)
        one.connection.connection_lost(None)
        while len(clients.live) > 2:
            await asyncio.sleep(0.001)

    in_house(tmp_path / "data", visit, guarded(tmp_path, CHEAP))


def subscribing(sub: str, topic: str, filter_: str) -> bytes:
    header = {"c": "subscribe", "sub": sub, "t": topic, "cid": sub, "o": {"filter": filter_}}
    return encode_frame(header)
