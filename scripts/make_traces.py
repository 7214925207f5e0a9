"""Record the samples in traces/ anew: `make traces`. Needs the demo pair; takes a minute or two on a CPU.

`make_traces.py NAME ...` records those alone. Then the lesson about a sick trace gets a copy of animal-seed1
with three faults.
"""

import sys
from pathlib import Path

from msgspec.structs import replace

from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.torch_engine.loading import load_engine
from ddviz.engines.torch_engine.record import Recording
from ddviz.trace import Recorder, Trace, load
from ddviz.trace.schema import Step
from ddviz.tree import pack_mask, unpack_mask

QUICKSORT = "Write a Python implementation of quicksort with comments."
ANIMAL = "Name a random animal and a color."
SAMPLES = {
    "quicksort-greedy": GenerateParams(prompt=QUICKSORT, seed=0),
    "quicksort-t0.6": GenerateParams(prompt=QUICKSORT, temperature=0.6, seed=1),
    "quicksort-t1.0": GenerateParams(prompt=QUICKSORT, temperature=1.0, seed=1),
    "animal-seed1": GenerateParams(prompt=ANIMAL, temperature=1.0, seed=1),
    "animal-seed2": GenerateParams(prompt=ANIMAL, temperature=1.0, seed=2),
    "quicksort-dflash": GenerateParams(prompt=QUICKSORT, mode="dflash", seed=0),
    "quicksort-ar": GenerateParams(prompt=QUICKSORT, mode="ar", seed=0),
}
ROOT = Path(__file__).parent.parent
WELL, SICK = ROOT / "traces/animal-seed1.ddviz", ROOT / "ddviz/learn/sick.ddviz"


def main(names: list[str]) -> int:
    folder = ROOT / "traces"
    engine = load_engine(
        EngineOptions(device="cpu"), lambda state, sentence, _: print(sentence, file=sys.stderr)
    )
    for name in names or SAMPLES:
        params = SAMPLES[name]
        path = folder / f"{name}.ddviz"
        with Recording(path, overwrite=True, request_id=name) as recording:
            result = engine.generate(params, recording)
        accept = sum(result.accept_lengths) / result.steps
        print(f"{path.name}: {result.steps} steps, accept length {accept:.2f}, {result.finish_reason}")
    make_sick(load(WELL), SICK)
    return 0


def make_sick(trace: Trace, path: Path) -> None:
    """The trace with a fault in the mask of step 4, the positions of step 7 and the coin of step 9."""
    plants = {4: _see_a_cousin, 7: _stand_by_index, 9: _change_the_coin}
    with Recorder(path, trace.header, trace.tokens.__getitem__, overwrite=True) as recorder:
        recorder.prompt(trace.prompt.token_ids, trace.prompt.text)
        for _, prefill in trace.prefills:
            recorder.prefill(prefill)
        for step in trace.steps:
            recorder.step(plants.get(step.index, lambda same: same)(step))
        recorder.end(trace.end)


def _see_a_cousin(step: Step) -> Step:
    """Node 10, below node 3, sees node 1, another child of the root."""
    mask = unpack_mask(step.mask, step.batch.q_len)
    mask[10, 1] = True
    return replace(step, mask=pack_mask(mask))


def _stand_by_index(step: Step) -> Step:
    """The position of node 16 is counted by its index, not by its depth."""
    return replace(step, positions=[*step.positions[:16], step.prefix_len + 16, *step.positions[17:]])


def _change_the_coin(step: Step) -> Step:
    """The root's coin is one with which none of its children would have been accepted."""
    return replace(step, sampling=replace(step.sampling, coins=[0.625, *step.sampling.coins[1:]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
