"""A fabric that is controlled over its instances' administrator's interfaces, because Ray's head
does not answer or because the user names them; and the choice between this way and Ray's.

    with reach(entry) as fabric:
        fabric.downgrade("NewYork-1", "London")

The commands that look at instances or change one take this way by itself when the head is away:
they are needed most then. What starts, ends or moves instances needs the head.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import quote

from raylay.services.admin.actions import BY_HTTP, action_of, body_of, read_options
from raylay.services.client.credentials import credentials, tls_settings
from raylay.services.configuration.model import FabricSettings, InstanceSettings
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.ask_all import RepeatedAsk, ask_all
from raylay.services.fabric.cluster.ray_access import STATUS_TIMEOUT_S, HeadSilent
from raylay.services.fabric.event_follower import EventAnswer, EventCursors, follow_events
from raylay.services.fabric.interface_client import (
    ANSWER_S,
    InterfaceClient,
    InterfaceSilent,
)
from raylay.services.fabric.plan import FabricRecord, admin_address, instance_config
from raylay.services.fabric.records.registry import RegistryEntry
from raylay.services.fabric.remote_log import RemoteLog
from raylay.services.fabric.transports import client_tls
from raylay.services.net.ray_head import answers_as_head
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import client_context
from raylay.services.security.control import Caller, path_of
from raylay.services.telemetry.kept_log import events_among

HEAD_S = 8.0
"""Time, in seconds, in which Ray's head must give a sign of life, on a busy machine, too."""
HEAD_TOLD_S = 2.0
"""Time, in seconds, after which the user is told that the command waits for Ray's head."""
SHOWN_MAX = 200
HOW_TO_HAVE_ONE = (
    "`admin: {enabled: true}` in the fabric's file and `raylay apply` give it one "
    "(docs/administration.md)"
)


class FabricAccess(Protocol):
    """The methods by which commands use a running fabric, on either way (`Fabric`)."""

    name: str

    @property
    def declared(self) -> FabricSettings:
        """Returns the settings that the fabric runs with."""

    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Returns every instance's own status, or why it cannot be asked.

        Args:
            only: names of the instances that are asked; None: all.
        """

    def events(
        self, *, follow: bool = False, after_us: int = 0, stop: Callable[[], bool] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the events of all instances, oldest first."""

    def control(
        self, name: str, call: str, *, timeout_s: float | None = None, **arguments: Any
    ) -> Any:
        """Makes a control call of one instance, and returns its result."""

    def downgrade(self, name: str, destination: str, *, force: bool = False) -> None:
        """Lets acks of an instance no longer wait for a destination."""

    def upgrade(self, name: str, destination: str) -> None:
        """Lets acks of an instance wait for a destination again."""

    def admit(self, name: str, *, force: bool = False) -> None:
        """Lets an instance admit clients."""

    def proxied(self, name: str, queue: str, *, on: bool = True) -> str:
        """Turns the takeover of a queue's messages on or off."""

    def switch_transport(self, name: str, transport: str, *, on: bool) -> str:
        """Enables or disables a transport."""

    def reset_entitlement(self, name: str, user: str = "") -> int:
        """Makes an instance ask its modules again for the permissions of its users."""


class InterfaceFabric:
    """A running fabric, controlled over its instances' administrator's interfaces. The methods are
    those of `Fabric`; each raises FabricError if an instance does not answer, or refuses.

    Args:
        name: the fabric's name; empty: not known.
        interfaces: the interfaces by instance.
        settings: the fabric's settings; None: not known.
        peers_of: an interface that passes requests on to its peers, for instances that have no
            entry in `interfaces`; None: there is none.
        stopped: instances that `raylay stop` stopped, so that it is no fault if they are silent.
    """

    def __init__(
        self,
        name: str,
        interfaces: Mapping[str, InterfaceClient],
        settings: FabricSettings | None = None,
        peers_of: InterfaceClient | None = None,
        peers: Sequence[str] = (),
        stopped: Collection[str] = (),
    ) -> None:
        self.name = name
        self._stopped = stopped
        self._interfaces = interfaces
        self._settings = settings
        self._peers_of = peers_of
        self._peers = peers

    @property
    def declared(self) -> FabricSettings:
        """Returns the settings that the fabric runs with.

        Raises:
            FabricError: they are not known, because an interface was named and no fabric.
        """
        if self._settings is None:
            raise FabricError(
                "this needs the fabric's settings, which an interface does not tell: name the "
                "fabric with --fabric on a host that knows it, and leave --http out"
            )
        return self._settings

    def interfaces(self) -> list[InterfaceClient]:
        """Returns the interfaces that are known, each once, in the order of the instances."""
        front = [] if self._peers_of is None else [self._peers_of]
        return [*dict.fromkeys((*front, *self._interfaces.values()))]

    # -- looking ---------------------------------------------------------------------------------
    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Returns every instance's own status, or why it cannot be asked.

        Args:
            only: names of the instances that are asked; None: all.
        """
        names = [each for each in self.names() if only is None or each in only]
        told = ask_all(names, self._status_of, STATUS_TIMEOUT_S)
        found = [told[each] if each in told else self._late(each) for each in names]
        return {"fabric": self.name, "directory": "", "instances": found, "left_over": []}

    def names(self) -> list[str]:
        """Returns the names of the instances, as far as they are known."""
        if self._settings is not None:
            return [each.name for each in self._settings.instances]
        return [*dict.fromkeys((*self._interfaces, *self._peers))]

    def _status_of(self, name: str) -> dict[str, Any]:
        try:
            told = self._get(name, "raylay/status.json", STATUS_TIMEOUT_S)
        except FabricError as error:
            return self._silent(name, str(error))
        if not isinstance(told, dict):
            return self._silent(name, f"{name} tells no status")
        return {**self._base(name), "phase": "", "reason": "", **told}

    def _late(self, name: str) -> dict[str, Any]:
        reason = (
            f"the administrator's interface of {name} has not answered within {STATUS_TIMEOUT_S:g} "
            "s: see whether its host and its process run"
        )
        return self._silent(name, reason)

    def _silent(self, name: str, reason: str) -> dict[str, Any]:
        if name in self._stopped:
            return {**self._base(name), "phase": "stopped", "reason": "", "is_stopped": True}
        return {**self._base(name), "phase": "unknown", "reason": reason}

    def _base(self, name: str) -> dict[str, Any]:
        group = "" if self._settings is None else self._settings.instance(name).group
        return {"name": name, "group": group, "ready": False}

    def events(
        self, *, follow: bool = False, after_us: int = 0, stop: Callable[[], bool] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the events of all instances, oldest first; see `Fabric.events`."""
        names = self.names()
        # Set by each look before the threads that read it begin.
        known = EventCursors()
        asking: RepeatedAsk[str, EventAnswer | None] = RepeatedAsk(
            lambda name: self._events_of(name, known), STATUS_TIMEOUT_S
        )

        def look(cursors: EventCursors) -> list[EventAnswer]:
            nonlocal known
            known = cursors
            return [answer for answer in asking.round(names).values() if answer is not None]

        return follow_events(look, follow=follow, after_us=after_us, stop=stop)

    def _events_of(self, name: str, cursors: EventCursors) -> EventAnswer | None:
        process, number = cursors.last(name)
        answer = self._events_behind(name, number)
        if answer is not None and number and answer.process != process:
            # It was started again, and the events that it has told since are numbered from 1.
            answer = self._events_behind(name, 0)
        return answer

    def _events_behind(self, name: str, number: int) -> EventAnswer | None:
        try:
            # Longer than it is waited for: an answer that is late is taken by a later look.
            path = f"raylay/status.json?events_after={number}"
            found = self._get(name, path, 2 * STATUS_TIMEOUT_S)
        except FabricError:
            return None
        if not isinstance(found, dict):
            return None
        process = f"{found.get('pid', 0)}/{found.get('started_us', 0)}"
        return EventAnswer(name, process, found.get("events") or [])

    def log_page(self, name: str, query: str) -> Any:
        """Returns the answer of an instance's interface to a query of `/raylay/log.json`."""
        return self._get(name, f"raylay/log.json?{query}")

    def kept_events(self, name: str, since_us: int = 0) -> Iterator[dict[str, Any]]:
        """Yields the events of an instance in its kept log, the oldest first.

        Args:
            since_us: time from which they are read, in microseconds since 1970.

        Raises:
            FabricError: the interface does not answer, or refuses.
        """
        process = f"&process={quote(name, safe='')}"
        log = RemoteLog(lambda query: self.log_page(name, query + process), since_us)
        return events_among(log.look(), name)

    # -- acting ----------------------------------------------------------------------------------
    def control(
        self, name: str, call: str, *, timeout_s: float | None = None, **arguments: Any
    ) -> Any:
        """Makes a control call of one instance, and returns its result.

        Raises:
            FabricError: the instance cannot be asked, or refuses; or the call needs Ray's head.
        """
        if call not in BY_HTTP:
            raise FabricError(f"{call} of {name} needs Ray's head: wait until it is back")
        path, body = path_of(call, arguments), body_of(call, arguments)
        client, front = self._way_to(name)
        found = client.post(front + path, body, timeout_s or ANSWER_S)
        return found.get("result") if isinstance(found, dict) else None

    def downgrade(self, name: str, destination: str, *, force: bool = False) -> None:
        """Lets acks of an instance no longer wait for a destination."""
        self.control(name, "downgrade", destination=destination, force=force)

    def upgrade(self, name: str, destination: str) -> None:
        """Lets acks of an instance wait for a destination again."""
        self.control(name, "upgrade", destination=destination)

    def admit(self, name: str, *, force: bool = False) -> None:
        """Lets an instance admit clients."""
        known: dict[str, Any] = {}
        if self._settings is not None:
            known["senders"] = self._settings.replicating_to(name)
        self.control(name, "admit", force=force, **known)

    def proxied(self, name: str, queue: str, *, on: bool = True) -> str:
        """Turns the takeover of a queue's messages on or off. Returns a sentence."""
        return str(self.control(name, "enable_proxied" if on else "disable_proxied", queue=queue))

    def switch_transport(self, name: str, transport: str, *, on: bool) -> str:
        """Enables or disables a transport. Returns a sentence."""
        call = "enable_transport" if on else "disable_transport"
        return str(self.control(name, call, transport=transport))

    def reset_entitlement(self, name: str, user: str = "") -> int:
        """Makes an instance ask its modules again for the permissions of its users. Returns the
        number of sessions that ended."""
        return int(self.control(name, "reset_entitlement", of_user=user))

    # -- the way ---------------------------------------------------------------------------------
    def _get(self, name: str, path: str, timeout_s: float = ANSWER_S) -> Any:
        client, front = self._way_to(name)
        return client.get(f"{front}/{path}", timeout_s)

    def _way_to(self, name: str) -> tuple[InterfaceClient, str]:
        """Returns the interface that answers for an instance (its own, or a peer's that passes
        requests on), and the path to put before the request's own."""
        client = self._interfaces.get(name)
        if client is not None:
            return client, ""
        if self._peers_of is not None:
            return self._peers_of, f"/raylay/peer/{quote(name, safe='')}"
        if self._settings is not None:
            self._settings.instance(name)  # raises where there is none of this name
        raise FabricError(
            f"Ray's head does not answer, and instance {name} has no administrator's interface: "
            f"{HOW_TO_HAVE_ONE}"
        )


def call_of_path(path: str, *, force: bool) -> tuple[str, dict[str, Any]]:
    """Returns the control call that a path below `/amps/administrator` names, with its arguments.

    Raises:
        ConfigurationError: the path names no action, or one that cannot be forced.
    """
    found = action_of(f"amps/administrator/{path.strip('/')}")
    if found is None:
        raise ConfigurationError(
            f"{path[:SHOWN_MAX]!r} names no action: docs/administration.md lists them"
        )
    options = read_options(found.call, {"force": True} if force else None)
    return found.call, {**found.details, **options}


# -- which way -------------------------------------------------------------------------------------
@contextmanager
def reach(
    entry: RegistryEntry | None,
    addresses: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[FabricAccess]:
    """Yields a fabric, by Ray where its head answers, else by the instances' interfaces.

    Args:
        entry: the fabric; None: `addresses` say all.
        addresses: interfaces that the user names: they are used whatever the head does.
        tell: function that is called with a phrase that names the interface, where Ray is not used.

    Raises:
        FabricError: no way leads there; says what gives one.
        ConfigurationError: an address is not valid, or the user that the environment names cannot
            be read.
    """
    if addresses:
        fabric = named_interfaces(addresses, tell)
        tell(f"over the administrator's interface at {', '.join(addresses)}")
        yield fabric
        return
    if entry is None:
        raise ConfigurationError("name a fabric, or the address of an interface")
    if _head_answers(entry.address, tell):
        from raylay.services.fabric.fabric import Fabric  # late: it takes all that Ray takes

        with Fabric.attach(entry.name) as attached:
            yield attached
        return
    found, count = interfaces_of(entry)
    tell(
        f"Ray's head at {entry.address} does not answer: asking over the administrator's "
        f"interface, which {count} of {len(found.declared.instances)} instances have; "
        "until it answers, no instance that ends is started again: docs/operations.md, “Live "
        "without Ray's head”"
    )
    yield found


def _head_answers(address: str, tell: Callable[[str], None]) -> bool:
    line = f"Ray's head at {address} does not answer yet: waiting for up to {HEAD_S:g} s"
    telling = threading.Timer(HEAD_TOLD_S, tell, (line,))
    telling.start()
    try:
        return answers_as_head(address, HEAD_S)
    finally:
        telling.cancel()
        telling.join()


def interfaces_of(entry: RegistryEntry) -> tuple[InterfaceFabric, int]:
    """Returns a fabric by its instances' interfaces, as its record on this host knows them, and how
    many instances have one.

    Raises:
        HeadSilent: none has one; says which setting gives it one.
    """
    settings, found = known_interfaces(entry)
    if not found:
        raise HeadSilent(
            f"Ray's head at {entry.address} does not answer, and no instance of fabric "
            f"{entry.name} has an administrator's interface, which needs none: {HOW_TO_HAVE_ONE}. "
            "Wait until the head is back; clients do not need it"
        )
    record = FabricRecord.load(entry.directory)
    stopped = record.stopped if record is not None else ()
    return InterfaceFabric(entry.name, found, settings, stopped=stopped), len(found)


def known_interfaces(entry: RegistryEntry) -> tuple[FabricSettings, dict[str, InterfaceClient]]:
    """Returns a fabric's settings, and the interfaces of those of its instances that have one.

    Raises:
        FabricError: the fabric's record is not there.
        ConfigurationError: the user that the environment names cannot be read.
    """
    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    settings = FabricSettings.from_json(record.settings)
    caller = caller_of_environment()
    found: dict[str, InterfaceClient] = {}
    for instance in settings.instances:
        address = admin_address(settings, record, instance)
        if address:
            context = _context(settings, record, instance)
            found[instance.name] = InterfaceClient(address, caller, context)
    return settings, found


def console_address(entry: RegistryEntry | None, addresses: Sequence[str] = ()) -> str:
    """Returns the URL of the console, at the first instance whose interface answers.

    Args:
        entry: the fabric; None: `addresses` say all.
        addresses: interfaces that the user names.

    Raises:
        FabricError: none answers, or none has an interface; says what to do.
        ConfigurationError: an address is not valid.
    """
    if addresses:
        clients = [
            InterfaceClient(address, context=_context_of_environment(address))
            for address in addresses
        ]
    elif entry is None:
        raise ConfigurationError("name a fabric, or the address of an interface")
    else:
        clients = list(known_interfaces(entry)[1].values())
        if not clients:
            raise FabricError(
                f"no instance of fabric {entry.name} has an administrator's interface, which "
                f"serves the console: {HOW_TO_HAVE_ONE}"
            )
    listening = ask_all(clients, InterfaceClient.listens, STATUS_TIMEOUT_S)
    for client in clients:
        if listening.get(client):
            return f"{client.url}/"
    raise FabricError(
        f"no administrator's interface answers at {', '.join(each.url for each in clients)}: "
        "`raylay status` says which instances run"
    )


def _context(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> ssl.SSLContext | None:
    """Returns the TLS context for an instance's interface; None: it speaks plain HTTP."""
    interface = instance_config(settings, record, instance).interface
    if interface is None or interface.tls is None:
        return None
    tls = client_tls(settings, record.directory) or TlsConfig()
    return client_context(tls, f"the administrator's interface of {instance.name}")


def _context_of_environment(address: str) -> ssl.SSLContext | None:
    """Returns the TLS context for an interface that the user names; None: it speaks plain HTTP, or
    the environment has no TLS files and the system's authorities count."""
    found = tls_settings()
    if found is None or address.startswith("http://"):
        return None
    return client_context(
        TlsConfig.of(dict(found), address), f"the administrator's interface at {address}"
    )


def named_interfaces(
    addresses: Sequence[str], tell: Callable[[str], None] = lambda text: None
) -> InterfaceFabric:
    """Returns the instances at these addresses, and those whose interfaces one of them knows.

    Args:
        tell: function that is called with a sentence for each address that does not answer, where
            another one does.

    Raises:
        FabricError: no interface answers; or something else does.
        ConfigurationError: an address is not valid.
    """
    caller = caller_of_environment()
    clients = [InterfaceClient(each, caller, _context_of_environment(each)) for each in addresses]
    found: dict[str, InterfaceClient] = {}
    errors: list[FabricError] = []
    answers = ask_all(clients, _name_at, STATUS_TIMEOUT_S)
    for client in clients:
        told = answers.get(client) or InterfaceSilent(
            f"the administrator's interface at {client.url} does not answer: nothing within "
            f"{STATUS_TIMEOUT_S:g} s"
        )
        if isinstance(told, FabricError):
            errors.append(told)
            continue
        try:
            found[str(told["amps"]["instance"]["name"])] = client
        except (KeyError, TypeError):
            raise FabricError(f"{client.url} is no administrator's interface") from None
    if not found:
        raise errors[0]
    for error in errors:
        tell(str(error))
    name, peers = "", []
    first = next(iter(found.values()))
    with suppress(FabricError, KeyError, TypeError):  # of an instance that knows no peers
        view = first.get("/raylay/fabric.json", STATUS_TIMEOUT_S)
        name, peers = str(view["fabric"]), [str(each["name"]) for each in view["instances"]]
    return InterfaceFabric(name, found, peers_of=first, peers=peers)


def _name_at(client: InterfaceClient) -> Any:
    """Returns the document with an instance's name, or the error that it does not answer."""
    try:
        return client.get("/amps/instance/name.json", STATUS_TIMEOUT_S)
    except FabricError as error:
        return error


def caller_of_environment() -> Caller:
    """Returns the user that `RAYLAY_USER` and `RAYLAY_PASSWORD` or `RAYLAY_PASSWORD_FILE` name.

    Raises:
        ConfigurationError: the file cannot be read, or both are given.
    """
    found = credentials()
    return Caller(found.get("user_id", ""), found.get("password", ""))
