"""services/telemetry/file_names.py: the names of files of lines."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.file_names import FileNames, checked_mask, mask_of_child

MOMENT_S = 1_700_000_000.0  # 2023-11-14T22:13:20Z


def names(mask: str, ending: str = "") -> FileNames:
    return FileNames(mask, "A-1", 77, ending)


@pytest.mark.covers("Logging", "`FileName`")
@pytest.mark.parametrize(
    ("mask", "number", "name"),
    [
        ("%Y-%m-%dT%H:%M:%S.log", 0, "2023-11-14T22:13:20.log"),
        ("localhost-amps-%n.log", 0, "localhost-amps-00000.log"),
        ("localhost-amps-%n.log", 12, "localhost-amps-00012.log"),
        ("%n", 100_000, "100000"),
        ("%p-%i.log", 0, "A-1-77.log"),
        ("%p-%i.log", 3, "A-1-77.3.log"),
        ("a.log", 2, "a.2.log"),
        ("logs.d/a", 2, "logs.d/a.2"),
        ("100%%n.log", 1, "100%n.1.log"),
        ("%Y/%m/a.log", 0, "2023/11/a.log"),
        (".hidden", 1, ".hidden.1"),
    ],
)
def test_a_mask_gives_names(mask: str, number: int, name: str) -> None:
    assert names(checked_mask(mask)).name(number, MOMENT_S) == name
    assert names(mask, ".gz").name(number, MOMENT_S) == f"{name}.gz"


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        ("a-%Q.log", "unknown symbol %Q"),
        ("a-%", "unknown symbol %"),
        ("a/", "names no file"),
        ("a/..", "names no file"),
        ("a\0b", "names no file"),
    ],
)
def test_a_wrong_mask_is_refused(mask: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        checked_mask(mask)


@pytest.mark.parametrize(
    ("mask", "there", "number"),
    [
        ("a.log", [], 0),
        ("a.log", ["b.log", "a.log.gz", "a.x.log", "a.01.log"], 0),
        ("a.log", ["a.log"], 1),
        ("a.log", ["a.log", "a.9.log", "a.10.log"], 11),
        ("a-%n.log", ["a-00000.log", "a-00007.log", "a-7.log"], 8),
        ("%Y-%n.log", ["2022-00009.log", "2023-00001.log"], 2),
        ("%n-%n.log", ["00003-00003.log"], 4),
        ("%p-%i.log", ["A-1-77.log", "A-1-78.4.log", "B-1-77.5.log"], 1),
        ("x/%n.%n", ["00001.00001"], 2),
    ],
)
def test_the_next_number_is_above_all_that_are_there(
    mask: str, there: list[str], number: int
) -> None:
    assert names(mask).number_after(there, MOMENT_S) == number


def test_files_of_other_times_and_processes_of_the_name_are_its_own() -> None:
    own = names("%p-%Y-%i-%n.log", ".gz")
    assert own.is_own("A-1-1999-5-00003.log.gz")
    for other in (
        "A-1-1999-5-00003.log",
        "A-2-1999-5-00003.log.gz",
        "A-1-x-5-00003.log.gz",
        "A-1-1999-x-00003.log.gz",
        "A-1-1999-5-00003.log.gz.old",
    ):
        assert not own.is_own(other)
    assert names("a%%.log").is_own("a%.4.log")


def test_a_process_beside_the_instance_has_its_name_in_its_files() -> None:
    assert mask_of_child("log/amps-%n.log") == "log/amps-%n.%p.log"
    assert mask_of_child("amps") == "amps.%p"
    assert mask_of_child("%p.log") == "%p.log"
