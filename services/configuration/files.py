"""A fabric's files: one in YAML, or the AMPSConfig files (XML or YAML) of its instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from raylay.services.configuration import yaml_file
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import Document, load_amps
from raylay.services.configuration.amps.support import findings
from raylay.services.configuration.amps.tree import is_amps, read_text
from raylay.services.configuration.builder import Origins
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError


def load_files(
    paths: Iterable[str | Path],
    *,
    defines: Mapping[str, str] | None = None,
    origins: Origins | None = None,
) -> FabricSettings | list[Document]:
    """Loads the files: the settings of one YAML file, or one document an instance.

    Args:
        defines: values of `${VAR}` in AMPSConfig files.
        origins: is filled with the place where each instance and destination of a YAML file is
            declared.

    Raises:
        ConfigurationError: one line for each thing that is wrong in any of them.
    """
    texts = {Path(path): read_text(Path(path)) for path in paths}
    if not texts:
        raise ConfigurationError("give one YAML file of a fabric, or the files of its instances")
    amps = {path: text for path, text in texts.items() if is_amps(text)}
    if not amps and len(texts) == 1:
        return yaml_file.load(next(iter(texts)), origins)
    for path in texts:
        if path not in amps:
            raise ConfigurationError(
                f"{path}: this is no AMPSConfig: give one YAML file of a fabric alone, or the "
                "AMPSConfig files of its instances"
            )
    documents, errors = [], []
    for path, text in amps.items():
        try:
            documents.append(load_amps(path, defines=defines, text=text))
        except ConfigurationError as error:
            errors.append(str(error))
    if not errors:
        errors = _same_names(documents)
    if errors:
        raise ConfigurationError("\n".join(errors))
    return documents


def load_fabric(
    paths: Iterable[str | Path],
    *,
    defines: Mapping[str, str] | None = None,
    name: str = "",
    ignore_unsupported: bool = False,
) -> FabricSettings:
    """Returns the settings of the fabric in one YAML file or in the AMPSConfig files of its
    instances.

    Args:
        defines: values of `${VAR}` in AMPSConfig files.
        name: name of the fabric, for AMPSConfig files, which do not say it.
        ignore_unsupported: leave out what does not run yet, instead of refusing it.

    Raises:
        ConfigurationError: one line for each thing that is wrong, or does not run yet.
    """
    paths = list(paths)
    found = load_files(paths, defines=defines)
    if isinstance(found, FabricSettings):
        if name and name != found.name:
            raise ConfigurationError(f"the file names the fabric {found.name}, not {name}")
        return found
    return fabric_of(found, name, ignore_unsupported=ignore_unsupported)


def name_is_declared(paths: Iterable[str | Path]) -> bool:
    """Returns whether the files say the name of their fabric: a YAML file does, AMPSConfig files
    do not.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    return not any(is_amps(read_text(Path(path))) for path in paths)


def load_all(
    paths: Iterable[str | Path],
    *,
    defines: Mapping[str, str] | None = None,
    name: str = "",
    origins: Origins | None = None,
) -> tuple[FabricSettings, list[tuple[str, str]]]:
    """Returns the settings of the fabric in such files without the parts that do not run yet, and
    of each such part its place and description.

    For commands that show a fabric and do not start it.

    Args:
        origins: is filled with the place where each instance and destination is declared.

    Raises:
        ConfigurationError: one line for each thing that is wrong.
    """
    found = load_files(paths, defines=defines, origins=origins)
    if isinstance(found, FabricSettings):
        return found, []
    refused = [each for document in found for each in findings(document) if each.refuses]
    settings = fabric_of(found, name, ignore_unsupported=True, origins=origins)
    return settings, [(each.origin, each.text) for each in refused]


def _same_names(documents: list[Document]) -> list[str]:
    first: dict[str, str] = {}
    errors = []
    for document in documents:
        origin = document.origin(("Name",))
        known = first.setdefault(document.config.name, origin)
        if known != origin:
            errors.append(
                f"{origin}: Name {document.config.name} is taken at {known}: each instance has a "
                "name of its own"
            )
    return errors
