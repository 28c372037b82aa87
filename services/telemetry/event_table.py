"""The table of events: each event that a process reports or logs, with its code, its level, what it
means, why it happens and what to do. `catalogue.py` looks them up.

A code never changes and is never used again: its category is the part before the dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Level = Literal["info", "warning", "error"]
CATEGORIES: Mapping[str, str] = {
    "00": "instance: start, end, faults",
    "07": "clients and transports",
    "0A": "security",
    "1D": "transaction log and disk",
    "1E": "bootstrap",
    "21": "links to destinations",
    "22": "links from other instances",
    "23": "replay and subscriptions",
    "24": "SOW topics and queries",
    "31": "queues",
    "40": "processes beside the instance",
    "50": "moved instances",
    "60": "drills",
}
"""Categories of codes, by their number in hexadecimal."""
NOTHING_TO_DO = "Nothing needs to be done."


class CatalogueEntry(NamedTuple):
    """One event.

    Attributes:
        code: category, dash, four digits.
        event: name of the event in logs and `raylay events`.
        level: `error`: an operator should look now; `warning`: the work goes on, but not as it
            should.
        what: what happened, as a sentence.
        why: usual causes; empty: the event itself says it.
        action: what to do.
    """

    code: str
    event: str
    level: Level
    what: str
    why: str = ""
    action: str = NOTHING_TO_DO


ENTRIES = (
    # -- 00: the instance ----------------------------------------------------------------------
    CatalogueEntry("00-0001", "started", "info", "The instance has started and serves."),
    CatalogueEntry(
        "00-0002",
        "ready",
        "info",
        "The instance admits clients.",
        "It is the first of its group, or it has caught up with a peer.",
    ),
    CatalogueEntry(
        "00-0003",
        "admitted",
        "warning",
        "The instance admits clients although no peer of its group has sent its messages yet.",
        "An operator asked for it (`raylay admit`).",
        "If a peer held acknowledged messages that are missing here, they come when it is back.",
    ),
    CatalogueEntry(
        "00-0004",
        "cannot_start",
        "error",
        "The instance cannot start, and tries again.",
        "A port is in use, another process has the data directory, a file or a value is wrong: "
        "`text` says which.",
        "Do what `text` says; the next attempt follows within five seconds.",
    ),
    CatalogueEntry(
        "00-0005",
        "fatal",
        "error",
        "A fault has ended the instance: going on could have acknowledged messages that are not "
        "in the journal.",
        "A bug in Raylay, or a disk that cannot be used.",
        "The instance is started again and recovers from its disk. Please report `text` with the "
        "lines before it.",
    ),
    CatalogueEntry(
        "00-0006",
        "retired",
        "warning",
        "The instance has ended for good: its data directory belongs to an earlier place.",
        "The instance was moved, and its successor runs elsewhere.",
        "Remove the directory when its successor has all messages (`raylay fabric`).",
    ),
    CatalogueEntry(
        "00-0007",
        "went_back",
        "error",
        "The data directory is an older copy of itself: the instance begins anew as another "
        "incarnation.",
        "A snapshot or a backup was restored.",
        "The instance takes what it lacks from its peers. Restore copies only together with the "
        "steps of docs/journal.md.",
    ),
    CatalogueEntry(
        "00-0008",
        "data_directory_copied",
        "warning",
        "The data directory was copied: the instance begins anew as another incarnation.",
        "Two instances must never have one identity.",
        "Nothing is lost: it takes from its peers what it lacks.",
    ),
    CatalogueEntry(
        "00-0009",
        "address_changed",
        "info",
        "The instance's node has another address, and the instance listens there.",
    ),
    CatalogueEntry(
        "00-0010",
        "clock_set",
        "warning",
        "The host's clock was set.",
        "Somebody, or a time service, changed it by `by_s` seconds.",
        "Ages go on by a steady clock. Find out why it jumped: timestamps of messages follow it.",
    ),
    CatalogueEntry(
        "00-0011",
        "connection_fault",
        "error",
        "A bug in Raylay ended one connection. Nothing else is affected.",
        action="Please report the event: `at` names the place.",
    ),
    CatalogueEntry(
        "00-0012",
        "connection_error",
        "info",
        "The system reported an error of a socket, whose connection has ended.",
    ),
    CatalogueEntry(
        "00-0013",
        "no_shared_memory",
        "warning",
        "The note of the messages in hand cannot be kept.",
        "The host has no usable shared memory (/dev/shm).",
        "The instance works without it: a message that ends the process is not recognised after "
        "the restart.",
    ),
    CatalogueEntry(
        "00-0014",
        "messages_suspected",
        "error",
        "The process before this one ended while it worked on these messages.",
        "One of them may have ended it.",
        "They are taken one at a time; one that ends this process too is refused. Please report "
        "it, with the message if you can.",
    ),
    CatalogueEntry(
        "00-0015",
        "state_failed",
        "error",
        "The instance's state file could not be written.",
        "The disk is full or broken.",
        "Make room or replace the disk. Messages are safe: the journal is another file.",
    ),
    CatalogueEntry(
        "00-0016",
        "diagnostics_dumped",
        "info",
        "The state of queues, links and clients was written to the log, as an operator asked.",
    ),
    CatalogueEntry("00-0017", "diagnostics", "info", "One line of the requested diagnostics."),
    CatalogueEntry(
        "00-0018",
        "events_missed",
        "warning",
        "Events came too fast to be carried to the console.",
        action="`raylay events`, or the instance's log, has them.",
    ),
    # -- 07: clients and transports --------------------------------------------------------------
    CatalogueEntry("07-0001", "client_connected", "info", "A client has logged on."),
    CatalogueEntry(
        "07-0002",
        "client_disconnected",
        "warning",
        "A client's connection has ended.",
        "`reason` says why: the client left, it was slow, its name is in use, it broke the "
        "protocol, an operator ended it.",
        "If the reason is one of the client's, see its own log.",
    ),
    CatalogueEntry(
        "07-0003",
        "client_offline",
        "warning",
        "A client does not read: what it is to get goes to disk.",
        "It is slow, stopped, or its network is.",
        "See `raylay subscribers`. At its limits it is disconnected.",
    ),
    CatalogueEntry("07-0004", "client_online", "info", "A slow client reads again."),
    CatalogueEntry(
        "07-0005",
        "slow_client",
        "warning",
        "A client that does not read was disconnected.",
        "A limit of its pool was reached; `limit` says which.",
        "Make the client faster, or raise the limit (docs/capacity.md).",
    ),
    CatalogueEntry(
        "07-0006",
        "client_over_share",
        "warning",
        "A client was refused or ended, because its user, its address or all clients together "
        "have too much.",
        "`limit` says which share: connections, or the memory of unfinished frames.",
        "Close connections that nobody uses, or raise the share (docs/capacity.md).",
    ),
    CatalogueEntry(
        "07-0007",
        "publisher_slowed",
        "info",
        "A publisher has too many publishes without a persisted ack: the instance reads from it "
        "more slowly.",
        "A sync destination or the disk is slow.",
        "See which destination has not acknowledged (`raylay status`).",
    ),
    CatalogueEntry("07-0008", "transport_enabled", "info", "A transport listens again."),
    CatalogueEntry(
        "07-0009",
        "transport_disabled",
        "warning",
        "A transport was disabled, and its connections have ended.",
        "An operator asked for it.",
        "Enable it again with `raylay transport enable`; a restart enables it, too.",
    ),
    CatalogueEntry(
        "07-0010",
        "clients_sent_away",
        "error",
        "Clients were disconnected, so that they go to another instance.",
        "The disk has not answered for too long.",
        "Look at the disk (`dmesg`); the instance serves again when it answers.",
    ),
    CatalogueEntry(
        "07-0011",
        "publisher_conflict",
        "warning",
        "A client was refused because another client name has its publisher id; or a link tells "
        "of one elsewhere.",
        "Two names have the same 64-bit hash, which does not happen by chance.",
        "Give one of the two clients another name (docs/security.md).",
    ),
    # -- 0A: security ----------------------------------------------------------------------------
    CatalogueEntry(
        "0A-0001",
        "logon_denied",
        "warning",
        "A client, a link or a user was not let in.",
        "The user, password, token or certificate is wrong, or its module cannot be used: `text` "
        "says which.",
        "Correct it there; if the module failed, mend its file.",
    ),
    CatalogueEntry("0A-0002", "control", "info", "A user controlled the instance."),
    CatalogueEntry(
        "0A-0003",
        "control_refused",
        "warning",
        "A user may not make this control call. Nothing was changed.",
        action="Allow the path in `admin` of the user's permissions, or act as another user.",
    ),
    CatalogueEntry(
        "0A-0004",
        "security_file_failed",
        "error",
        "A file of passwords or permissions is missing or wrong.",
        "Somebody changed or removed it; `text` says which rules apply meanwhile.",
        "Mend the file: it is read again at the next logon.",
    ),
    CatalogueEntry(
        "0A-0005", "security_file_recovered", "info", "A file of a module can be read again."
    ),
    CatalogueEntry(
        "0A-0006",
        "data_exposed",
        "warning",
        "Other users of this host may read or change the data.",
        "The mode of a directory or file.",
        "Run the `chmod` that `text` has.",
    ),
    CatalogueEntry(
        "0A-0007",
        "tls_refused",
        "warning",
        "A TLS handshake failed.",
        "The other side has no certificate, an expired one, one of another CA, or speaks an old "
        "version: `text` says which.",
        "Correct the certificate or the CA on the side that `text` names.",
    ),
    CatalogueEntry("0A-0008", "tls_renewed", "info", "New certificate files are in use."),
    CatalogueEntry(
        "0A-0009",
        "tls_not_renewed",
        "warning",
        "New certificate files cannot be used; the former ones stay in use.",
        "A file is missing, does not fit the key, or is still being written.",
        "Mend the files that `text` names.",
    ),
    CatalogueEntry(
        "0A-0010",
        "tls_files_failed",
        "warning",
        "New certificate files of the administrator's interface cannot be used.",
        "A file is missing or does not fit the key.",
        "Mend the files that `text` names; the former ones stay in use.",
    ),
    # -- 1D: transaction log and disk --------------------------------------------------------------
    CatalogueEntry(
        "1D-0001",
        "storage_failed",
        "error",
        "The journal cannot be written: the instance takes no messages.",
        "The disk is full or broken; `text` has the system's reason.",
        "Make room (`raylay journal remove`) or replace the disk. Acknowledged messages are safe.",
    ),
    CatalogueEntry("1D-0002", "storage_recovered", "info", "The journal can be written again."),
    CatalogueEntry(
        "1D-0003",
        "disk_hangs",
        "error",
        "The disk does not answer.",
        "A device, a controller or a network file system hangs.",
        "Look at the host's kernel log. Acks wait; after the time-out clients are sent away.",
    ),
    CatalogueEntry("1D-0004", "disk_answers", "info", "The disk answers again."),
    CatalogueEntry(
        "1D-0005",
        "front_log_failed",
        "warning",
        "The front log cannot be written: small commits go straight to LMDB and take longer.",
        "The disk is full or broken.",
        "Make room on the disk; nothing is lost.",
    ),
    CatalogueEntry("1D-0006", "front_log_recovered", "info", "The front log is used again."),
    CatalogueEntry(
        "1D-0007",
        "retention_held",
        "warning",
        "The journal is larger than its retention allows.",
        "A reader or a destination still needs the segment that `text` names.",
        "End the reader, or bring the destination back; removing it by force loses its messages.",
    ),
    CatalogueEntry("1D-0008", "retention_goes_on", "info", "Old segments are removed again."),
    CatalogueEntry(
        "1D-0009",
        "run_unreadable",
        "error",
        "The journal holds records that cannot be read; they are passed over.",
        "A damaged file, or a link of the own fabric brought them.",
        "`raylay journal verify` names the file; `raylay journal repair` cuts it.",
    ),
    CatalogueEntry("1D-0010", "journal_action", "info", "A journal action was performed."),
    CatalogueEntry(
        "1D-0011",
        "journal_action_failed",
        "warning",
        "A scheduled compression, archiving or removal of segments failed.",
        "The disk or the archive cannot be written.",
        "Do what `text` says; the next occasion tries again.",
    ),
    CatalogueEntry(
        "1D-0012",
        "messages_unavailable",
        "error",
        "Messages are missing here and can come from no upstream.",
        "Their only copy was lost or removed.",
        "Look for an old copy of the data (`raylay journal salvage`), or publish them again.",
    ),
    CatalogueEntry(
        "1D-0013",
        "messages_maybe_unavailable",
        "warning",
        "Messages that an upstream had removed may be missing here.",
        "The upstream does not know whether another instance still has them.",
        "They come if another upstream has them; else the event `messages_unavailable` follows.",
    ),
    CatalogueEntry(
        "1D-0014",
        "late",
        "warning",
        "A message arrived after a newer one of its publisher.",
        "It took another path, and that path was slower.",
        "Give readers that need strict order a single instance (`raylay fabric` shows paths).",
    ),
    CatalogueEntry(
        "1D-0015",
        "conflict",
        "error",
        "Two messages of one publisher have one number and different contents; the later one was "
        "refused.",
        "A publisher lost its store, or two clients use one name.",
        "Give each client a name of its own, and each store one client.",
    ),
    CatalogueEntry(
        "1D-0016",
        "messages_available_again",
        "info",
        "Messages that counted as unavailable have come.",
    ),
    # -- 1E: bootstrap -----------------------------------------------------------------------------
    CatalogueEntry("1E-0001", "bootstrap_started", "info", "The instance copies its log."),
    CatalogueEntry("1E-0002", "bootstrap_progress", "info", "The copy goes on."),
    CatalogueEntry("1E-0003", "bootstrap_finished", "info", "The copy is complete."),
    CatalogueEntry(
        "1E-0004",
        "bootstrap_failed",
        "warning",
        "A source cannot be copied from.",
        "It cannot be reached, or refuses; `why` says which.",
        "The next source follows; bring one of them up.",
    ),
    CatalogueEntry(
        "1E-0005",
        "bootstrap_begins_again",
        "info",
        "An unfinished copy of an earlier start is dropped, and the copy begins again.",
    ),
    CatalogueEntry(
        "1E-0006", "bootstrap_not_needed", "info", "The data directory is not empty: no copy."
    ),
    CatalogueEntry("1E-0007", "bootstrap_sow", "info", "Records of SOW topics were copied."),
    CatalogueEntry("1E-0008", "bootstrap_serves", "info", "Another instance copies this log."),
    CatalogueEntry("1E-0009", "bootstrap_served", "info", "Another instance has copied this log."),
    CatalogueEntry(
        "1E-0010",
        "bootstrap_refused",
        "warning",
        "Another instance may not copy this log.",
        "It is not entitled, or asks for what this instance does not have.",
        "Do what `text` says at one of the two.",
    ),
    # -- 21: links to destinations -----------------------------------------------------------------
    CatalogueEntry("21-0001", "link_logged_on", "info", "A link has logged on to a server."),
    CatalogueEntry("21-0002", "link_connected", "info", "A link is connected."),
    CatalogueEntry(
        "21-0003",
        "link_disconnected",
        "warning",
        "A link is not connected any more.",
        "The destination ended, its host or the network did; `why` says what is known.",
        "Look at the destination. Acks that wait for it go on when it is back, or after a "
        "downgrade.",
    ),
    CatalogueEntry("21-0004", "link_caught_up", "info", "A destination has all messages."),
    CatalogueEntry(
        "21-0005", "link_direct", "info", "A link handed its connection over to the instance."
    ),
    CatalogueEntry(
        "21-0006",
        "link_refused",
        "warning",
        "The destination refuses the link.",
        "Topics, types, queues or rights of the two do not fit: `text` says which.",
        "Correct the side that is wrong (docs/operations.md, Fix a link that is refused).",
    ),
    CatalogueEntry(
        "21-0007",
        "link_credentials_missing",
        "warning",
        "A link has no credentials for its destination.",
        "Its `authenticator` cannot be used.",
        "Mend what `text` names.",
    ),
    CatalogueEntry(
        "21-0008",
        "link_cannot_read",
        "error",
        "A link's process cannot read the journal.",
        "A file is damaged or was removed.",
        "`raylay journal verify` names it.",
    ),
    CatalogueEntry(
        "21-0009",
        "link_verdicts_not_kept",
        "warning",
        "A link cannot write down what its filters left out: after a restart it reads those "
        "messages again.",
        "The disk is full, or the file that `text` names is damaged.",
        "Make room, or remove that file.",
    ),
    CatalogueEntry(
        "21-0010",
        "downgraded",
        "warning",
        "Acks no longer wait for a destination.",
        "It did not acknowledge in time, or an operator asked for it.",
        "Find out why the destination is slow. Messages that it lacks are on fewer disks until "
        "it has them.",
    ),
    CatalogueEntry("21-0011", "upgraded", "info", "Acks wait for a destination again."),
    CatalogueEntry(
        "21-0012",
        "downgrade_refused",
        "warning",
        "A destination was not downgraded, because too few would remain sync.",
        "`min_sync_destinations` of the downgrade policy.",
        "Bring another sync destination back, or downgrade with --force.",
    ),
    CatalogueEntry(
        "21-0013",
        "messages_lost_to_destination",
        "error",
        "Retention removed messages that a destination has not stored.",
        "The destination was away for longer than the journal reaches back.",
        "Start the destination with an empty data directory and a bootstrap.",
    ),
    CatalogueEntry(
        "21-0014",
        "several_servers",
        "warning",
        "More than one instance answers at an address of a destination.",
        "A load balancer, or a name with several addresses.",
        "Say so with `wide_ip: true`.",
    ),
    CatalogueEntry(
        "21-0015",
        "link_process_ended",
        "warning",
        "The process of a link has ended, and another one is started.",
        "It was killed, or failed: `why` and its log say more.",
        "If it happens often, please report its log.",
    ),
    CatalogueEntry(
        "21-0016",
        "link_failed",
        "error",
        "The process of a link met a fault and ends.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "21-0017",
        "link_kill_failed",
        "warning",
        "The process of a link could not be killed.",
        action="Look at the host: the process hangs in the kernel.",
    ),
    # -- 22: links from other instances ------------------------------------------------------------
    CatalogueEntry("22-0001", "upstream_connected", "info", "Another instance's link connected."),
    CatalogueEntry(
        "22-0002",
        "upstream_disconnected",
        "info",
        "Another instance's link is not connected any more.",
    ),
    CatalogueEntry(
        "22-0003", "upstream_caught_up", "info", "Another instance has sent all its messages."
    ),
    CatalogueEntry(
        "22-0004",
        "upstream_refused",
        "warning",
        "Another instance's link was refused.",
        "Topics, types, queues or rights of the two do not fit, or it broke the protocol: `text` "
        "says which.",
        "Correct the side that is wrong (docs/operations.md, Fix a link that is refused).",
    ),
    CatalogueEntry(
        "22-0005",
        "upstream_not_entitled",
        "warning",
        "A link brought a topic that it may not replicate.",
        "Its user's permissions do not allow the topic.",
        "Allow it in `replicated-topics`, or take it out of the destination.",
    ),
    CatalogueEntry(
        "22-0006",
        "upstream_over_share",
        "warning",
        "A link was refused or ended, because its user, its address or all links together have "
        "too much.",
        "`limit` says which share.",
        "Close connections that nobody uses, or raise the share (docs/capacity.md).",
    ),
    CatalogueEntry(
        "22-0007",
        "topic_passed_over",
        "warning",
        "A link brings a topic that is not in the transaction log here: its messages are not "
        "stored.",
        "The check `txlog` of the destination is left out.",
        "Add the topic here, or take it out of the destination.",
    ),
    CatalogueEntry(
        "22-0008",
        "lacks_unproven",
        "warning",
        "A link says that messages are lost for good, and does not prove that it is of this "
        "fabric: not believed.",
        "It has no fabric key, or another one.",
        "Start both from one fabric, or look who it is.",
    ),
    CatalogueEntry(
        "22-0009",
        "old_copy_unproven",
        "warning",
        "A link speaks of an old copy, and does not prove that it is of this fabric: not believed.",
        "It has no fabric key, or another one.",
        "Start both from one fabric, or look who it is.",
    ),
    CatalogueEntry(
        "22-0010",
        "placements_unproven",
        "warning",
        "A link says where instances live, and does not prove that it is of this fabric: not "
        "believed.",
        "It has no fabric key, or another one.",
        "Start both from one fabric, or look who it is.",
    ),
    # -- 23: replay and subscriptions --------------------------------------------------------------
    CatalogueEntry(
        "23-0001",
        "replay_failed",
        "warning",
        "A replay ended with an error.",
        "A segment cannot be read.",
        "`raylay journal verify` names the file.",
    ),
    CatalogueEntry(
        "23-0002",
        "subscription_overtaken",
        "warning",
        "Retention removed messages that a subscription had not read yet.",
        "The subscriber is slower than the retention allows.",
        "Make it faster, or keep more journal.",
    ),
    CatalogueEntry(
        "23-0003",
        "filter_given_up",
        "warning",
        "A filter was abandoned for messages for which it costs too much.",
        "A regular expression, or a very large message.",
        "Make the filter simpler (docs/filters.md, Limits).",
    ),
    CatalogueEntry(
        "23-0004",
        "event_messages_left_out",
        "warning",
        "More happened at once than the instance publishes on its event topics.",
        "Very many clients connected, subscribed or were refused in one moment.",
        "Subscribers of /AMPS/ClientStatus lack these messages; nothing else is affected.",
    ),
    # -- 24: SOW topics and queries ----------------------------------------------------------------
    CatalogueEntry(
        "24-0001",
        "sow_store_failed",
        "warning",
        "The store of SOW topics cannot be written; changes wait in memory.",
        "The disk is full or broken.",
        "Make room. Nothing is lost: the journal has them.",
    ),
    CatalogueEntry("24-0002", "sow_store_recovered", "info", "The SOW store is written again."),
    CatalogueEntry(
        "24-0003",
        "sow_store_behind",
        "error",
        "Too much waits for the SOW store: the instance takes no messages until it is written.",
        "The disk is too slow or full.",
        "Make room, or look at the disk.",
    ),
    CatalogueEntry("24-0004", "sow_store_caught_up", "info", "The SOW store has caught up."),
    CatalogueEntry(
        "24-0005",
        "sow_store_damaged",
        "warning",
        "The SOW store is damaged and is made anew from the journal.",
        "The disk, or somebody changed the file.",
        "Records from before the start of the journal come from a peer, or are missing: see "
        "`text`.",
    ),
    CatalogueEntry(
        "24-0006",
        "sow_rebuilt",
        "info",
        "The records of a SOW topic were made anew from the journal.",
        "Its definition changed, or its store was damaged.",
    ),
    CatalogueEntry(
        "24-0007",
        "sow_unreadable",
        "warning",
        "The journal holds a message that is no record of its SOW topic.",
        "It was published before the topic was declared, or has no key.",
        "Said once; the status counts them.",
    ),
    CatalogueEntry(
        "24-0008",
        "sow_ahead",
        "warning",
        "The SOW store is ahead of the journal; its records are kept.",
        "The store belongs to another journal: a copy was restored in part.",
        "Restore both files together.",
    ),
    CatalogueEntry(
        "24-0009",
        "sow_gap",
        "warning",
        "Messages between the SOW store and the beginning of the journal are missing.",
        "The store was restored from an older copy.",
        "Start the instance with an empty data directory and a bootstrap.",
    ),
    CatalogueEntry("24-0010", "sow_compacted", "info", "A SOW topic's file was made smaller."),
    CatalogueEntry(
        "24-0011",
        "query_failed",
        "error",
        "A query met a bug in Raylay and was refused. Nothing else is affected.",
        action="Please report the event: it names the place.",
    ),
    # -- 31: queues --------------------------------------------------------------------------------
    CatalogueEntry(
        "31-0001",
        "queue_message_expired",
        "warning",
        "A message left its queue without being acknowledged.",
        "`reason` is `time_limit`, `forced_expire`, `max_cancels` or `max_deliveries`.",
        "The journal still has it: `raylay subscribe --bookmark` shows it.",
    ),
    CatalogueEntry(
        "31-0002", "queue_proxied", "info", "An operator turned proxied transfer on or off."
    ),
    CatalogueEntry(
        "31-0003",
        "queue_rebuilt",
        "info",
        "A queue is made anew from the journal.",
        "Its configuration changed, or its store is damaged.",
    ),
    CatalogueEntry(
        "31-0004",
        "queue_store_damaged",
        "warning",
        "A queue's store is damaged; the queue is made anew from the journal.",
        "The disk, or somebody changed the file.",
        "Nothing is lost. Look at the disk.",
    ),
    CatalogueEntry(
        "31-0005",
        "queue_store_failed",
        "warning",
        "A queue's store cannot be written: the journal grows meanwhile.",
        "The disk is full or broken.",
        "Make room. Nothing is lost.",
    ),
    CatalogueEntry("31-0006", "queue_store_recovered", "info", "A queue's store is written again."),
    CatalogueEntry(
        "31-0007",
        "queue_owner_ended",
        "warning",
        "The process that runs a queue has ended, and another one was started.",
        "It was killed, or failed: its log says more.",
        "Deliveries come a little later. If it happens often, please report its log.",
    ),
    CatalogueEntry(
        "31-0008",
        "queue_owner_kill_failed",
        "warning",
        "The process that runs a queue could not be killed.",
        action="Look at the host: the process hangs in the kernel.",
    ),
    # -- 40: processes beside the instance ---------------------------------------------------------
    CatalogueEntry(
        "40-0001",
        "child_hung",
        "warning",
        "A process beside the instance did not answer for 20 s; it was killed, and another one is "
        "started.",
        "It was stopped, or waits for a disk.",
        "Find out what it waited for.",
    ),
    CatalogueEntry(
        "40-0002",
        "slow_client_buffer_ended",
        "warning",
        "The buffer of slow clients has ended; those that it held are disconnected.",
        "It was killed, or its disk failed.",
        "They connect again and go on where they were.",
    ),
    CatalogueEntry(
        "40-0003",
        "slow_client_buffer_failed",
        "warning",
        "The buffer of slow clients cannot be used.",
        "Its file cannot be written: `text` says why.",
        "Make room, or give `disk_path` another directory.",
    ),
    CatalogueEntry(
        "40-0004",
        "slow_client_buffer_kill_failed",
        "warning",
        "The buffer of slow clients could not be killed.",
        action="Look at the host: the process hangs in the kernel.",
    ),
    CatalogueEntry(
        "40-0005",
        "buffer_failed",
        "error",
        "The buffer of slow clients met a fault and ends.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "40-0006", "admin_interface_serves", "info", "The administrator's interface listens."
    ),
    CatalogueEntry(
        "40-0007",
        "admin_interface_failed",
        "warning",
        "The administrator's interface cannot listen, and tries again.",
        "Its port is in use, or a certificate cannot be read: `text` says which.",
        "End the program that has the port, or give `admin` another one.",
    ),
    CatalogueEntry(
        "40-0008",
        "admin_interface_ended",
        "warning",
        "The process of the administrator's interface has ended, and another one is started.",
        "It was killed, or failed: its log says more.",
        "Messages are unaffected. If it happens often, please report its log.",
    ),
    CatalogueEntry(
        "40-0009",
        "admin_interface_kill_failed",
        "warning",
        "The process of the administrator's interface could not be killed.",
        action="Look at the host: the process hangs in the kernel.",
    ),
    CatalogueEntry(
        "40-0010",
        "statistics_failed",
        "warning",
        "Statistics cannot be kept.",
        "The disk is full, or the file is damaged: `text` says which.",
        "Make room, or move the file away. The interface goes on without history.",
    ),
    CatalogueEntry(
        "40-0011",
        "link_ended",
        "error",
        "The process of a link has ended with an error.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "40-0012",
        "queue_owner_failed",
        "error",
        "The process that runs a queue met a fault and ends.",
        action="The instance starts another one. Please report `text`.",
    ),
    CatalogueEntry(
        "40-0013",
        "admin_topology_failed",
        "warning",
        "The file that tells the administrator's interface the fabric's topology cannot be read.",
        "It is damaged, or of another version.",
        "`raylay apply FILE` writes it again; meanwhile the former topology is shown.",
    ),
    # -- 50: moved instances -----------------------------------------------------------------------
    CatalogueEntry("50-0001", "move_announced", "info", "The others know where it lives now."),
    CatalogueEntry(
        "50-0002",
        "move_not_announced",
        "warning",
        "Another instance could not be told where this one lives now.",
        "It is down, or refuses.",
        "It learns that from another instance, or when this one connects to it.",
    ),
    # -- 60: drills --------------------------------------------------------------------------------
    CatalogueEntry("60-0001", "drill_capacity", "info", "A drill narrowed or restored limits."),
    CatalogueEntry("60-0002", "drill_clock", "info", "A drill set the instance's clock."),
    CatalogueEntry("60-0003", "drill_disk", "info", "A drill filled or freed the disk."),
    CatalogueEntry("60-0004", "drill_line", "info", "A drill impaired or restored a line."),
)
