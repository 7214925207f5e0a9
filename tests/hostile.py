"""Hostile traces: how they are made, and everything of ddviz that reads one.

In:  hypothesis' choices.
Out: bytes of a file; `read_everything`, which raises what no reader may raise, and says what each part took.
Not here: how many are tried (scripts/fuzz.py, test_hostile.py).
"""

import copy
import functools
import json
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from hypothesis import strategies as st

from ddviz.analysis.batch import places_in
from ddviz.analysis.diff import diff
from ddviz.analysis.stats import stats
from ddviz.app.compare import compare_function
from ddviz.app.findings import findings_function
from ddviz.app.panels import VIEWER_FUNCTIONS, sizes_function
from ddviz.app.session import Session
from ddviz.app.traces import Registry
from ddviz.check.doctor import examine_path
from ddviz.errors import DdvizError
from ddviz.trace import TraceFollower, load
from ddviz.trace.frames import MAX_LINE, decompress_frame, next_frame
from ddviz.trace.importers import import_reference
from ddviz.trace.render import as_json, render_step, render_summary
from ddviz.viewer.graph import graph_bytes
from ddviz.viewer.html import page
from tests.synthetic import Setup, write_trace
from tests.trace.runs import write_run

LIMIT_S = 5.0  # of processor time, for each reader
LIMIT_BYTES = 1 << 30  # resident, all in all
HUGE = [2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400]
TEXTS = [
    "",
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=document.title='pwned'>",
    "\u2028\u2029",
    "\u202e\u2066\u200f",
    "\ud800",
    "\x00\x1b[31m",
    "${document.title='pwned'}{{7*7}}",
    "../../etc/passwd",
    "9" * 400,
]

# Values ----------------------------------------------------------------------------------------------

integers = st.one_of(st.integers(-3, 40), st.sampled_from(HUGE), st.integers(-(2**70), 2**70))
floats = st.floats(width=64).map(lambda x: x if abs(x) < 1e400 else None) | st.sampled_from(
    [1e308, -1e308, 5e-324, -0.0]
)
texts = st.sampled_from(TEXTS) | st.text(max_size=20)
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


@st.composite
def changed(draw: Any, document: Any, most: int = 4) -> Any:
    """A JSON document with some of its parts replaced, left out, doubled or made longer."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        key, old = path[-1], holder[path[-1]]
        how = draw(st.integers(0, 9))
        if how <= 3:  # of the same type, so that it comes past the reader
            holder[key] = draw(_like(old))
        elif how == 4:
            holder[key] = draw(values)
        elif how == 5:
            del holder[key]
        elif isinstance(old, list) and how <= 7:
            holder[key] = old[: draw(st.integers(0, len(old)))] if how == 6 else old * draw(st.integers(2, 5))
        elif isinstance(old, list):
            holder[key] = old + draw(st.lists(_like(old[0]) if old else integers, min_size=1, max_size=5))
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        else:
            holder[key] = draw(_like(old))
    return document


def _like(old: Any) -> st.SearchStrategy[Any]:
    if isinstance(old, bool):
        return st.booleans()
    if isinstance(old, int):
        return integers
    if isinstance(old, float):
        return floats | integers
    if isinstance(old, str):
        return texts
    if isinstance(old, list) and old:
        return st.lists(st.sampled_from(old) | _like(old[0]), max_size=2 * len(old))
    if isinstance(old, dict):
        return st.just({}) | st.dictionaries(st.text(max_size=5), values, max_size=3)
    return values


# Files -----------------------------------------------------------------------------------------------


@cache
def honest() -> list[bytes]:
    """Whole traces of every kind, small."""
    with tempfile.TemporaryDirectory() as folder:
        setups = [
            Setup(max_new_tokens=8, budget=6),
            Setup(max_new_tokens=8, budget=6, temperature=0.8, top_k=5, padding=2),
            Setup(max_new_tokens=6, budget=5, batch_size=2, row=1, temperature=1.0),
            Setup(max_new_tokens=6, algorithm="DFLASH"),
            Setup(max_new_tokens=4, algorithm="AR"),
            Setup(max_new_tokens=8, budget=6, retract_before=1),
        ]
        paths = [write_trace(Path(folder, f"{i}.ddviz"), setup) for i, setup in enumerate(setups)]
        paths.append(write_run(Path(folder, "run.ddviz")))
        return [path.read_bytes() for path in paths]


def frames_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        frame = next_frame(data, at)
        found.append(data[at : at + frame.size])
        at += frame.size
    return found


@cache
def documents() -> list[list[Any]]:
    """The same as JSON, an event each."""
    return [
        [json.loads(decompress_frame(part, next_frame(part, 0))) for part in frames_of(data)]
        for data in honest()
    ]


def packed(line: bytes | Any, **how: Any) -> bytes:
    """One frame: of bytes as they are, of anything else as JSON, with NaN and lone surrogates."""
    raw = line if isinstance(line, bytes) else json.dumps(line).encode("utf-8", "surrogatepass")
    settings = {"level": 1, "write_checksum": True, "write_content_size": True, **how}
    return zstandard.ZstdCompressor(**settings).compress(raw + b"\n")


@st.composite
def garbage(draw: Any) -> bytes:
    """Random bytes, some behind what a trace begins with."""
    begin = draw(st.sampled_from([b"", b"\x28\xb5\x2f\xfd", frames_of(honest()[0])[0], honest()[0][:200]]))
    return begin + draw(st.binary(max_size=400))


@st.composite
def damaged(draw: Any) -> bytes:
    """A whole trace cut, flipped, with parts moved."""
    data = bytearray(draw(st.sampled_from(honest())))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data[at:at] = draw(st.binary(max_size=20))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@st.composite
def reframed(draw: Any) -> bytes:
    """Whole frames in another order, doubled, left out, of several traces; some of another kind of zstd."""
    pool = [part for data in honest() for part in frames_of(data)]
    own = frames_of(draw(st.sampled_from(honest())))
    picked = own[:1] + draw(st.lists(st.sampled_from(own) | st.sampled_from(pool), max_size=12))
    odd = st.sampled_from(
        [
            packed(b'{"event":"x"}', write_checksum=False),
            packed(b'{"event":"x"}', write_content_size=False),
            packed(b"\0" * MAX_LINE),
            packed(b'{"event":"x","y":"' + b"a" * (MAX_LINE - 100) + b'"}'),
            packed(b"[" * 100_000),
            packed(b""),
            b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd",  # a frame to be skipped
            b"\x28\xb5\x2f\xfd\xe4" + b"\xff" * 8 + b"\x01\x00\x00",
            b"\x28\xb5\x2f\xfd\x04\x00" + b"\x00\x00\x00" * 1000 + b"\x01\x00\x00",
        ]
    )
    at = draw(st.integers(0, len(picked)))
    picked[at:at] = draw(st.lists(odd, max_size=2))
    return b"".join(picked)


@st.composite
def restated(draw: Any) -> bytes:
    """Events that are JSON, in frames that are whole, and say what no engine would."""
    events = draw(changed(draw(st.sampled_from(documents()))))
    raw = isinstance(events, list) and draw(st.booleans())
    lines = [packed(event) for event in events] if isinstance(events, list) else [packed(events)]
    if raw and lines:  # what `json` would not write
        event = draw(st.sampled_from([e for e in events if isinstance(e, dict)] or [{}]))
        text = json.dumps(event)
        old = draw(
            st.sampled_from([part for part in text.replace("[", " ").replace("]", " ").split() if part])
        )
        new = draw(st.sampled_from(["1e999", "-0", "NaN", "1" * 5000, "1.0", "0x1", '"\\ud800"', "[" * 2000]))
        lines.append(packed(text.replace(old, new, 1).encode()))
    return b"".join(lines)


@st.composite
def worded(draw: Any) -> bytes:
    """Tokens of any bytes and of every plane of Unicode."""
    events = copy.deepcopy(draw(st.sampled_from(documents())))
    characters = st.text(st.characters(), min_size=1, max_size=6).map(lambda text: text.encode("utf-8"))
    planes = st.tuples(st.integers(0, 16), st.integers(0, 0xFFFF)).map(
        lambda place: chr(place[0] << 16 | place[1]).encode("utf-8", "surrogatepass")
    )
    hostile = st.sampled_from([text.encode("utf-8", "surrogatepass") for text in TEXTS])
    for event in events:
        if event.get("event") == "tokens":
            for token in event["bytes"]:
                raw = draw(characters | planes | st.binary(max_size=6) | hostile)
                event["bytes"][token] = msgspec.json.encode(raw).decode().strip('"')
        if event.get("event") == "prompt":
            event["text"] = draw(texts)
        if event.get("event") == "header":
            event["notes"], event["target"] = draw(st.lists(texts, max_size=3)), draw(texts)
    return b"".join(packed(event) for event in events)


FILES: dict[str, st.SearchStrategy[bytes]] = {
    "garbage": garbage(),
    "damaged": damaged(),
    "reframed": reframed(),
    "restated": restated(),
    "worded": worded(),
}

REFERENCE = {
    "round_trees": [
        {
            "accepted_indices": [0, 1, 3],
            "tree": {"node_token_ids": [8, 4, 9], "node_depths": [1, 1, 2], "parents": [-1, 0, 0, 1]},
        },
        {"accepted_indices": [0], "tree": {"node_token_ids": [3], "node_depths": [1], "parents": [-1, 0]}},
    ],
    "output_ids": [5, 6, 7, 8, 9, 11, 12],
    "num_input_tokens": 2,
    "acceptance_lengths": [3, 1],
    "token_text": {"8": "a", "9": " b"},
    "temperature": 0.5,
    "target": "x",
}


@st.composite
def reference(draw: Any) -> bytes:
    """What `ddviz import` reads, or nearly."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    text = json.dumps(draw(changed(REFERENCE)))
    if draw(st.integers(0, 4)) == 0:
        text = text[: draw(st.integers(0, len(text)))] + draw(st.sampled_from(["", "[" * 5000, "NaN", "\0"]))
    return text.encode("utf-8", "surrogatepass")


# Large files, each made to cost a reader much -----------------------------------------------------------


def _with_step(change: Callable[[dict[str, Any]], object], times: int = 1) -> bytes:
    """An honest trace whose steps were changed; its last one comes so many times."""
    header, *rest = copy.deepcopy(documents()[1])
    steps = [event for event in rest if event["event"] == "step"]
    for event in steps:
        change(event)
    frames = [packed(event) for event in (header, *rest)]
    return b"".join(frames) + packed(steps[-1]) * (times - 1)


def _tree(parents: list[int], **more: Any) -> Callable[[dict[str, Any]], object]:
    n = len(parents)

    def change(event: dict[str, Any]) -> None:
        event["tree"] = {"tokens": [i % 20 for i in range(n)], "parents": parents, **more}
        for name in ("retrieve", "target", "sampling", "positions", "slots", "mask", "draft"):
            event.pop(name, None)
        event["accept"]["index"] = [0, n - 1]

    return change


def _wide_links(event: dict[str, Any]) -> None:
    n = 4_000
    _tree([-1, *[0] * (n - 1)])(event)
    links = {"index": [*range(n)], "next_token": [0] * n, "next_sibling": [*range(1, n), 1]}
    event["retrieve"] = links


def _mask(event: dict[str, Any]) -> None:
    n = 3000
    _tree([-1, *range(n - 1)])(event)
    event["mask"] = msgspec.json.encode(b"\xff" * (n * ((n + 7) // 8))).decode().strip('"')
    event["positions"] = [0] * n


def _events(line: dict[str, Any], times: int) -> bytes:
    return honest()[0] + packed(line) * times


N = 4_000  # nodes, within what the reader takes
LARGE: dict[str, Callable[[], bytes]] = {
    "a million nodes": lambda: _with_step(_tree([-1, *[0] * 999_999])),
    "a million nodes in a chain": lambda: _with_step(_tree([-1, *range(999_999)])),
    "a chain": lambda: _with_step(_tree([-1, *range(N - 1)])),
    "a star": lambda: _with_step(_tree([-1, *[0] * (N - 1)])),
    "a cycle": lambda: _with_step(_tree([-1, N - 1, *range(1, N - 1)])),
    "own parents": lambda: _with_step(_tree([*range(N)])),
    "parents out of range": lambda: _with_step(_tree([-1, *[2**62] * (N - 1)])),
    "ranks and scores": lambda: _with_step(
        _tree([-1, *[0] * (N - 1)], ranks=[0] * N, scores=[-1.0] * N), times=2
    ),
    "links in a circle": lambda: _with_step(_wide_links),
    "a large mask": lambda: _with_step(_mask),
    "the same step 500 times": lambda: _with_step(lambda event: None, times=500),
    "empty draft rows": lambda: _with_step(lambda e: e["draft"].update(top_ids=[[]] * 190_000)),
    "one draft row": lambda: _with_step(lambda e: e["draft"].update(top_ids=[[1] * 190_000])),
    "a path of a million": lambda: _with_step(lambda e: e["accept"].update(index=[0] * 190_000)),
    "a million emitted": lambda: _with_step(lambda e: e.update(emitted=[3] * 190_000)),
    "stage times": lambda: _with_step(lambda e: e.update(times_us={f"s{i}": 1.0 for i in range(200_000)})),
    "slots": lambda: _with_step(lambda e: e.update(slots=[7] * 190_000)),
    "a batch of a billion": lambda: _with_step(
        lambda e: e.update(batch={"id": 1, "size": 10**9, "row": 10**8, "q_len": 10**9})
    ),
    "prefills": lambda: _events({"event": "prefill", "token": 1}, 50_000),
    "prefills before steps": lambda: (
        _events({"event": "prefill", "token": 1}, 50_000) + frames_of(honest()[0])[4] * 5_000
    ),
    "dropped": lambda: _events({"event": "dropped", "first": 1, "last": 2, "reason": "x" * 50}, 50_000),
    "unknown events": lambda: _events({"event": "?"}, 100_000),
    "a bomb of steps": lambda: honest()[0] + packed(b'{"event":"?","a":"' + b"a" * 15_000_000 + b'"}') * 3000,
    "a bomb of one frame": lambda: honest()[0] + packed(b" " * (1 << 28)),
    "a bomb in the header": lambda: packed(b'{"event":"header","x":"' + b"a" * (1 << 28) + b'"}'),
    "a huge header": lambda: packed({**documents()[0][0], "x": [[]] * 5_000_000}) + honest()[0],
    "notes": lambda: packed({**documents()[0][0], "notes": ["</script>"] * 80_000}) + honest()[0],
    "a long token": lambda: _events({"event": "tokens", "bytes": {"3": "4oCu" * 3_000_000}}, 1),
    "a long prompt": lambda: _events(
        {"event": "prompt", "token_ids": [3] * 1_000_000, "text": "\u202e" * 1_000_000}, 1
    ),
    "a long output": lambda: _events(
        {"event": "end", "finish_reason": "stop", "output_ids": [3] * 2_000_000, "steps": 1}, 1
    ),
    "many small blocks": lambda: honest()[0] + b"\x28\xb5\x2f\xfd\x24\x00" + b"\x00\x00\x00" * 5_000_000,
    "a frame without end": lambda: (
        honest()[0] + b"\x28\xb5\x2f\xfd\x24\x00" + (b"\xf8\xff\x0f" + b"a" * 131071) * 800
    ),
}

# Readers ---------------------------------------------------------------------------------------------


class TooSlowError(Exception):
    pass


class TooLargeError(Exception):
    pass


@contextmanager
def within_limits(what: str) -> Iterator[None]:
    """Raises TooSlowError after 5 s of processor time, TooLargeError where the process grew by 1 GiB."""

    def stop(*_: object) -> None:
        raise TooSlowError(f"{what}: over {LIMIT_S} s of processor time")

    before, grown = signal.signal(signal.SIGPROF, stop), _peak()
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if _peak() - grown > LIMIT_BYTES:
        raise TooLargeError(f"{what}: {(_peak() - grown) >> 20} MiB")


def _peak() -> int:
    """Bytes that were resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def read_everything(path: Path, note: Callable[[str, float], None] | None = None) -> None:
    """Everything that reads a trace, on one file. Raises whatever is no DdvizError of one line."""
    for name, reader in [*READERS.items(), *questions(path)]:
        _try(name, functools.partial(reader, path), note)


def _try(what: str, work: Callable[[], object], note: Callable[[str, float], None] | None = None) -> None:
    start = time.process_time()
    with within_limits(what):
        try:
            work()
        except DdvizError as error:
            sentence = str(error)
            assert sentence and "\n" not in sentence and len(sentence) < 2000, f"{what}: {sentence!r}"
    if note is not None:
        note(what, time.process_time() - start)


def _load(path: Path) -> None:
    trace = load(path)
    for step in trace.steps:
        assert step.accept is not None
    assert trace.output_ids is not None
    follower = TraceFollower(path)
    few = max(97, path.stat().st_size // 100)  # bytes at a time
    while follower.poll(few) or (follower.trace is not None and follower.trace.unread):
        pass
    assert follower.trace is None or len(follower.trace.steps) == len(trace.steps)


def _show(path: Path) -> None:
    trace = load(path)
    render_summary(trace)
    json.loads(as_json(trace, None))
    for i in range(min(3, len(trace.steps))):
        render_step(trace, i)
        json.loads(as_json(trace, i))


def _doctor(path: Path) -> None:
    msgspec.json.encode(examine_path(path)[path])


def _stats(path: Path) -> None:
    stats([load(path)])


def _diff(path: Path) -> None:
    trace = load(path)
    diff(trace, trace)


def _page(path: Path) -> None:
    page(load(path), "light").encode("utf-8", "replace")  # the other level, the app is asked for


def _graph(to: str, path: Path) -> None:
    graph_bytes(load(path), 0, to)


def questions(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What the page asks of the app; each answer must be JSON as a browser reads it."""
    session = Session(None, Registry(path.parent / "none", path.parent))
    trace = session.registry.add(path)
    asked = {"trace": trace, "a": trace, "b": trace, "since": 0, "step": 0, "to": "html"}
    for make in (*VIEWER_FUNCTIONS, compare_function):
        function = make(session)
        for index in (0, 1, 2**40) if make not in (sizes_function, findings_function) else (0,):
            request = {**asked, "index": index, "since": index, "step": min(index, 1)}
            yield f"{make.__name__} {index}", functools.partial(_ask, function, request)


def _ask(function: Callable[[Any], dict[str, Any]], request: dict[str, Any], path: Path) -> None:
    answer = function(request)
    json.loads(msgspec.json.encode(answer), parse_constant=_no_constant)
    if "error" in answer:
        raise DdvizError(answer["error"])


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


READERS: dict[str, Callable[[Path], None]] = {
    "load": _load,
    "show": _show,
    "doctor": _doctor,
    "places": lambda path: places_in(path),
    "page": _page,
    **{to: functools.partial(_graph, to) for to in ("json", "dot", "graphml")},
    "stats": _stats,
    "diff": _diff,
}


def import_everything(path: Path, note: Callable[[str, float], None] | None = None) -> None:
    """The importer on one file, and what it wrote through every reader."""
    out = path.with_suffix(".imported.ddviz")
    out.unlink(missing_ok=True)
    _try("import", lambda: import_reference(path, out, overwrite=True), note)
    if out.exists():
        assert load(out).damage is None
        read_everything(out, note)
