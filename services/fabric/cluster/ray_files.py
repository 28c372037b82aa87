"""Files of a Ray that Raylay starts: its sessions and its token, readable by this user alone.

Ray lets everybody into the directories that it makes, that of its sessions itself (0777): whoever
connects to a socket there runs programs as this user. So they lie in a directory that others cannot
enter. Ray writes its token as the umask says; a process that can read it can do the same.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.services.fabric.records import registry
from raylay.storage.files import PRIVATE_FILE_MODE, make_directory, write_durably

TEMPORARY_VARIABLE = "RAY_TMPDIR"
TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables that say where Ray's token is, if not in the file that Ray itself makes."""
_LONGEST_SOCKET = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
DIRECTORY_BYTES_MAX = 107 - len(_LONGEST_SOCKET)
"""Length of the path of Ray's temporary directory: a Unix socket's address ends at 108 bytes, the
last of them 0."""


def temporary_directory() -> str | None:
    """Returns the directory in which a Ray that is begun now makes its sessions: the user's runtime
    directory, or `/tmp/raylay-UID` if that directory's name is too long. None: the user's
    RAY_TMPDIR names the directory.

    Raises:
        FabricError: The directory around it cannot be made, or is not this user's alone.
    """
    if TEMPORARY_VARIABLE in os.environ:
        return None
    own = registry.registry_directory() / "ray"
    if len(os.fsencode(own / "tmp")) > DIRECTORY_BYTES_MAX:
        # The runtime directory is the user's, and set already perhaps: its name is what to change.
        remedy = (
            f"it is needed as the name of the runtime directory {own.parent} is too long for Ray's "
            f"sockets: set {registry.REGISTRY_VARIABLE} to a directory with a name of at most "
            f"{DIRECTORY_BYTES_MAX - len('/ray/tmp')} bytes, or set {TEMPORARY_VARIABLE}"
        )
        own = registry.own_directory(Path("/tmp") / f"raylay-{os.getuid()}", remedy) / "ray"
    # Ray opens what it is given to everybody: this one around it stays closed.
    mode = registry.own_directory(own).stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FabricError(f"others can enter {own}, where Ray's sockets are to be: chmod 700 {own}")
    return str(own / "tmp")


def token_file() -> Path:
    """Returns the file in which Ray looks for its token by default."""
    return Path.home() / ".ray" / "auth_token"


def keep_token_private() -> None:
    """Makes Ray's token, where there is none, before Ray does, so that no other user can ever read
    it. Takes the right to read one that is there from others. Where that cannot be done, Ray
    reports what it lacks."""
    if any(name in os.environ for name in TOKEN_VARIABLES):
        return
    with suppress(OSError, RuntimeError):  # It may be that this user has no home.
        path = token_file()
        if not path.exists():
            make_directory(path.parent)
            _make_token(path)
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                os.fchmod(descriptor, PRIVATE_FILE_MODE)
        finally:
            os.close(descriptor)


def _make_token(path: Path) -> None:
    # A link of a whole file: another start that comes between has its own, or this one.
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        whole = Path(aside) / path.name
        write_durably(whole, secrets.token_hex(32).encode())
        with suppress(FileExistsError):
            os.link(whole, path)
