"""services/client/credentials.py: who a client is by its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.client.credentials import credentials
from raylay.services.errors import ConfigurationError


def test_what_the_environment_has(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("hush\n", encoding="utf-8")
    assert credentials({}) == {}
    assert credentials({"RAYLAY_USER": "amy"}) == {"user_id": "amy"}
    wanted = {"user_id": "amy", "password": "hush"}
    assert credentials({"RAYLAY_USER": "amy", "RAYLAY_PASSWORD": "hush"}) == wanted
    assert credentials({"RAYLAY_USER": "amy", "RAYLAY_PASSWORD_FILE": str(path)}) == wanted
    path.write_text(" hush \t\r\n", encoding="utf-8")
    found = credentials({"RAYLAY_PASSWORD_FILE": str(path)})
    assert found == {"password": " hush \t"}, "only the end of the line is none of it"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "password"
    with pytest.raises(
        ConfigurationError,
        match=r"password file .*/password cannot be read: No such file .*; --password-file",
    ):
        credentials({"RAYLAY_PASSWORD_FILE": str(path)})
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is no UTF-8"):
        credentials({"RAYLAY_PASSWORD_FILE": str(path)})
    path.write_bytes(b"x" * 8_193)
    with pytest.raises(ConfigurationError, match="more than 8192 bytes"):
        credentials({"RAYLAY_PASSWORD_FILE": str(path)})
    with pytest.raises(ConfigurationError, match="unset one"):
        credentials({"RAYLAY_PASSWORD_FILE": str(path), "RAYLAY_PASSWORD": "x"})
