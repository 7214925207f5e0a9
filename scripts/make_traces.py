"""Record the samples in traces/ anew: `make traces`. Needs the demo pair; takes a minute or two on a CPU."""

import sys
from pathlib import Path

from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.torch_engine.loading import load_engine
from ddviz.engines.torch_engine.record import Recording

QUICKSORT = "Write a Python implementation of quicksort with comments."
ANIMAL = "Name a random animal and a color."
SAMPLES = {
    "quicksort-greedy": GenerateParams(prompt=QUICKSORT, seed=0),
    "quicksort-t0.6": GenerateParams(prompt=QUICKSORT, temperature=0.6, seed=1),
    "quicksort-t1.0": GenerateParams(prompt=QUICKSORT, temperature=1.0, seed=1),
    "animal-seed1": GenerateParams(prompt=ANIMAL, temperature=1.0, seed=1),
    "animal-seed2": GenerateParams(prompt=ANIMAL, temperature=1.0, seed=2),
    "quicksort-dflash": GenerateParams(prompt=QUICKSORT, mode="dflash", seed=0),
}


def main() -> int:
    folder = Path(__file__).parent.parent / "traces"
    engine = load_engine(
        EngineOptions(device="cpu"), lambda state, sentence, _: print(sentence, file=sys.stderr)
    )
    for name, params in SAMPLES.items():
        path = folder / f"{name}.ddviz"
        with Recording(path, overwrite=True, request_id=name) as recording:
            result = engine.generate(params, recording)
        accept = sum(result.accept_lengths) / result.steps
        print(f"{path.name}: {result.steps} steps, accept length {accept:.2f}, {result.finish_reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
