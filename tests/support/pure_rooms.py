"""The pure files: values in, values out, without a socket, clock, disk or actor."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PURE_FOLDERS = tuple(
    f"services/{name}/"
    for name in (
        "actions",
        "messages",
        "core",
        "protocol",
        "replication",
        "subscriptions",
        "expressions",
        "sow",
        "queues",
        "security",
        "capacity",
        "admin",
        "topology",
        "verification",
        "views",
    )
)
PURE_FILES = (
    "services/errors.py",
    "services/client/body_decoder.py",
    "services/client/fabric_types.py",
    "services/client/pending_commands.py",
    "services/client/publishing/deletes.py",
    "services/client/events.py",
    "services/client/failover.py",
    "services/client/publishing/first_recipients.py",
    "services/client/subscriptions/delivered_rows.py",
    "services/client/machine.py",
    "services/client/messages.py",
    "services/client/publishing/outbox.py",
    "services/client/publishing/publish_store.py",
    "services/client/subscriptions/queries.py",
    "services/client/queues/pending_acks.py",
    "services/client/subscriptions/subscription_state.py",
    "services/client/subscriptions/subscription_registry.py",
    "services/commands/top_screen.py",
    "services/drills/measure.py",
    "services/telemetry/catalogue.py",
    "services/telemetry/action_events.py",
    "services/telemetry/event_entry.py",
    "services/telemetry/event_table.py",
)


def is_pure(name: str) -> bool:
    """Tells whether a file, named from the root of the tree, belongs to the pure part."""
    return name in PURE_FILES or name.startswith(PURE_FOLDERS)


def pure_files() -> list[Path]:
    """Lists the pure files, in order."""
    every = sorted((ROOT / "services").rglob("*.py"))
    return [path for path in every if is_pure(path.relative_to(ROOT).as_posix())]
