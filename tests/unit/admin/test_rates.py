"""services/admin/rates.py: averages of counters between two samples."""

from __future__ import annotations

from raylay.services.admin.rates import CounterRates


def test_a_rate_is_the_average_since_the_last_sample() -> None:
    rates = CounterRates()
    rates.begin(1_000_000)
    assert rates.of("a", 100) is None
    rates.begin(3_000_000)
    assert rates.of("a", 150) == 25.0
    assert rates.of("b", 7) is None


def test_a_counter_that_fell_has_begun_anew() -> None:
    rates = CounterRates()
    rates.begin(0)
    rates.of("a", 100)
    rates.begin(2_000_000)
    assert rates.of("a", 10) == 5.0


def test_a_counter_that_was_left_out_is_forgotten() -> None:
    rates = CounterRates()
    for now_us in (0, 1_000_000, 2_000_000):
        rates.begin(now_us)
        if now_us != 1_000_000:
            assert rates.of("a", 5) is None


def test_two_samples_at_one_time_have_no_rate() -> None:
    rates = CounterRates()
    rates.begin(5)
    rates.of("a", 1)
    rates.begin(5)
    assert rates.of("a", 2) is None
