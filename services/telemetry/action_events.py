"""The events of actions, a part of the table of events (event_table.py)."""

from __future__ import annotations

from raylay.services.telemetry.event_entry import CatalogueEntry

ACTION_ENTRIES = (
    CatalogueEntry(
        "40-0014",
        "action_failed",
        "warning",
        "A step of an action has failed, and the run of the action has ended with it.",
        "`text` says which step, and why.",
        "Mend the action, or what it needs. Messages are unaffected.",
    ),
    CatalogueEntry(
        "40-0015",
        "action_runs_dropped",
        "warning",
        "Occurrences did not begin an action, because too many of its runs wait.",
        "Its steps are slower than what starts it: `text` says how many.",
        "Make its steps faster, or narrow what starts it.",
    ),
    CatalogueEntry(
        "40-0016",
        "action_chain_stopped",
        "warning",
        "An action was not begun, because many actions had led to it, one by the other.",
        "An action publishes a message, or raises an event, that starts it again.",
        "Let none of them start one that led to it.",
    ),
    CatalogueEntry(
        "40-0017",
        "action_occurrences_dropped",
        "warning",
        "Occurrences were not told to the process that runs the actions, or were lost with it.",
        "Too many waited for it, or it ended with them.",
        "Narrow what starts the actions; see `action_runner_ended`.",
    ),
    CatalogueEntry("40-0018", "action_message", "info", "An action writes a message to the log."),
    CatalogueEntry(
        "40-0019",
        "action_subscription_failed",
        "warning",
        "The subscription whose messages start an action has ended.",
        "Its filter or its topic cannot be used, or its connection has ended: `text` says which.",
        "Mend `Filter` or `Topic` of the action. After a lost connection it begins again by "
        "itself.",
    ),
    CatalogueEntry("40-0020", "action_call", "info", "An action changes something here: `call`."),
    CatalogueEntry(
        "40-0021",
        "action_runner_ended",
        "warning",
        "The process that runs the actions has ended, and another one is started.",
        "It was killed, or failed: its log says more. Runs that it had begun or that waited are "
        "lost.",
        "Messages are unaffected. If it happens often, please report its log.",
    ),
    CatalogueEntry(
        "40-0022",
        "action_runner_kill_failed",
        "warning",
        "The process that runs the actions could not be killed.",
        action="Look at the host: the process hangs in the kernel.",
    ),
    CatalogueEntry(
        "40-0023",
        "action_runner_failed",
        "error",
        "The process that runs the actions met a fault and ends.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "40-0024",
        "actions_ended",
        "error",
        "The process that runs the actions has ended with an error.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "40-0025",
        "shut_down_by_action",
        "warning",
        "An action shuts the instance down. It stays down until it is started again.",
        action="`raylay restart` starts it, once the action's reason is gone.",
    ),
    CatalogueEntry(
        "40-0026",
        "security_switched",
        "warning",
        "An action has switched authentication or entitlement of the transports: `text`.",
        "While it is off, clients are let in without it.",
        "See that it is on again as soon as possible.",
    ),
)
