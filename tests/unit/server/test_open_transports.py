"""Who lets everybody in over a network has to say so in so many words."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.open_transports import check_open
from raylay.services.fabric.plan import record_of
from raylay.services.server.open_transports import is_loopback

FAR = "instances: {a: {host: 10.0.0.1}}"
WHO = "authentication: {module: passwords, options: {File: who}}"
DEFAULT, IMPLICIT = "amps-default-authentication-module", "amps-implicit-authentication-module"
LINKS = "replication_authentication: {module: passwords, options: {File: who}}"
OPEN_INTERFACE = "instances: {a: {admin: {port: 8085, host: 0.0.0.0}}}"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("127.0.0.1", True), ("127.3.2.1", True), ("localhost", True), ("::1", True),
        ("[::1]", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("here", False),
    ],
)  # fmt: skip
def test_loopback(host: str, found: bool) -> None:
    assert is_loopback(host) is found


def check(directory: Path, *lines: str) -> None:
    settings = parse("\n".join(("fabric: f", *lines)))
    check_open(settings, record_of(settings, directory))


@pytest.mark.parametrize(
    "lines",
    [
        ("instances: {a: {}}",),
        ("instances: {a: {host: 127.0.0.9, replication_host: '::1'}}",),
        (FAR, "unauthenticated: allowed"),
        (FAR, WHO, LINKS),
        (FAR, f"authentication: {{module: {DEFAULT}}}", "unauthenticated: allowed"),
        (f"authentication: {{module: {DEFAULT}}}", "instances: {a: {}}"),
        (
            "instances: {a: {host: 10.0.0.1, client_transport: {authentication: "
            "{module: passwords, options: {File: who}}}}}",
            f"authentication: {{module: {DEFAULT}}}",
            LINKS,
        ),
        (
            FAR,
            "tls: {certificate: c, private_key: k, ca_file: a, verify_client: true}",
            f"authentication: {{module: {IMPLICIT}}}",
        ),
        (FAR, "tls: {certificate: c, private_key: k, ca_file: a, verify_client: true}"),
        ("instances: {a: {host: 127.0.0.1, replication_host: 10.0.0.1}}", LINKS),
        ("instances: {a: {admin: {port: 8085}}}",),
        (OPEN_INTERFACE, "authentication: {module: passwords, options: {File: who}}"),
        (
            "instances: {a: {admin: {port: 8085, host: 0.0.0.0, authentication: {module: passwords,"
            " options: {File: who}}}}}",
        ),
        (OPEN_INTERFACE, "unauthenticated: allowed"),
        (
            "instances: {a: {admin: {port: 8085, host: 0.0.0.0, tls: {certificate: c, private_key: "
            "k, ca_file: a, verify_client: true}}}}",
        ),
    ],
)
def test_who_asks_or_says_so_starts(tmp_path: Path, lines: tuple[str, ...]) -> None:
    check(tmp_path, *lines)


@pytest.mark.covers("Administration", "authentication, entitlement and sessions of the inte")
@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((FAR,), r"a: transport 'client' listens for clients on 10\.0\.0\.1"),
        ((FAR, WHO), "transport 'replication' listens for instances.*`replication_authentication`"),
        ((FAR, LINKS), "listens for clients.*`authentication`"),
        (
            ("instances: {a: {transports: [{name: more, host: 0.0.0.0}]}}",),
            r"'more' listens for clients on 0\.0\.0\.0",
        ),
        ((FAR, "tls: {certificate: c, private_key: k, ca_file: a}"), "want certificates"),
        (
            (FAR, f"authentication: {{module: {DEFAULT}}}", LINKS),
            f"listens for clients.*lets everybody in by {DEFAULT}",
        ),
        (
            (FAR, f"authentication: {{module: {IMPLICIT}, options: {{AllowSpoofing: true}}}}"),
            f"lets everybody in by {IMPLICIT}",
        ),
        (
            (FAR, WHO, f"replication_authentication: {{module: {DEFAULT}}}"),
            f"listens for instances.*lets everybody in by {DEFAULT}",
        ),
        (
            # A transport's own module counts in place of the instance's.
            (
                f"instances: {{a: {{host: 10.0.0.1, client_transport: {{authentication: {DEFAULT}}}"
                "}}",
                WHO,
                LINKS,
            ),
            f"listens for clients.*lets everybody in by {DEFAULT}",
        ),
        ((OPEN_INTERFACE,), r"a: the administrator's interface listens on 0\.0\.0\.0"),
        (
            (OPEN_INTERFACE, f"authentication: {{module: {IMPLICIT}}}"),
            "the administrator's interface listens on",
        ),
    ],
)
def test_who_asks_nobody_does_not_start(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{says}.*unauthenticated: allowed"):
        check(tmp_path, *lines)


@pytest.mark.parametrize(
    "module", ["", f"<Authentication><Module>{DEFAULT}</Module></Authentication>"]
)
def test_amps_files_start_as_documented(tmp_path: Path, module: str) -> None:
    """Without a module anybody is let in, which is that module: a file cannot say more."""
    path = tmp_path / "a.xml"
    path.write_text(
        f"<AMPSConfig><Name>a</Name><Group>g</Group>{module}<Transports><Transport><Name>t</Name>"
        "<Type>tcp</Type><InetAddr>0.0.0.0:9007</InetAddr><Protocol>amps</Protocol></Transport>"
        "</Transports></AMPSConfig>"
    )
    settings = load_fabric([path])
    assert settings.unauthenticated == "allowed"
    check_open(settings, record_of(settings, tmp_path))
