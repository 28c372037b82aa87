"""A text file that a module reads again when it has changed."""

from __future__ import annotations

from pathlib import Path

from raylay.services.errors import ConfigurationError

FILE_BYTES_MAX = 16 * 1024 * 1024


class WatchedFile:
    """Owner: the module. Looked at when it is asked, not before.

    Args:
        what: it holds, for errors.
        where: the module stands in the configuration.
    """

    def __init__(self, path: str, what: str, where: str) -> None:
        self.path = Path(path)
        self._what = what
        self._where = where
        self._taken: tuple[int, int, int] | None = None
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> str | None:
        """Its text, where it is not the one that was `taken`; None: it is.

        Raises:
            ConfigurationError: it cannot be read.
        """
        try:
            found = self.path.stat()
            self._seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._seen == self._taken:
                return None
            if found.st_size > FILE_BYTES_MAX:
                raise ConfigurationError(
                    f"{self._where}: {self.path} has {found.st_size} bytes: at most "
                    f"{FILE_BYTES_MAX} are read"
                )
            return self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigurationError(
                f"{self._where}: the file of {self._what} {self.path} cannot be read: {why}"
            ) from None

    def taken(self) -> None:
        """What it held when it was asked last is in use: it is not read before it changes."""
        self._taken = self._seen
