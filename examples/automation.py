"""Actions: an instance warns of orders that nobody takes, and counts the large ones among them."""

from __future__ import annotations

from raylay import Action, Do, Fabric, If, On, SyncClient

ORDERS = "orders"
WARNINGS = "orders/warnings"

UNTAKEN = Action(
    name="untaken",
    on=On.message_condition_timeout(ORDERS, "json", "500ms", filter="/status = 'new'"),
    do=[
        Do.extract_values("json", {"ID": "/id", "AMOUNT": "/amount"}, "{{AMPS_DATA}}"),
        Do.publish_message(WARNINGS, "json", '{"order": {{ID}}, "warning": "untaken"}'),
        If.condition("{{AMOUNT}} > 1000"),
        Do.execute_event("large"),
    ],
)
"""An order that is `new` for half a second."""
LARGE = Action(
    name="large",
    on=On.execute_event("large"),
    do=[
        Do.increment_counter("large", "COUNT"),
        Do.publish_message(WARNINGS, "json", '{"order": {{ID}}, "warning": "large {{COUNT}}"}'),
        Do.echo_message("order {{ID}} over {{AMOUNT}} waits, the {{COUNT}}. large one"),
    ],
)
"""The action on the event, which has the variables of the action that raised it."""


def declare() -> Fabric:
    """One instance that keeps the last state of each order."""
    orders = {"name": ORDERS, "message_type": "json", "keys": ["/id"]}
    return Fabric(
        "automation", topics=[ORDERS, WARNINGS], sow_topics=[orders], actions=[UNTAKEN, LARGE]
    ).instance("solo")


def publish(client: SyncClient, number: int, status: str, amount: int) -> None:
    """An order, or its next state."""
    order = {"id": number, "status": status, "amount": amount}
    client.publish(ORDERS, order)


def main(fabric: Fabric) -> list[str]:
    """Three orders: one is taken, two are not, and one of those is large."""
    with fabric.sync_client("clerk") as client:
        warnings = client.subscribe(WARNINGS)
        publish(client, 1, "taken", 5_000)
        publish(client, 2, "new", 10)
        publish(client, 3, "new", 9_000)
        found = []
        for message in warnings:
            said = message.json()
            found.append(f"order {said['order']}: {said['warning']}")
            if len(found) == 3:
                break
    return sorted(found)


if __name__ == "__main__":
    with declare().start() as made:
        print("\n".join(main(made)))
