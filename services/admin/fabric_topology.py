"""The configured topology of a fabric, as the administrator's interface of each instance knows it:
`admin-fabric.json` in the instance's data directory.

The driver of the fabric writes it whenever it writes the instance's configuration; the interface
reads it again when it changes. It says what is meant to be there, never what is.
"""

from __future__ import annotations

from dataclasses import dataclass

TOPOLOGY_FILE = "admin-fabric.json"
FILE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConfiguredInstance:
    """An instance.

    Attributes:
        admin_address: `host:port` of its administrator's interface; empty: it has none.
        host_names: names by which its interface is called.
        is_tls: whether its interface speaks TLS.
        is_stopped: whether `raylay stop` has stopped it, so that it need not answer.
    """

    name: str
    group: str
    admin_address: str = ""
    host_names: tuple[str, ...] = ()
    is_tls: bool = False
    is_stopped: bool = False

    @property
    def url(self) -> str:
        """The root of the interface's addresses, without a slash at the end; empty: there is
        none."""
        if not self.admin_address:
            return ""
        return f"{'https' if self.is_tls else 'http'}://{self.admin_address}"


@dataclass(frozen=True, slots=True)
class ConfiguredLink:
    """A destination of an instance.

    Attributes:
        instance: the instance that it belongs to.
        to: the servers that it may reach, instances of the fabric or addresses.
        to_group: group of these servers.
    """

    instance: str
    destination: str
    to: tuple[str, ...]
    to_group: str
    sync: bool

    @property
    def id(self) -> str:
        return f"{self.instance}~{self.destination}"


@dataclass(frozen=True, slots=True)
class ConfiguredQueue:
    """A queue, and the instances that have it.

    Attributes:
        shared: whether they share its messages; otherwise each has a queue of its own.
    """

    name: str
    message_type: str
    instances: tuple[str, ...]
    shared: bool = True


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A finding of the topology check.

    Attributes:
        level: `error`, `warning` or `note`.
        where: the instances concerned, and the topic.
    """

    level: str
    text: str
    where: str
    what_to_do: str


@dataclass(frozen=True, slots=True)
class FabricTopology:
    """See the file's docstring.

    Attributes:
        instances: in the order of the fabric's file.
        findings: of the topology check of this configuration.
        checked_us: time of that check, in microseconds since 1970; 0: there was none.
        drills_directories: directories whose folders are drill reports.
        ca_file, ca_path: certificates of the authorities that vouch for interfaces; both empty: the
            system's.
        verify_name: whether an interface's certificate must have the name that is dialled.
        head: address of Ray's head, `host:port`; empty: not known.
    """

    fabric: str
    instances: tuple[ConfiguredInstance, ...]
    links: tuple[ConfiguredLink, ...] = ()
    queues: tuple[ConfiguredQueue, ...] = ()
    findings: tuple[CheckFinding, ...] = ()
    checked_us: int = 0
    drills_directories: tuple[str, ...] = ()
    ca_file: str = ""
    ca_path: str = ""
    verify_name: bool = True
    head: str = ""

    def instance(self, name: str) -> ConfiguredInstance | None:
        """Returns an instance; None: the fabric has none of this name."""
        return next((each for each in self.instances if each.name == name), None)


def alone(instance: str, group: str) -> FabricTopology:
    """Returns the topology of an instance that was started without a fabric."""
    return FabricTopology("", (ConfiguredInstance(instance, group),))
