"""The G-test: do counts come from a distribution, or two sets of counts from one; and what would have shown.

In:  counts of outcomes, and their law or the counts of another sample.
Out: GTest: G, degrees of freedom, p-value, and the divergence that it finds.
Not here: what is counted (losslessness.py, scripts/gpu/checks/sampled.py).

G is compared with the chi-square distribution. That holds where no outcome is expected fewer than LEAST
times: rarer ones share one bin. docs/losslessness.md has the measured rate of false alarms.

Two right engines of a 16-bit dtype are a little apart by rounding. Nats that are allowed for it shift the
distribution that G is compared with.
"""

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST = 10.0  # expected counts of a bin
POWER = 0.99  # at which `divergence_found` says what the test finds

Outcome = TypeVar("Outcome", bound=Hashable)


class GTest(NamedTuple):
    """G of one test, or the sum over independent ones."""

    g: float
    freedom: int  # degrees of freedom; 0 = too few counts to say anything
    draws: int  # that were tested
    information: float  # noncentrality per nat of divergence

    def __add__(self, other: "GTest") -> "GTest":  # type: ignore[override]
        return GTest(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def p_value(self) -> float:
        """How often a right sampler gives as large a G."""
        return self.p_allowing(0.0)

    def p_allowing(self, nats: float) -> float:
        """How often a sampler that is this far from right, in nats a draw, gives as large a G."""
        return ncx2_sf(self.g, self.freedom, self.information * nats) if self.freedom else 1.0

    def divergence_found(self, alarm: float, allowed: float = 0.0) -> float:
        """The smallest divergence, in nats a draw, that is found with probability POWER at this alarm level.

        Of what was sampled from what should have been: Kullback-Leibler, rare outcomes in one bin.
        allowed  nats that raise no alarm
        """
        if not self.freedom or not self.information:
            return math.inf
        limit = ncx2_isf(alarm, self.freedom, self.information * allowed)
        found = _bisect(lambda shift: POWER - ncx2_sf(limit, self.freedom, shift), 0.0, 1e7)
        return found / self.information


NOTHING = GTest(0.0, 0, 0, 0.0)


def against_law(counts: ArrayLike, law: ArrayLike) -> GTest:
    """G of counts [k] against probabilities [k]; a count where the probability is 0 gives an infinite G."""
    observed, probs = np.asarray(counts, np.float64), np.asarray(law, np.float64)
    total = observed.sum()
    if total and (observed[probs == 0] > 0).any():
        return GTest(math.inf, 1, int(total), 2 * total)
    observed, expected = _pooled(observed, probs * total)
    if len(expected) < 2:
        return NOTHING
    expected *= total / expected.sum()  # float32 rows sum to 1 within rounding
    return GTest(2 * _information(observed, expected), len(expected) - 1, int(total), 2 * total)


def of_two(one: Mapping[Outcome, int], other: Mapping[Outcome, int]) -> GTest:
    """G of two samples of one unknown distribution (homogeneity)."""
    outcomes = list(one.keys() | other.keys())
    counts = np.array([[sample.get(key, 0) for key in outcomes] for sample in (one, other)], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    if not totals.all():
        return NOTHING
    share = totals / totals.sum()
    smaller = counts.sum(axis=0) * share.min()
    bins = _bins(smaller)
    counts = np.stack([np.bincount(bins, row) for row in counts])
    if counts.shape[1] < 2:
        return NOTHING
    expected = counts.sum(axis=0) * share
    # NOTE: of small shifts of one arm against the other; 1 / (1/n + 1/m) draws say as much as one sample's.
    information = float(2 / (1 / totals).sum())
    g = 2 * _information(counts, expected)
    return GTest(g, counts.shape[1] - 1, int(totals.sum()), information)


def chi2_sf(x: float, freedom: float) -> float:
    """Probability that a chi-square variable exceeds x."""
    return 0.0 if math.isinf(x) else _gamma_q(freedom / 2, x / 2)


def ncx2_isf(tail: float, freedom: float, shift: float = 0.0) -> float:
    """The value that a chi-square variable, noncentral by `shift`, exceeds with this probability."""
    return _bisect(lambda x: ncx2_sf(x, freedom, shift) - tail, 0.0, 20 * (freedom + shift) + 2000)


def ncx2_sf(x: float, freedom: float, shift: float) -> float:
    """As chi2_sf, noncentral: a Poisson mixture of chi-squares, over the terms that weigh."""
    half = shift / 2
    if half == 0 or math.isinf(x):
        return chi2_sf(x, freedom)
    if shift + freedom > 50 * (x + 100):  # all of it lies beyond x
        return 1.0
    spread = 7 * math.sqrt(half) + 10
    terms = range(max(0, int(half - spread)), int(max(half, x / 2) + spread))
    weights = [math.exp(-half + j * math.log(half) - math.lgamma(j + 1)) for j in terms]
    return sum(w * chi2_sf(x, freedom + 2 * j) for j, w in zip(terms, weights, strict=True))


def _pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    bins = _bins(expected)
    return np.bincount(bins, observed), np.bincount(bins, expected)


def _bins(expected: NDArray[np.float64]) -> NDArray[np.intp]:
    """A bin for each outcome; rare ones share bin 0, with the rarest of the others where they are too few."""
    rare = expected < LEAST
    bins = np.where(rare, 0, np.cumsum(~rare))
    if rare.any() and not rare.all() and expected[rare].sum() < LEAST:
        fill = np.flatnonzero(~rare)[expected[~rare].argmin()]
        bins[fill] = 0
        used = np.unique(bins)
        bins = np.searchsorted(used, bins)
    elif not rare.any():
        bins -= 1
    return bins


def _information(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    seen = observed > 0
    return float((observed[seen] * np.log(observed[seen] / expected[seen])).sum())


def _gamma_q(a: float, x: float) -> float:
    """Upper regularised incomplete gamma function, by series below a + 1, by continued fraction above."""
    if x <= 0:
        return 1.0
    front = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, 100_000):
            term *= x / (a + n)
            total += term
            if term < total * 1e-15:
                break
        return max(0.0, 1 - front * total)
    b, c = x + 1 - a, 1e300
    d = h = 1 / b
    for n in range(1, 100_000):
        an = -n * (n - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * h


def _bisect(falling, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    """Where a falling function crosses 0, to eight digits."""
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high
