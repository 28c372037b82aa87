"""A drill that starts a fabric of its own: what stays of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from raylay.services.commands import drill
from raylay.services.drills.reports import report, report_words
from raylay.services.drills.scenario import find
from raylay.services.fabric import Fabric

pytestmark = pytest.mark.covers("Drills", "a fabric that a drill starts")
FILE = "fabric: alone\ntopics: [orders]\nregions: {here: 1}\ndrills: allowed\n"


class Result:
    def __init__(self, valid: bool) -> None:
        self.valid = valid
        self.kept: list[str] = []


@pytest.mark.parametrize("valid", [True, False, None])
def test_its_data_is_kept_where_the_verdict_is_bad(
    valid: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places: list[Path] = []
    results: list[Result] = []

    def start(_: Fabric, place: Path, **options: Any) -> AbstractContextManager[None]:
        (place / "journal").write_text("what went wrong")
        places.append(place)
        return nullcontext()

    class Scripted:
        def __init__(self, fabric: Fabric, *_: Any, **options: Any) -> None:
            assert fabric.name == "alone"

        def run(self) -> Result:
            if valid is None:
                raise OSError("no disk")
            results.append(Result(valid))
            return results[0]

    def write(result: Result, place: Path) -> Path:
        (place / "report.html").write_text(str(result.kept))
        return place / "report.html"

    monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(Fabric, "start", start)
    monkeypatch.setattr(Fabric, "wait_connected", lambda *_: None)
    monkeypatch.setattr("raylay.services.drills.drill.Drill", Scripted)
    monkeypatch.setattr(report, "write", write)
    monkeypatch.setattr(report_words, "verdict_sentence", lambda _: "judged")
    file, output = tmp_path / "alone.yaml", tmp_path / "out"
    file.write_text(FILE)
    if valid is None:
        with pytest.raises(OSError, match="no disk"):
            drill._drill(find("kill-instance"), str(file), "orders", output)
        assert not places[0].exists() and not output.exists()
        return
    code = drill._drill(find("kill-instance"), str(file), "orders", output)
    shown = capsys.readouterr().out
    kept = "" if valid else str(places[0])
    assert code == (0 if valid else drill.EXIT_BAD)
    assert places[0].exists() is bool(kept) and (f"kept: {kept}," in shown) is bool(kept)
    assert (kept in (output / "report.html").read_text()) and results[0].kept == [kept] * bool(kept)
    if kept:
        (places[0] / "journal").unlink()
        places[0].rmdir()
