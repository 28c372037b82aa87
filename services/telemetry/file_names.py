"""Names of files of lines, made from a mask such as `amps-%Y%m%d-%n.log`. Pure.

`%Y %m %d %H %M %S`: the time at which the file begins, in UTC; `%n`: its number, from 00000; `%p`:
the name of the process; `%i`: the process id; `%%`: a percent sign. The files of a mask without
`%n` are numbered before their suffix where their names would be the same: `a.log`, `a.1.log`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raylay.services.errors import ConfigurationError

_SYMBOL = re.compile(r"%(.?)")
_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2}
SYMBOLS = (*_DIGITS, "n", "p", "i", "%")


def checked_mask(mask: str) -> str:
    """Returns the mask.

    Raises:
        ConfigurationError: a symbol is unknown, or the mask names no file.
    """
    for symbol in _SYMBOL.findall(mask):
        if symbol not in SYMBOLS:
            known = ", ".join(f"%{each}" for each in SYMBOLS)
            raise ConfigurationError(
                f"the file name {mask!r} has the unknown symbol %{symbol}: choose from {known}, "
                "and write %% for a percent sign"
            )
    if "\0" in mask or mask.rsplit("/", 1)[-1] in ("", ".", ".."):
        raise ConfigurationError(f"the file name {mask!r} names no file: end it with a name")
    return mask


def mask_of_child(mask: str) -> str:
    """Returns the mask of a process beside the instance: its name is in it."""
    if "%p" in mask:
        return mask
    stem, suffix = _split(mask)
    return f"{stem}.%p{suffix}"


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of the files of one process.

    Attributes:
        mask: mask of the path, below some directory.
        process: name of the process, in place of `%p`.
        pid: in place of `%i`.
        ending: text after each name, such as `.gz`.
    """

    mask: str
    process: str
    pid: int
    ending: str = ""

    @property
    def counts(self) -> bool:
        """Returns whether the mask has a place for the number (`%n`)."""
        return "%n" in self.mask.replace("%%", "")

    def name(self, number: int, wall_s: float) -> str:
        """Returns the path of the file of a number that begins at a time."""
        moment = time.gmtime(wall_s)

        def replaced(found: re.Match[str]) -> str:
            symbol = found[1]
            if symbol in _DIGITS:
                return time.strftime(f"%{symbol}", moment)
            return {"n": f"{number:05}", "p": self.process, "i": str(self.pid)}.get(symbol, "%")

        stem, suffix = _split(self.mask)
        mark = f".{number}" if number and not self.counts else ""
        return "".join(
            (_SYMBOL.sub(replaced, stem), mark, _SYMBOL.sub(replaced, suffix), self.ending)
        )

    def number_after(self, names: Iterable[str], wall_s: float) -> int:
        """Returns the number of the next file that begins at a time: one above the highest number
        of the files whose names differ from its name in the number only."""
        pattern = self._pattern(lambda symbol: re.escape(self._fixed(symbol, wall_s)))
        found = (pattern.fullmatch(name) for name in names)
        return max((int(each[1] or 0) + 1 for each in found if each is not None), default=0)

    def is_own(self, name: str) -> bool:
        """Returns whether a file name, without its directory, fits this mask and this process's
        name, with any time, number and process id."""

        def any_of(symbol: str) -> str:
            if symbol in _DIGITS:
                return rf"\d{{{_DIGITS[symbol]}}}"
            return r"\d+" if symbol == "i" else re.escape(self._fixed(symbol, 0.0))

        return self._pattern(any_of).fullmatch(name) is not None

    def _fixed(self, symbol: str, wall_s: float) -> str:
        if symbol in _DIGITS:
            return time.strftime(f"%{symbol}", time.gmtime(wall_s))
        return {"p": self.process, "i": str(self.pid)}.get(symbol, "%")

    def _pattern(self, of_symbol: Callable[[str], str]) -> re.Pattern[str]:
        stem, suffix = _split(self.mask.rsplit("/", 1)[-1])
        numbered = False

        def expression(text: str) -> str:
            nonlocal numbered
            parts = []
            position = 0
            for found in _SYMBOL.finditer(text):
                parts.append(re.escape(text[position : found.start()]))
                position = found.end()
                if found[1] != "n":
                    parts.append(of_symbol(found[1]))
                elif numbered:
                    parts.append(r"\d{5,}")
                else:
                    numbered = True
                    parts.append(r"(\d{5,})")
            return "".join((*parts, re.escape(text[position:])))

        before, after = expression(stem), expression(suffix)
        mark = "" if numbered else r"(?:\.([1-9]\d*))?"
        return re.compile(f"{before}{mark}{after}{re.escape(self.ending)}")


def _split(mask: str) -> tuple[str, str]:
    """Returns what is before the suffix of the last name, and the suffix with its dot."""
    folder, slash, name = mask.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem:
        return mask, ""
    return f"{folder}{slash}{stem}", f"{dot}{suffix}"
