"""`raylay backup` and `raylay restore`: copies of instances' data, verified."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.kept_logs import is_this_host
from raylay.services.commands.shared.options import FabricOption, running
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.commands.shared.separate_backup import (
    BackupRequest,
    make_separately,
    make_there,
    manifest_of,
)
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError, StorageError, StorageLocked
from raylay.services.fabric.ask_all import answers
from raylay.services.fabric.plan import FabricRecord, data_directory
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.stopped import stopped
from raylay.services.server.data.backup_manifest import RECORD_FILE, BackupManifest, Row
from raylay.services.server.data.restore import (
    RestoreResult,
    RestoreTarget,
    check_backup,
    restore,
)
from raylay.storage.files import write_durably

MadeBackup = tuple[str, BackupManifest]
"""The path of a backup, and its manifest."""


@dataclass(frozen=True, slots=True)
class BackupSource:
    """An instance whose data is copied.

    Attributes:
        directory: its data directory, on its host.
        host: address of its host; empty: it is this one.
        labels: labels of its node of Ray, for another host.
    """

    name: str
    directory: Path
    host: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def backup(
    instances: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INSTANCE…]", help="Instances; none: all that the fabric has, on every host."
        ),
    ] = None,
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="DIRECTORY",
            help="Make the backups' directories in this directory, on each instance's own host; "
            "default: backups, in the working directory.",
        ),
    ] = Path("backups"),
    fabric: FabricOption = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each backup.")
    ] = False,
) -> None:
    """Copy the data of instances while they run, and verify the copies. Publishers and subscribers
    go on. Each backup is made on its instance's host: the hosts work at the same time, and each
    copies one instance after the other."""
    record = _record_meant(fabric)
    entry = registry.find(record.name)
    sources = _sources(record, instances or [], is_running=entry is not None)
    left_out: dict[str, str] = {}

    def request_of(source: BackupSource) -> BackupRequest:
        return BackupRequest(
            str(source.directory.absolute()), str(to.absolute()), record.name, record.to_json()
        )

    def tell(source: BackupSource, made: MadeBackup | FabricError | StorageError) -> None:
        if not isinstance(made, tuple):
            if len(sources) == 1:
                raise made
            left_out[source.name] = str(made)
            return
        _tell_made(source, *made, as_json=as_json)

    # Those of this host first: they are made by a fork, which Ray's threads would not survive.
    for source in sources:
        if not source.host:
            if not as_json:
                echo(_place_of(source))
            try:
                tell(source, make_separately(request_of(source)))
            except (FabricError, StorageError) as error:
                tell(source, error)
    elsewhere = [each for each in sources if each.host]
    with ExitStack() as stack:
        for source, made in OtherHosts(entry, stack).make_all(elsewhere, request_of):
            if not as_json and isinstance(made, tuple):
                echo(_place_of(source))
            tell(source, made)
    if left_out:
        raise FabricError(_left_out_text(sources, left_out, record.name, to.absolute()))


def _place_of(source: BackupSource) -> str:
    where = f" on {source.host}" if source.host else ""
    return f"{source.name}: {source.directory}{where}"


def _tell_made(source: BackupSource, path: str, manifest: BackupManifest, *, as_json: bool) -> None:
    if as_json:
        echo_json({"backup": path, "host": source.host, **manifest.as_json()})
        return
    echo(f"  {_described(manifest)}: verified")
    echo(f"  {path}")


def _left_out_text(
    sources: Sequence[BackupSource], left_out: Mapping[str, str], fabric: str, to: Path
) -> str:
    """Returns a text of a line for each instance that has no backup: why, and what to run where."""
    lines = [f"{len(left_out)} of {len(sources)} instances have no backup:"]
    for source in sources:
        if source.name in left_out:
            where = f" on {source.host}" if source.host else ""
            again = f"raylay backup {source.name} --fabric {fabric} --to {shlex.quote(str(to))}"
            there = f"; on that host: {again}" if source.host else f"; again: {again}"
            lines.append(f"  {source.name}{where}: {left_out[source.name]}{there}")
    return "\n".join(lines)


class OtherHosts:
    """Makes backups on other nodes of the Ray on which a fabric runs, which is joined for them.

    Args:
        entry: the fabric that runs; None: it does not.
        stack: detaches from it at its end.
    """

    def __init__(self, entry: registry.RegistryEntry | None, stack: ExitStack) -> None:
        self._entry = entry
        self._stack = stack

    def make_all(
        self, sources: Sequence[BackupSource], request_of: Callable[[BackupSource], BackupRequest]
    ) -> Iterator[tuple[BackupSource, MadeBackup | FabricError | StorageError]]:
        """Makes and verifies backups on the hosts of their instances: the hosts work at the same
        time, and each makes one after the other. Yields each instance with the path and manifest
        of its backup, or the error that it has none, when its host has made all."""
        if not sources:
            return
        try:
            self._join()
        except FabricError as error:
            yield from ((source, error) for source in sources)
            return
        hosts: dict[str, list[BackupSource]] = {}
        for source in sources:
            hosts.setdefault(source.host, []).append(source)

        def make(host: str) -> list[MadeBackup | FabricError | StorageError]:
            return [_made_there(source, request_of(source)) for source in hosts[host]]

        for host, made in answers(hosts, make, None):
            yield from zip(hosts[host], made, strict=True)

    def _join(self) -> None:
        if self._entry is None:
            raise FabricError("its data is on another host, and the fabric does not run")
        # Late: it takes all that Ray takes.
        from raylay.services.fabric.fabric import Fabric

        self._stack.enter_context(Fabric.attach(self._entry.name))


def _made_there(
    source: BackupSource, request: BackupRequest
) -> MadeBackup | FabricError | StorageError:
    """Makes and verifies a backup on the host of its instance. Returns its path and its manifest,
    or the error: Ray does not reach that host, a file cannot be copied, or the copy is not sound.
    """
    from raylay.services.fabric.cluster.ray_access import living_nodes, on_node

    labels = dict(source.labels)
    try:
        if not any(labels.items() <= dict(node.labels).items() for node in living_nodes()):
            return FabricError("its host is not among the living nodes of Ray")
        return manifest_of(on_node(labels, make_there, request, timeout_s=None))
    except (FabricError, StorageError) as error:
        return error


def _record_meant(fabric: str) -> FabricRecord:
    """Returns the record of the fabric of that name, running or stopped, or of the only one.

    Raises:
        FabricError: there is none, or several are.
    """
    entry = registry.find(fabric) if fabric else None
    if entry is None and (fabric or not registry.running()):
        found = [each for each in stopped() if fabric in ("", each.name)]
        if len(found) == 1:
            record = FabricRecord.load(found[0].directory)
            if record is not None:
                return record
    entry = entry or running(fabric)
    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} holds no fabric: it has no {registry.FABRIC_FILE}")
    return record


def _sources(record: FabricRecord, names: Sequence[str], *, is_running: bool) -> list[BackupSource]:
    """Returns the named instances with the places of their data; with no name, all that have some.

    Raises:
        FabricError: an instance is unknown, or has no data; or none has.
    """
    settings = FabricSettings.from_json(record.settings)
    known = {
        each.name: _source(record, each.name, data_directory(record, each), is_running)
        for each in settings.instances
    }
    for name in names:
        if name not in known:
            raise FabricError(
                f"fabric {record.name} has no instance {name}: it has {', '.join(known)}"
            )
        if not _has_data(known[name]):
            raise FabricError(
                f"{name} has no data in {known[name].directory} on this host: run this on its own"
            )
    found = [known[name] for name in names or known if _has_data(known[name])]
    if not found:
        raise FabricError(f"no instance of fabric {record.name} has data on this host")
    return found


def _source(record: FabricRecord, name: str, directory: Path, is_running: bool) -> BackupSource:
    node = record.nodes.get(name)
    if node is None or not node.labels or is_this_host(node.address):
        return BackupSource(name, directory)
    # This host may have another address than when the fabric was stopped.
    if not is_running and directory.is_dir():
        return BackupSource(name, directory)
    return BackupSource(name, directory, node.address, node.labels)


def _has_data(source: BackupSource) -> bool:
    """Returns whether an instance has data; of one of another host it is assumed."""
    return bool(source.host) or source.directory.is_dir()


def _described(manifest: BackupManifest) -> str:
    return (
        f"{manifest.messages:,} messages up to transaction {manifest.last_txid}, "
        f"{manifest.size_bytes / 1e6:,.1f} MB in {len(manifest.files)} files"
    )


def restore_command(
    backups: Annotated[
        list[Path],
        typer.Argument(metavar="BACKUP…", help="Directories that `raylay backup` made."),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            help="The data directory to make, in place of the one that the fabric's record, or "
            "else the backup, says."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Move the data that is there aside.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: read and verify the backups.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each backup.")
    ] = False,
) -> None:
    """Make the data directories of instances from backups. The instances must be down: begin them
    with `raylay up`, or `raylay restart` if their fabric runs, and they take from their peers what
    is newer than the backup."""
    if directory is not None and len(backups) > 1:
        raise FabricError("--directory is the place of one backup: give one")
    # All are checked before the first one changes something.
    manifests = {path: check_backup(path) for path in backups}
    if not check:
        names = [(each.fabric, each.instance) for each in manifests.values()]
        twice = sorted({name for fabric, name in names if names.count((fabric, name)) > 1})
        if twice:
            raise FabricError(f"{twice[0]} has several of these backups: give one")
    for path, manifest in manifests.items():
        if check:
            _tell(path, manifest, None, as_json)
            continue
        target = _target(manifest, directory)
        try:
            done = restore(path, manifest, target, force=force)
        except StorageLocked as error:
            raise StorageLocked(
                f"{manifest.instance} runs: {target.directory} is in use: `raylay stop "
                f"{manifest.instance}` stops it; nothing was changed",
                error.path,
            ) from None
        if directory is None:
            _restore_record(path, manifest)
        _tell(path, manifest, done, as_json)
        used = _target(manifest, None).directory
        if not as_json and target.directory != used and _record_of(manifest) is not None:
            echo(
                f"  {manifest.instance} uses another directory, {used}: `raylay restore "
                f"{shlex.quote(str(path))}` restores it there"
            )
            return
    if not check and not as_json:
        for command in _next_commands([*manifests.values()], target.directory.parent):
            echo(f"next: {command}")


def _target(manifest: BackupManifest, directory: Path | None) -> RestoreTarget:
    """Returns the place of the instance: as the fabric's record says, or else the backup."""
    record = _record_of(manifest)
    place = Path(manifest.directory)
    generation = 0
    if record is not None:
        settings = FabricSettings.from_json(record.settings)
        for instance in settings.instances:
            if instance.name == manifest.instance:
                place = data_directory(record, instance)
                move = record.moves.get(instance.name)
                generation = move.generation if move is not None else 0
    return RestoreTarget((directory or place).absolute(), generation)


def _record_of(manifest: BackupManifest) -> FabricRecord | None:
    """Returns the record of the backup's fabric, running or stopped; None: it is not known here."""
    entry = registry.find(manifest.fabric)
    places = [Path(entry.directory)] if entry is not None else []
    places += [each.directory for each in stopped() if each.name == manifest.fabric]
    for place in [*places, Path(manifest.directory).parent]:
        record = FabricRecord.load(place)
        if record is not None and record.name == manifest.fabric:
            return record
    return None


def _restore_record(backup: Path, manifest: BackupManifest) -> None:
    """Writes the record of the fabric where that is lost, too."""
    path = backup / RECORD_FILE
    if _record_of(manifest) is not None or not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    home = Path(FabricRecord.from_json(text, str(path)).directory)
    if home.is_dir():
        write_durably(home / RECORD_FILE, text.encode())


def _tell(path: Path, manifest: BackupManifest, done: RestoreResult | None, as_json: bool) -> None:
    moved = () if done is None else done.moved
    if as_json:
        values: Row = {"backup": str(path), **manifest.as_json()}
        values["restored"] = str(done.directory) if done is not None else None
        values["moved"] = {str(before): str(aside) for before, aside in moved}
        echo_json(values)
        return
    echo(f"{manifest.instance} of {manifest.time}: {_described(manifest)}: sound")
    for before, aside in moved:
        echo(f"  {before} was moved to {aside}")
    if done is not None:
        echo(f"  restored: {done.directory}")


def _next_commands(manifests: list[BackupManifest], home: Path) -> list[str]:
    """Returns the commands that begin the restored instances.

    Args:
        home: the directory of a fabric whose record is not known.
    """
    found: list[str] = []
    for fabric in dict.fromkeys(each.fabric for each in manifests):
        restored = [each for each in manifests if each.fabric == fabric]
        record = _record_of(restored[0])
        if record is not None and registry.find(fabric) is not None:
            names = [each.instance for each in restored]
            at_rest = [name for name in names if name in record.stopped]
            found += [f"raylay start {name} --fabric {fabric}" for name in at_rest]
            down = [name for name in names if name not in at_rest]
            if down:
                found.append(f"raylay restart {' '.join(down)} --fabric {fabric}")
            continue
        place = home if record is None else record.directory
        found.append(f"raylay up {shlex.quote(str(place))}")
    return found
