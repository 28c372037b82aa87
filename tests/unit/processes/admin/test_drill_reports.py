"""services/processes/admin/drill_reports.py: reports are listed and served, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.admin_fabric import AdminFabric, admin_fabric

from raylay.services.errors import ConfigurationError
from raylay.services.processes.admin import drill_reports
from raylay.services.processes.admin.drill_reports import DrillReports, found_in

REPORT = {
    "drill": "kill-instance", "fabric": "flights", "valid": True, "began_us": 5_000_000,
    "ended_us": 65_000_000, "verdict": {"lost": 0},
}  # fmt: skip


def report(directory: Path, name: str, at_s: int = 1, **changed: Any) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    path = folder / "report.json"
    path.write_text(json.dumps({**REPORT, **changed}))
    os.utime(path, (at_s, at_s))
    (folder / "report.html").write_text(f"<h1>{name}</h1>")
    return folder


def test_reports_are_listed_the_newest_first(tmp_path: Path) -> None:
    report(tmp_path / "a", "old", 1)
    report(tmp_path / "a", "new", 2, valid=False)
    report(tmp_path / "b", "new", 3)
    (tmp_path / "a" / "empty").mkdir()
    (tmp_path / "a" / "file").write_text("")
    report(tmp_path / "a", ".hidden")
    report(tmp_path / "a", "a b<c>")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "a" / "old")
    places = [str(tmp_path / each) for each in ("a", "b", "absent")]
    found = DrillReports().listed(places)
    assert [(each["id"], each["verdict"]) for each in found] == [
        ("new~1", "clean"),
        ("new", "bad"),
        ("old", "clean"),
    ]
    assert found[2] == {
        "id": "old", "name": "kill-instance", "fabric": "flights", "time_us": 5_000_000,
        "seconds": 60, "verdict": "clean", "why": "", "href": "raylay/drills/old",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", '{"valid": "yes"}', '{"x":' + "[" * 100_000])
def test_a_report_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    folder = report(tmp_path, "odd")
    (folder / "report.json").write_text(text)
    (found,) = DrillReports().listed([str(tmp_path)])
    assert (found["verdict"], found["href"]) == ("unreadable", None) and found["why"]


def test_a_report_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = DrillReports()
    report(tmp_path, "one")
    first = reports.listed([str(tmp_path)])
    with monkeypatch.context() as at:
        at.setattr(drill_reports, "_read", lambda path: b"{}")
        assert reports.listed([str(tmp_path)]) == first
    path = tmp_path / "one" / "report.json"
    path.write_text(json.dumps({**REPORT, "valid": False}))
    os.utime(path, (9, 9))
    assert reports.listed([str(tmp_path)])[0]["verdict"] == "bad"
    monkeypatch.setattr(drill_reports, "KEPT_MAX", 1)
    report(tmp_path, "two")
    assert len(reports.listed([str(tmp_path)])) == 2
    assert len(reports._kept) == 1


def test_folders_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_reports, "FOLDERS_MAX", 3)
    for at in range(6):
        report(tmp_path, f"drill-{at}")
    assert len(found_in([str(tmp_path)])) == 3


@pytest.mark.parametrize("name", ["absent", "..", ".", "", "../secret", "a/b", "%2e%2e"])
def test_no_name_becomes_a_path(tmp_path: Path, name: str) -> None:
    report(tmp_path / "drills", "one")
    report(tmp_path, "secret")
    with pytest.raises(ConfigurationError, match="no drill report"):
        DrillReports().read([str(tmp_path / "drills")], name, as_json=True)


def test_a_link_to_elsewhere_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    folder = report(tmp_path / "drills", "one")
    places = [str(tmp_path / "drills")]
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(secret)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        DrillReports().read(places, "one", as_json=False)
    (folder / "report.html").unlink()
    os.mkfifo(folder / "report.html")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        DrillReports().read(places, "one", as_json=False)
    monkeypatch.setattr(drill_reports, "FILE_BYTES_MAX", 10)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        DrillReports().read(places, "one", as_json=True)


def test_a_report_is_a_page_that_can_do_nothing(tmp_path: Path) -> None:
    report(tmp_path / "drills", "one")

    async def act(fabric: AdminFabric) -> None:
        status, found = await fabric.get("/raylay/drills.json")
        assert status == 200 and [each["id"] for each in found["reports"]] == ["one"]
        for via in ("", "raylay/peer/north-1/", "raylay/peer/north-2/"):
            url = fabric.url(f"/{via}raylay/drills/one")
            async with fabric.session.get(url) as response:
                assert await response.text() == "<h1>one</h1>"
                assert response.content_type == "text/html"
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("sandbox; default-src 'none'")
                assert "script" not in policy
        async with fabric.session.get(fabric.url("/raylay/drills/one.json")) as response:
            assert json.loads(await response.read()) == REPORT
            assert response.headers["Content-Disposition"] == 'attachment; filename="one.json"'
        for name in ("two", "..%2fsecret", "one%2f..%2fone"):
            assert (await fabric.get(f"/raylay/drills/{name}"))[0] == 404

    async def run() -> None:
        async with admin_fabric(
            tmp_path / "data", topology={"drills_directories": (str(tmp_path / "drills"),)}
        ) as fabric:
            await act(fabric)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_findings_of_the_topology_check_are_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with admin_fabric(tmp_path) as fabric:
            assert await fabric.get("/raylay/check.json") == (
                200,
                {
                    "fabric": "flights",
                    "findings": [
                        {
                            "level": "warning", "text": "site down", "where": "North",
                            "what_to_do": "add a link",
                        }
                    ],
                    "checked_us": 5,
                    "problem": "",
                },
            )  # fmt: skip

    asyncio.run(asyncio.wait_for(run(), 60))
