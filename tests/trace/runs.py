"""A small run for the tests: every part of every event is there, and nothing is random."""

from pathlib import Path

from ddviz.trace import Recorder
from ddviz.trace.docs import example_step
from ddviz.trace.schema import (
    AnyEvent,
    Dropped,
    End,
    EngineInfo,
    Header,
    Prefill,
    Prompt,
    SamplingParams,
    Step,
    Tokens,
)

TEXTS = {
    1: b"<s>",
    10: b" the",
    20: b" cat",
    21: b" dog",
    30: b" sat",
    31: b" ran",
    32: b" is",
    40: b"\xe2\x96",
}


def header(**changes: object) -> Header:
    return Header(
        **{
            "created": "2026-11-29T12:00:00+00:00",
            "engine": EngineInfo(
                name="toy", version="1", device="cpu", options={"dtype": "float32", "fault": None}
            ),
            "algorithm": "DDTREE",
            "target": "toy-target",
            "draft": "toy-draft",
            "block_size": 3,
            "budget": 3,
            "topk_cap": 2,
            "sampling": SamplingParams(temperature=1.0, seed=5, stop_token_ids=[2]),
            "vocab_size": 50,
            "request_id": "r1",
            "notes": ["made by hand"],
        }
        | changes  # type: ignore[arg-type]
    )


def step(index: int = 0) -> Step:
    """The step of docs/trace-format.md, moved on."""
    made = example_step()
    made.index = index
    made.prefix_len += 2 * index
    return made


def write_run(path: Path, steps: int = 3, **changes: object) -> Path:
    """prompt, prefill, steps, one event lost, end."""
    with Recorder(path, header(**changes), TEXTS.get, overwrite=True) as recorder:
        recorder.prompt([1, 10], "<s> the")
        recorder.prefill(Prefill(token=10, prob=0.25, coin=0.5, cached_tokens=1, time_us=12.5))
        for index in range(steps):
            recorder.step(step(index))
        recorder.dropped(steps, steps, "queue full")
        recorder.end(End(finish_reason="length", output_ids=[10, *[20, 32] * steps], steps=steps + 1))
    return path


EVENTS: list[AnyEvent] = [
    header(),
    Prompt(token_ids=[1, 10], text='<s> the "quoted" \n line'),
    Prefill(token=10, prob=0.25, coin=0.5, cached_tokens=1, time_us=12.5),
    Tokens(bytes={10: b" the", 40: b"\xe2\x96", 0: b""}),
    step(7),
    Dropped(first=3, last=5, reason="queue full"),
    End(
        finish_reason="error",
        output_ids=[10, 20],
        steps=1,
        time_us=5.0,
        message="out of memory",
        engine_text=" the cat",
    ),
]
