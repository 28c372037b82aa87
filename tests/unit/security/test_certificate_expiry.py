"""Which certificates are warned of, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.security.certificate_expiry import (
    CLIENT_CERTIFICATES_MAX,
    DAY_US,
    ENDED,
    NEVER,
    DatedCertificate,
    ExpiryWarnings,
    ending_of_clients,
)

pytestmark = pytest.mark.covers("Administration", "a certificate is warned of")

NOW_US = 1_800_000_000_000_000
"""2027-01-15 08:00."""
OURS = DatedCertificate("/tls/a.crt", "a", False, ("transport client", "admin"), NOW_US)


def ending_in(left_us: int, file: str = "/tls/a.crt") -> DatedCertificate:
    return replace(OURS, file=file, ends_us=NOW_US + left_us)


@pytest.mark.parametrize(
    ("left_us", "days"),
    [
        (31 * DAY_US, NEVER),
        (30 * DAY_US + 1, NEVER),
        (30 * DAY_US, 30),
        (7 * DAY_US + 1, 30),
        (7 * DAY_US, 7),
        (DAY_US + 1, 7),
        (DAY_US, 1),
        (1, 1),
        (0, ENDED),
        (-DAY_US, ENDED),
    ],
)
def test_how_near_its_end_is(left_us: int, days: int) -> None:
    assert ending_in(left_us).days(NOW_US) == days


def test_each_of_four_warnings_comes_once_while_the_days_pass() -> None:
    warnings = ExpiryWarnings()
    certificate = ending_in(40 * DAY_US)
    days_left = []
    for hour in range(41 * 24):
        now_us = NOW_US + hour * DAY_US // 24
        for each in warnings.due([certificate], now_us):
            assert each is certificate
            days_left.append(each.left_us(now_us) // DAY_US)
    assert days_left == [30, 7, 1, 0]


def test_after_a_restart_the_last_warning_comes_again() -> None:
    certificate = ending_in(3 * DAY_US)
    for _ in range(2):
        warnings = ExpiryWarnings()
        assert warnings.due([certificate], NOW_US) == [certificate]
        assert warnings.due([certificate], NOW_US) == []


def test_a_renewed_certificate_is_another_one() -> None:
    warnings = ExpiryWarnings()
    old, new = ending_in(DAY_US // 2), ending_in(365 * DAY_US)
    assert warnings.due([old], NOW_US) == [old]
    assert warnings.due([new], NOW_US) == []
    later_us = new.ends_us - 30 * DAY_US
    assert warnings.due([new], later_us) == [new]


def test_a_clock_that_is_set_back_warns_of_nothing_twice() -> None:
    warnings = ExpiryWarnings()
    certificate = ending_in(5 * DAY_US)
    assert warnings.due([certificate], NOW_US) == [certificate]
    assert warnings.due([certificate], NOW_US - 90 * DAY_US) == []
    assert warnings.due([certificate], NOW_US) == []
    assert warnings.due([certificate], NOW_US + 4 * DAY_US) == [certificate]


def test_two_of_one_name_in_a_file_are_warned_of_once_each() -> None:
    warnings = ExpiryWarnings()
    pair = [ending_in(DAY_US), ending_in(2 * DAY_US)]
    assert warnings.due(pair, NOW_US) == pair
    assert warnings.due([pair[1], pair[0]], NOW_US) == []


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        (
            ending_in(7 * DAY_US),
            "the certificate a in /tls/a.crt (transport client, admin) ends in 7 days, on "
            "2027-01-22 08:00 UTC: renew it; new files are used without a restart",
        ),
        (
            ending_in(DAY_US),
            "the certificate a in /tls/a.crt (transport client, admin) ends in 1 day, on "
            "2027-01-16 08:00 UTC: renew it; new files are used without a restart",
        ),
        (
            ending_in(1),
            "the certificate a in /tls/a.crt (transport client, admin) ends in less than a day, on "
            "2027-01-15 08:00 UTC: renew it; new files are used without a restart",
        ),
        (
            replace(ending_in(-DAY_US, "/tls/ca.pem"), is_authority=True, name="our CA"),
            "the CA our CA in /tls/ca.pem (transport client, admin) has ended on 2027-01-14 08:00 "
            "UTC, and with it every certificate that it signed: make another CA, and trust both "
            "while certificates are renewed; new files are used without a restart",
        ),
    ],
)
def test_a_sentence_says_what_ends_and_what_to_do(certificate: DatedCertificate, text: str) -> None:
    assert certificate.text(NOW_US) == text


def test_the_status_of_one_that_lasts_says_no_warning() -> None:
    assert ending_in(90 * DAY_US).status(NOW_US) == {
        "file": "/tls/a.crt",
        "name": "a",
        "authority": False,
        "used_by": ["transport client", "admin"],
        "ends_us": NOW_US + 90 * DAY_US,
        "warning": "",
    }
    assert ending_in(DAY_US).status(NOW_US)["warning"] == ending_in(DAY_US).text(NOW_US)
    # The last moment that a certificate can name, in the year 9999.
    assert "9999-12-31" in replace(OURS, ends_us=253_402_300_799_000_000).text(NOW_US)


def test_clients_that_show_one_certificate_are_told_of_together() -> None:
    soon_us, later_us = NOW_US + DAY_US, NOW_US + 31 * DAY_US
    shown = [(f"desk-{number}", "desk", soon_us) for number in range(5)]
    (found,) = ending_of_clients([*shown, ("loader", "loader", later_us)], NOW_US)
    assert found.used_by == ("client desk-0", "client desk-1", "client desk-2", "2 more")
    assert not found.file and found.status(NOW_US)["warning"]


def test_certificates_of_clients_are_bounded_and_the_first_to_end_are_told_of() -> None:
    shown = [(f"c{number}", f"n{number}", NOW_US + 1_000 - number) for number in range(500)]
    found = ending_of_clients(shown, NOW_US)
    assert [each.ends_us - NOW_US for each in found] == [*range(501, 501 + CLIENT_CERTIFICATES_MAX)]
