"""services/security/modules.py and credentials.py: options, and what is never shown."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.security.credentials import Credentials
from raylay.services.security.modules import ModuleConfig, without_secrets


def test_secrets_are_shown_nowhere() -> None:
    config = ModuleConfig("m", {"Password": "hush", "Secret": "hush", "User": "bob"})
    assert "hush" not in repr(config) and "bob" in repr(config)
    assert config.shown() == {"Password": "***", "Secret": "***", "User": "bob"}
    assert "hush" not in repr(Credentials("c", "bob", "hush"))


def test_a_secret_is_recognized_by_the_name_of_its_option() -> None:
    options = {
        "HTTPHeader": "Authorization: hush",
        "BindPassword": "hush",
        "AccessToken": "hush",
        "ApiKey": "hush",
        "Passphrase": "hush",
        "Credentials": "hush",
        "ResourceURI": "http://amy:hush@host/a@b",
        "SecretFile": "file",
        "PasswordEnvironmentVariable": "VARIABLE",
    }
    shown = {
        **dict.fromkeys(("HTTPHeader", "BindPassword", "AccessToken"), "***"),
        **dict.fromkeys(("ApiKey", "Passphrase", "Credentials"), "***"),
        "ResourceURI": "http://***@host/a@b",
        "SecretFile": "file",
        "PasswordEnvironmentVariable": "VARIABLE",
    }
    assert ModuleConfig("m", options).shown() == shown
    given = {"instances": [{"authenticator": {"module": "m", "options": options}, "options": 1}]}
    assert without_secrets(given) == {
        "instances": [{"authenticator": {"module": "m", "options": shown}, "options": 1}]
    }


def test_options_that_are_unknown_or_missing_are_refused() -> None:
    config = ModuleConfig("m", {"Fiel": "a"})
    with pytest.raises(ConfigurationError, match=r"^here: module m has no option 'Fiel': .*File"):
        config.check_options(("File",), "here")
    with pytest.raises(ConfigurationError, match="there are none"):
        config.check_options((), "here")
    with pytest.raises(ConfigurationError, match="needs the option 'File'"):
        ModuleConfig("m").check_options(("File",), "here", needs=("File",))


@pytest.mark.parametrize(
    ("text", "is_true"),
    [("true", True), ("Enabled", True), ("0", False), ("disabled", False), ("", True)],
)
def test_options_that_are_true_or_false(text: str, is_true: bool) -> None:
    assert ModuleConfig("m", {"A": text}).truth("A", True, "here") is is_true


def test_neither_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="here: A is 'perhaps': give true or false"):
        ModuleConfig("m", {"A": "perhaps"}).truth("A", True, "here")
