"""Make a long trace of recorded steps, to measure the viewer with: 10,000 steps that the doctor finds clean.

    ddviz record --prompt "Write a Python implementation of quicksort with comments." --out source.ddviz \\
        --budget 64 --topk-cap 8 --temperature 0.8 --seed 3
    python scripts/make_big_trace.py source.ddviz big.ddviz --steps 10000

Recorded steps are repeated in a ring, closed where the bonus of a step is the root of an earlier one; what
counts on (index, prefix, positions, slots, batch) is moved on. Probabilities, coins and times stay as they
were recorded, so the text goes round in circles, and each step is one that an engine made.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from ddviz.check.doctor import examine, faults
from ddviz.errors import DdvizError
from ddviz.trace import Recorder, Trace, load
from ddviz.trace.schema import Commit, End, Step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    try:
        big = make_big_trace(load(args.source), args.out, args.steps)
    except DdvizError as error:
        print(f"make_big_trace: {error}", file=sys.stderr)
        return 1
    findings = faults(examine(big))
    print(
        f"{args.out}: {len(big.steps)} steps, {big.size / 1e6:.1f} MB, {len(findings)} findings of the doctor"
    )
    for finding in findings[:5]:
        print(f"  {finding}")
    return 1 if findings else 0


def make_big_trace(source: Trace, out: Path, count: int) -> Trace:
    """Write `count` steps of the source's. Raises DdvizError where its steps close no ring."""
    steps = list(source.steps)
    first, last = ring_of(steps)
    ring = steps[first : last + 1]
    output = [source.prefills[0][1].token]
    header = msgspec.structs.replace(
        source.header,
        request_id=f"{source.header.request_id}-big",
        notes=["Recorded steps, repeated in a ring."],
    )
    body = [steps[i] if i <= last else ring[(i - first) % len(ring)] for i in range(count)]
    tokens = len(output) + sum(len(step.emitted) for step in body)
    header.sampling = msgspec.structs.replace(header.sampling, max_new_tokens=tokens)
    with Recorder(out, header, source.tokens.__getitem__, overwrite=True) as recorder:
        if source.prompt:
            recorder.prompt(source.prompt.token_ids, source.prompt.text)
        recorder.prefill(source.prefills[0][1])
        prefix = body[0].prefix_len
        for index, step in enumerate(body):
            recorder.step(moved(step, index, prefix - step.prefix_len))
            output += step.emitted
            prefix += len(step.emitted)
        recorder.end(End(finish_reason="length", output_ids=output, steps=count))
    return load(out)


def ring_of(steps: list[Step]) -> tuple[int, int]:
    """The longest run of steps whose last bonus is its first root, none of them cut short."""
    whole = [len(step.emitted) == step.accept.num_accepted + 1 for step in steps]
    rings = [
        (last - first, first, last)
        for first in range(len(steps))
        for last in range(first, len(steps))
        if all(whole[: last + 1]) and steps[last].accept.bonus == steps[first].tree.tokens[0]
    ]
    if not rings:
        raise DdvizError("no step's bonus is the root of an earlier step; record a longer trace")
    _, first, last = max(rings)
    return first, last


def moved(step: Step, index: int, by: int) -> Step:
    """A step `by` tokens further on, as step `index`."""
    batch = step.batch and msgspec.structs.replace(step.batch, id=step.batch.id - step.index + index)
    changes: dict[str, Any] = {"index": index, "prefix_len": step.prefix_len + by, "batch": batch}
    changes |= {"positions": shifted(step.positions, by), "slots": shifted(step.slots, by)}
    return msgspec.structs.replace(step, **changes, commit=step.commit and moved_commit(step.commit, by))


def moved_commit(commit: Commit, by: int) -> Commit:
    fields = {name: getattr(commit, name) for name in commit.__struct_fields__}
    return Commit(**{name: shifted(value, by) for name, value in fields.items()})


def shifted(value: Any, by: int) -> Any:
    if value is None:
        return None
    return [entry + by for entry in value] if isinstance(value, list) else value + by


if __name__ == "__main__":
    sys.exit(main())
