"""How often the G-test of `ddviz losslessness` alarms on right samples: `python scripts/measure_alarms.py`.

Three laws, two sizes, 10,000 samples each: the share of p-values below 0.1, 0.01 and 0.001, of one sample
against its law and of two samples. Then two engines whose logits differ by rounding as bfloat16 has it: how
often they are told apart, and two of which one accepts the first candidate too often.
"""

from collections import Counter

import numpy as np

from ddviz.check.gtest import against_law, of_two
from ddviz.check.losslessness import ALARM, rounding_of
from ddviz.tree import target_probs

SAMPLES = 10_000
ENGINES, TOKENS, DRAWS = 500, 2000, 4000
NOISE = 0.04  # of a logit, beside its rounding
LEVELS = (0.1, 0.01, 0.001)
LAWS = {
    "50 equal": np.full(50, 1 / 50),
    "399, as 1/k": 1 / np.arange(1, 400),
    "40, as e^-k": np.exp(-np.arange(40)),
}


def main() -> None:
    rng = np.random.default_rng(0)
    for name, weights in LAWS.items():
        law = weights / weights.sum()
        for draws in (500, 4000):
            one = [against_law(rng.multinomial(draws, law), law).p_value for _ in range(SAMPLES)]
            two = [
                of_two(*(dict(enumerate(rng.multinomial(draws, law))) for _ in range(2))).p_value
                for _ in range(SAMPLES)
            ]
            print(f"{name:12} {draws:5} draws  one sample {_shares(one)}   two {_shares(two)}")
    rounding(rng)


def rounding(rng: np.random.Generator) -> None:
    """Pairs of engines in bfloat16, each with logits of its own for the same row."""
    for temperature in (1.0, 0.6, 0.3):
        told, nats = Counter(), []
        for _ in range(ENGINES):
            logits = 20 + 3 * rng.standard_normal(TOKENS)
            mine, other = (
                target_probs(_bfloat16(logits + NOISE * rng.standard_normal(TOKENS)), temperature)
                for _ in range(2)
            )
            nats.append(float((mine * np.log(mine / other)).sum()))
            first = int(mine.argmax())
            biased = mine * (1 - np.sqrt(mine[first])) / (1 - mine[first])
            biased[first] = np.sqrt(mine[first])  # as a squared coin accepts it
            for kind, probs in (("right", mine), ("biased", biased)):
                test = of_two(_drawn(rng, probs), _drawn(rng, other))
                told[kind, "exact"] += test.p_value < ALARM
                told[kind, "rounding"] += test.p_allowing(rounding_of("bfloat16", temperature)) < ALARM
        rates = "   ".join(f"{' '.join(key)} {n / ENGINES:.3f}" for key, n in sorted(told.items()))
        far = f"{np.mean(nats):.4f} nats apart, 99 % {np.quantile(nats, 0.99):.4f}"
        print(f"T {temperature}  {far}   told apart: {rates}")


def _drawn(rng: np.random.Generator, probs: np.ndarray) -> dict[int, int]:
    weights = probs.astype(np.float64)
    counts = rng.multinomial(DRAWS, weights / weights.sum())
    return {int(token): int(counts[token]) for token in np.flatnonzero(counts)}


def _bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _shares(p_values: list[float]) -> str:
    return "  ".join(f"{np.mean(np.array(p_values) < level):.4f}" for level in LEVELS)


if __name__ == "__main__":
    main()
