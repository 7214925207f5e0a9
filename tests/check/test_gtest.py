"""The G-test against tables, against simulation, and against what it must find."""

import math

import numpy as np
import pytest

from ddviz.check.gtest import NOTHING, GTest, against_law, chi2_sf, ncx2_isf, ncx2_sf, of_two


@pytest.mark.parametrize(
    ("x", "freedom", "tail"),
    [(3.841459, 1, 0.05), (6.634897, 1, 0.01), (18.307038, 10, 0.05), (124.342113, 100, 0.05), (0, 3, 1.0)],
)
def test_tails_are_those_of_the_table(x, freedom, tail):
    assert chi2_sf(x, freedom) == pytest.approx(tail, rel=1e-6)
    if x:
        assert ncx2_isf(tail, freedom) == pytest.approx(x, rel=1e-6)


def test_the_noncentral_tail_is_that_of_shifted_normals():
    """Sum of 5 squares of normals, one shifted by 3, simulated 400,000 times: 5 sigma are 0.004."""
    normals = np.random.default_rng(0).normal(size=(400_000, 5)) + np.array([3, 0, 0, 0, 0])
    simulated = ((normals**2).sum(axis=1) > 15).mean()
    assert ncx2_sf(15, 5, 9) == pytest.approx(simulated, abs=0.004)


def test_what_is_allowed_shifts_what_g_is_compared_with():
    test = GTest(g=62.0, freedom=10, draws=1000, information=1000.0)
    assert test.p_value < 1e-8 and test.p_allowing(0.0) == test.p_value
    assert 0.3 < test.p_allowing(0.05) < 0.6  # the mean is 10 + 50
    assert ncx2_sf(ncx2_isf(1e-4, 10, 50), 10, 50) == pytest.approx(1e-4, rel=1e-3)
    assert test.divergence_found(1e-4, allowed=0.05) > 0.1 > test.divergence_found(1e-4)


def test_the_noncentral_tail_far_out():
    """Beyond the mean of its mixture the terms near x weigh; the values are summed with 60 digits."""
    assert ncx2_sf(500, 10, 100) == pytest.approx(7.82249e-34, rel=1e-4)
    assert ncx2_sf(2000, 10, 1000) == pytest.approx(7.99506e-39, rel=1e-4)


def test_g_of_a_table_small_enough_to_check_by_hand():
    """60 heads of 100: G = 2 (60 ln 1.2 + 40 ln 0.8)."""
    test = against_law([60, 40], [0.5, 0.5])
    assert test.g == pytest.approx(2 * (60 * math.log(1.2) + 40 * math.log(0.8)))
    assert (test.freedom, test.draws) == (1, 100)


def test_an_outcome_that_can_not_be_is_found_however_rare():
    assert against_law([9_999, 1, 0], [0.5, 0.0, 0.5]).p_value == 0.0


def test_rare_outcomes_share_a_bin():
    assert against_law([50, 45, 3, 2], [0.5, 0.44, 0.03, 0.03]).freedom == 1  # 3 + 3 < 10: with the 44, too
    assert against_law([500, 400, 60, 40], [0.5, 0.4, 0.06, 0.04]).freedom == 3


def test_too_few_draws_say_nothing():
    assert against_law([3, 4], [0.5, 0.5]) == NOTHING and NOTHING.p_value == 1.0
    assert of_two({"a": 3}, {"a": 4}) == NOTHING == of_two({}, {"a": 400})


def test_false_alarms_are_as_frequent_as_promised_and_power_is_as_told():
    """1,000 right samples: 10 alarms are expected at 1 %, more than 30 have odds below 1e-7.

    And 400 samples of a law at the divergence that the test says it finds in 99 of 100: 4 misses are
    expected, more than 16 have odds of about 1e-5. Seeded, so both only once.
    """
    rng = np.random.default_rng(1)
    law = np.array([0.4, 0.3, 0.2, 0.1])
    right = [against_law(rng.multinomial(1000, law), law) for _ in range(1000)]
    assert sum(test.p_value < 0.01 for test in right) <= 30
    found = right[0].divergence_found(0.01)
    size = next(x for x in np.linspace(0, 0.3, 3001) if _divergence(_bent(law, x), law) > found)
    bent = [against_law(rng.multinomial(1000, _bent(law, size)), law) for _ in range(400)]
    assert sum(test.p_value >= 0.01 for test in bent) <= 16
    two = []
    for _ in range(1000):
        one, other = rng.multinomial(1000, law), rng.multinomial(1000, law)
        two.append(of_two(dict(enumerate(one)), dict(enumerate(other))))
    assert sum(test.p_value < 0.01 for test in two) <= 30
    found = two[0].divergence_found(0.01)
    size = next(x for x in np.linspace(0, 0.3, 3001) if _divergence(_bent(law, x), law) > found)
    missed = 0
    for _ in range(400):
        one, other = rng.multinomial(1000, law), rng.multinomial(1000, _bent(law, size))
        missed += of_two(dict(enumerate(one)), dict(enumerate(other))).p_value >= 0.01
    assert missed <= 16


def _bent(law, size):
    return law + size * np.array([1, -1, 0, 0])


def _divergence(one, other):
    return float((one * np.log(one / other)).sum())
