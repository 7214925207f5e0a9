"""How often the G-test of `ddviz losslessness` alarms on right samples: `python scripts/measure_alarms.py`.

Three laws, two sizes, 10,000 samples each: the share of p-values below 0.1, 0.01 and 0.001, of one sample
against its law and of two samples.
"""

import numpy as np

from ddviz.check.gtest import against_law, of_two

SAMPLES = 10_000
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


def _shares(p_values: list[float]) -> str:
    return "  ".join(f"{np.mean(np.array(p_values) < level):.4f}" for level in LEVELS)


if __name__ == "__main__":
    main()
