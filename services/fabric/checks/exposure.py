"""Files of a fabric on this host that users other than its own may read or change: data, secrets,
Ray's token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.transports import INSTANCE_PLACE
from raylay.services.errors import RaylayError
from raylay.services.fabric.cluster import ray_files
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import FABRIC_FILE
from raylay.services.fabric.records.stopped import DATA_DIRECTORY
from raylay.services.net.tls_config import TlsConfig
from raylay.services.security.modules import ModuleConfig
from raylay.storage.exposure import ExposedPath, exposed

SECRET_OPTIONS = frozenset({"File", "PasswordFileName", "SecretFile"})
"""Options that name a file of passwords or of a secret; `File` of permissions has none."""
TRUSTED_OPTIONS = frozenset({"PublicKeyFile"})
"""Options that name a file which every user may read, and that only this user may write: an
attacker that writes such a file is let in."""
PERMISSIONS = "permissions"


def of_host(directory: Path) -> list[ExposedPath]:
    """Looks at the data directories in a directory, of fabrics and of instances, at the files that
    their instances use, and at what this user's Rays have."""
    found = _changes(exposed(directory))
    for place in _data_directories(directory):
        found += _of_data(place)
    return _each_once([*found, *_of_user()])


def of_fabric(settings: FabricSettings) -> list[ExposedPath]:
    """Looks at the data of a fabric that runs, or ran, where `raylay up` keeps it, and at the files
    that its settings name, as far as they are on this host."""
    entry = registry.find(settings.name)
    directory = DATA_DIRECTORY / settings.name if entry is None else Path(entry.directory)
    found = _of_data(directory) if directory.is_dir() else []
    for instance in settings.instances:
        if Path(instance.directory).is_absolute():
            found += exposed(Path(instance.directory))
    names = [instance.name for instance in settings.instances]
    for path, is_secret in _files_of(settings):
        for name in names if INSTANCE_PLACE in path else [""]:
            named = Path(path.replace(INSTANCE_PLACE, name))
            found += _of_file(directory / _expanded(named), is_secret)
    return _each_once(found)


def _data_directories(directory: Path) -> Iterator[Path]:
    """Yields the outermost directories that hold data of Raylay, at most two levels deep."""
    for pattern in ("", "*/", "*/*/"):
        found = {
            record.parent
            for name in (FABRIC_FILE, INSTANCE_FILE)
            for record in directory.glob(f"{pattern}{name}")
        }
        if found:
            yield from sorted(found)
            return


def _of_data(directory: Path) -> list[ExposedPath]:
    found = exposed(directory)
    homes = [record.parent for record in sorted(directory.glob(f"*/{INSTANCE_FILE}"))]
    if not _is_open(found, directory):
        # What is to be closed closes these as well.
        for home in homes:
            found += exposed(home)
    for home in (directory, *homes):
        if not (home / INSTANCE_FILE).is_file():
            continue
        try:
            config = InstanceConfig.load(home)
        except (RaylayError, OSError):
            continue  # Another command says what is wrong with it.
        if config.journal.archive_directory is not None:
            found += exposed(Path(config.journal.archive_directory))
        for path, is_secret in _files_of(config):
            found += _of_file(Path(path), is_secret)
    return found


def _is_open(found: Iterable[ExposedPath], directory: Path) -> bool:
    return any(each.path == str(directory.resolve()) for each in found)


def _of_user() -> list[ExposedPath]:
    """Finds exposed files of the user. The runtime directory is checked because it decides which
    fabric a command connects to, and Ray's token because every process that can read it is let
    in."""
    found: list[ExposedPath] = []
    try:
        found += exposed(ray_files.token_file())
    except RuntimeError:
        pass  # This user has no home.
    return [*found, *_changes(exposed(registry.runtime_path()))]


def _of_file(path: Path, is_secret: bool) -> list[ExposedPath]:
    found = exposed(path)
    return found if is_secret else _changes(found)


def _changes(found: Iterable[ExposedPath]) -> list[ExposedPath]:
    return [each for each in found if each.right == "change"]


def _each_once(found: Iterable[ExposedPath]) -> list[ExposedPath]:
    return list(dict.fromkeys(found))


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _files_of(value: Any) -> Iterator[tuple[str, bool]]:
    """Yields the files that a configuration names anywhere, each with whether it is secret, so that
    no other user may read it."""
    if isinstance(value, TlsConfig):
        if value.private_key:
            yield value.private_key, True
    elif isinstance(value, ModuleConfig):
        for option, path in value.options.items():
            if option in SECRET_OPTIONS | TRUSTED_OPTIONS and path:
                yield path, option in SECRET_OPTIONS and value.module != PERMISSIONS
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _files_of(getattr(value, name))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _files_of(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from _files_of(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _files_of(each)
