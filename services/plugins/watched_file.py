"""A text file that a module reads again when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from raylay.services.errors import ConfigurationError

FILE_BYTES_MAX = 16 * 1024 * 1024
_Version = tuple[int, int, int]


class WatchedFile:
    """The text of a file, read again when the file has changed.

    Owner: the module. Lifecycle: `read` when the module is made, then `look` any number of times:
    it only costs a look at the file's date.

    Args:
        what: content of the file, for errors.
        where: place of the module in the configuration.
        take: called with the text of the file when it has changed. If it raises, the module keeps
            the former content.
        meanwhile: phrase that says what applies while the file cannot be used.
    """

    def __init__(
        self, path: str, what: str, where: str, take: Callable[[str], None], meanwhile: str
    ) -> None:
        self.path = Path(path)
        self.meanwhile = meanwhile
        self.problem = ""
        """Reason why the present content of the file is not in use; empty: it is in use."""
        self._what = what
        self._where = where
        self._take = take
        self._taken: _Version | None = None
        self._wrong: tuple[_Version, str] | None = None
        """Version of the file that could not be taken, and the reason: it is not read again before
        it changes."""
        self._turn = asyncio.Lock()

    async def look(self) -> None:
        """Takes new content, in a thread, because it reads a disk and may parse for long. One call
        at a time, so that no older text comes last.

        Raises:
            ConfigurationError: it cannot be read, or not be taken.
        """
        async with self._turn:
            await asyncio.to_thread(self.read)

    def read(self) -> None:
        """Takes new content at once.

        Raises:
            ConfigurationError: it cannot be read, or not be taken.
        """
        try:
            self._read()
        except ConfigurationError as error:
            self.problem = str(error)
            raise
        self.problem = ""

    def _read(self) -> None:
        try:
            found = self.path.stat()
            version = found.st_mtime_ns, found.st_size, found.st_ino
            if version == self._taken:
                return
            if self._wrong is not None and self._wrong[0] == version:
                raise ConfigurationError(self._wrong[1])
            if found.st_size > FILE_BYTES_MAX:
                raise ConfigurationError(
                    f"{self._where}: {self.path} has {found.st_size} bytes: at most "
                    f"{FILE_BYTES_MAX} are read"
                )
            text = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigurationError(
                f"{self._where}: the file of {self._what} {self.path} cannot be read: {why}"
            ) from None
        try:
            self._take(text)
        except ConfigurationError as error:
            self._wrong = version, str(error)
            raise
        self._taken, self._wrong = version, None
