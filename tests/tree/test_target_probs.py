import math

import numpy as np
import pytest

from ddviz.tree import target_probs


def logits_of(*probs):
    return np.log(np.array(probs, np.float32))


# ------------------------------------------------------------------ literal


def test_without_filters_it_is_the_softmax():
    assert target_probs(logits_of(0.5, 0.3, 0.2), 1.0) == pytest.approx([0.5, 0.3, 0.2])


def test_temperature_divides_the_logits():
    # p^(1/0.5) = p^2: .25 .09 .04, over their sum .38
    assert target_probs(logits_of(0.5, 0.3, 0.2), 0.5) == pytest.approx(
        [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]
    )


def test_top_k_keeps_the_k_most_likely():
    probs = target_probs(logits_of(0.2, 0.5, 0.3), 1.0, top_k=2)
    assert probs == pytest.approx([0, 0.5 / 0.8, 0.3 / 0.8])


def test_top_p_keeps_the_fewest_whose_mass_reaches_p():
    logits = logits_of(0.2, 0.5, 0.3)
    assert target_probs(logits, 1.0, top_p=0.45) == pytest.approx([0, 1, 0])
    assert target_probs(logits, 1.0, top_p=0.55) == pytest.approx([0, 0.5 / 0.8, 0.3 / 0.8])
    assert target_probs(logits, 1.0, top_p=0.95) == pytest.approx([0.2, 0.5, 0.3])
    assert target_probs(logits_of(0.5, 0.25, 0.25), 1.0, top_p=0.5).tolist() == [1, 0, 0]  # reached exactly


def test_top_k_comes_first_and_top_p_sees_its_renormalised_mass():
    # .4 .3 .2 .1, top_k = 2 -> .57 .43, and .57 alone reaches .5. Jointly, on the raw masses, .4 would not.
    logits = logits_of(0.4, 0.3, 0.2, 0.1)
    assert target_probs(logits, 1.0, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert target_probs(logits, 1.0, top_p=0.5) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_ties_at_the_border_are_all_kept():
    logits = logits_of(0.4, 0.2, 0.2, 0.2)
    assert (target_probs(logits, 1.0, top_k=2) > 0).tolist() == [True] * 4
    assert (target_probs(logits, 1.0, top_p=0.5) > 0).tolist() == [True] * 4


@pytest.mark.parametrize("top_k", [0, 3, 4, 1000])
def test_off_values_of_the_filters_change_nothing(top_k):
    logits = logits_of(0.5, 0.3, 0.2)
    assert (target_probs(logits, 0.7, top_k, 1.0) == target_probs(logits, 0.7)).all()


def test_top_k_of_one_leaves_the_argmax():
    assert target_probs(logits_of(0.2, 0.5, 0.3), 1.3, top_k=1).tolist() == [0, 1, 0]


def test_a_tiny_top_p_leaves_the_argmax():
    assert target_probs(logits_of(0.2, 0.5, 0.3), 1.0, top_p=1e-300).tolist() == [0, 1, 0]


def test_a_masked_token_has_probability_zero():
    assert target_probs(np.array([0, -np.inf, 0]), 1.0).tolist() == [0.5, 0, 0.5]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3])
def test_a_row_without_a_distribution_is_nan_and_spoils_no_other(bad):
    probs = target_probs(np.array([bad, [0, 0, 0]], np.float32), 1.0, top_k=2, top_p=0.9)
    assert np.isnan(probs[0]).all()
    assert probs[1] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "sentence"),
    [
        (0.0, 0, 1.0, "temperature = 0.0, must be > 0"),
        (-1.0, 0, 1.0, "temperature = -1.0"),
        (math.nan, 0, 1.0, "temperature = nan"),
        (1.0, -1, 1.0, "top_k = -1, must be >= 0"),
        (1.0, 0, 0.0, r"top_p = 0.0, must be in \(0, 1\]"),
        (1.0, 0, 1.5, "top_p = 1.5"),
        (1.0, 0, math.nan, "top_p = nan"),
    ],
)
def test_values_out_of_range_are_an_error(temperature, top_k, top_p, sentence):
    with pytest.raises(ValueError, match=sentence):
        target_probs(np.zeros(3, np.float32), temperature, top_k, top_p)


# ------------------------------------------------------------------ reference


def one_row(logits, temperature, top_k, top_p):
    """The same in plain Python, one token after the other, in float64."""
    weights = [math.exp((float(x) - max(map(float, logits))) / temperature) for x in logits]
    probs = [w / sum(weights) for w in weights]
    if 0 < top_k < len(probs):
        kth = sorted(probs, reverse=True)[top_k - 1]
        probs = renormalised([p if p >= kth else 0.0 for p in probs])
    if top_p < 1:
        mass, least = 0.0, 0.0
        for p in sorted(probs, reverse=True):
            mass, least = mass + p, p
            if mass >= top_p:
                break
        probs = renormalised([p if p >= least else 0.0 for p in probs])
    return probs


def renormalised(probs):
    return [p / sum(probs) for p in probs]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.7), (8, 0.6), (1, 0.2), (50, 0.999)])
def test_rows_equal_the_plain_python_reference(temperature, top_k, top_p):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (4, 5, 40)).astype(np.float32)
    logits[0, 0, :20] = 1.0  # ties
    probs = target_probs(logits, temperature, top_k, top_p)
    assert probs.dtype == np.float32
    assert probs.shape == logits.shape
    for index in np.ndindex(4, 5):
        expected = one_row(logits[index], temperature, top_k, top_p)
        assert probs[index] == pytest.approx(expected, abs=2e-6)
        assert ((probs[index] > 0) == (np.array(expected) > 0)).all()


# ------------------------------------------------------------------ property


def test_rows_sum_to_one_and_the_argmax_survives_every_filter():
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 4, (50, 300)).astype(np.float32)
    for top_k, top_p in [(0, 1.0), (3, 1.0), (0, 0.3), (20, 0.5)]:
        probs = target_probs(logits, 0.8, top_k, top_p)
        assert probs.sum(axis=-1) == pytest.approx(np.ones(50), abs=1e-5)
        assert (probs.argmax(axis=-1) == logits.argmax(axis=-1)).all()
