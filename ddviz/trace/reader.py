"""Reading a trace: `load` a whole file, or `follow` one that is still being written.

In:  NAME.ddviz.
Out: Trace: header, prompt, prefills, steps (decoded when asked for), token bytes, end, and what was damaged.
Not here: judging what the steps say (check/doctor.py), drawing them (viewer/).

A file cut short or flipped anywhere yields every whole step before the damage, and `Trace.damage` says what
was lost.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import msgspec

from ddviz.errors import TraceError, counted
from ddviz.trace.frames import MAGIC, Budget, DamageError, decompress_frame, next_frame, require_trace
from ddviz.trace.schema import FORMAT, VERSION, AnyEvent, Dropped, End, Header, Prefill, Prompt, Step, Tokens
from ddviz.trace.tokens import TokenTable

_decoder = msgspec.json.Decoder(AnyEvent)
_tag_decoder = msgspec.json.Decoder(msgspec.defstruct("Tag", [("event", str)]))
_KNOWN_EVENTS = {event.__struct_config__.tag for event in AnyEvent.__args__}
# What msgspec raises for a line that is no event. RecursionError: brackets nested a thousand deep.
_INVALID = (msgspec.DecodeError, RecursionError)
MAX_NODES = 1 << 12  # of a step's tree; engines build up to 1,025
MAX_STAGES = 100  # of a step's times
MAX_HEADER = 1 << 20  # bytes
MAX_VALUES = 200_000  # of a step, all its lists together; one of 1,025 nodes has about 60,000
READ_SIZE = 8 << 20  # bytes of a file that are held at once
_STEP_BEGINS = b'{"event":"step",'  # as msgspec writes the tag


class StepSequence(Sequence[Step]):
    """The steps of a trace in file order; an item is decoded when it is asked for."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return decode_step(self._lines[index])

    def append_line(self, line: bytes) -> None:
        self._lines.append(line)

    def lines(self, first: int, stop: int) -> list[bytes]:
        """Steps as they stand in the file, not decoded."""
        return self._lines[first:stop]


@dataclass(slots=True)
class Trace:
    """One request, as far as it has been written."""

    path: Path
    header: Header
    prompt: Prompt | None = None
    prefills: list[tuple[int, Prefill]] = field(default_factory=list)  # (steps before it, event)
    steps: StepSequence = field(default_factory=StepSequence)
    tokens: TokenTable = field(default_factory=TokenTable)
    dropped: list[Dropped] = field(default_factory=list)
    end: End | None = None
    kinds: list[str] = field(default_factory=list)  # of every event in file order, the header's first
    damage: str | None = None  # one sentence on what could not be read
    size: int = 0  # bytes read so far
    unread: int = 0  # bytes of the file that were not looked at yet

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".ddviz")

    @property
    def output_ids(self) -> list[int]:
        """Prefill token and all emitted tokens, from the end event or, without one, from the steps."""
        if self.end is not None:
            return self.end.output_ids
        first = [self.prefills[0][1].token] if self.prefills else []
        return first + [token for step in self.steps for token in step.emitted]


class TraceFollower:
    """Reads a growing file: each `poll` takes in what has been added.

    Raises TraceError (from `poll`) for a file that is no trace or of a newer major version. A file that does
    not exist yet, or holds no whole header yet, is simply not there: `trace` stays None.

    check_steps  whether a step that is not valid counts as damage; else decoding it later may raise
    """

    def __init__(self, path: str | Path, check_steps: bool = True) -> None:
        self.path, self._check_steps = Path(path), check_steps
        self.trace: Trace | None = None
        self._offset = 0
        self._tail = b""  # bytes after the last whole frame
        self._budget = Budget()

    def poll(self, most: int | None = None) -> int:
        """Take in new whole events; how many there were. After damage nothing more is read.

        A file whose header was not whole is read from its beginning again, as another may stand there by now.

        most  bytes to read at once; `trace.unread` then says how many are left
        """
        if self.trace is not None and self.trace.damage:
            return 0
        if self.trace is None:
            self._tail, self._budget = b"", Budget()
        left, count = sys.maxsize if most is None else most, 0
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                if self.trace is not None and size < self._offset:  # a new recording under the old name
                    self.trace.damage = "the file became shorter while it was read; open it again"
                    return 0
                file.seek(self._offset + len(self._tail))
                while left > 0 and (part := file.read(min(left, READ_SIZE))):
                    left -= len(part)
                    count += self._take_in(part)
                    if self.trace is not None and self.trace.damage:
                        break
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise TraceError(f"{self.path}: can't read it ({error.strerror})") from None
        if self.trace is not None:
            unread = max(0, size - self._offset - len(self._tail))
            self.trace.unread = 0 if self.trace.damage else unread
        return count

    def torn_bytes(self) -> int:
        """Bytes after the last whole event: an event being written, or the remains of one."""
        return len(self._tail)

    def _take_in(self, part: bytes) -> int:
        self._tail += part
        if self._offset == 0:
            require_trace(self._tail[:4], str(self.path))
        position = count = 0
        try:
            while position < len(self._tail):
                frame = next_frame(self._tail, position)
                line = decompress_frame(self._tail, frame)
                self._budget.take(frame, line)
                self._event(line)
                position += frame.size
                count += 1
        except DamageError as damage:
            if not damage.torn:
                self._report(damage, position)
        self._offset += position
        self._tail = self._tail[position:]
        if self.trace is not None:
            self.trace.size = self._offset
        return count

    def _report(self, damage: DamageError, position: int) -> None:
        where = self._offset + position
        if self.trace is None and damage.foreign:
            raise _no_trace(self.path, f"it begins with {damage.reason}")
        if self.trace is None:
            raise TraceError(f"{self.path}: damaged at byte {where}, in its header: {damage.reason}")
        self.trace.damage = (
            f"damaged at byte {where}: {damage.reason}; "
            f"{counted(len(self.trace.steps), 'whole step')} before it can be read, what follows is lost"
        )

    def _event(self, line: bytes) -> None:
        trace = self.trace
        if trace is None:
            self.trace = Trace(self.path, _decode_header(line, self.path), kinds=[_kind_of(Header)])
            return
        if not self._check_steps and line.startswith(_STEP_BEGINS):
            trace.kinds.append(_kind_of(Step))
            trace.steps.append_line(line)
            return
        event = _decode(line, self._offset)
        if event is not None:
            trace.kinds.append(_kind_of(type(event)))
        match event:
            case Step():  # checked, and decoded again when asked for: 10,000 steps as objects take 0.4 GB
                trace.steps.append_line(line)
            case Prompt() as prompt:
                trace.prompt = prompt
            case Prefill() as prefill:
                trace.prefills.append((len(trace.steps), prefill))
            case Tokens() as tokens:
                trace.tokens.update(tokens.bytes)
            case Dropped() as dropped:
                trace.dropped.append(dropped)
            case End() as end:
                trace.end = end
            case Header() | None:
                pass  # a second header, which is left to the doctor; an event of a newer minor version


def load(path: str | Path, check_steps: bool = True) -> Trace:
    """Read a whole trace.

    check_steps  as TraceFollower has it: without, a long trace is read in a fifth of the time

    Raises TraceError where there is no file, no trace in it, or a newer major version. Damage further on is
    no error: see `Trace.damage`.
    """
    if Path(path).is_dir():
        raise TraceError(f"{path}: is a folder, not a trace; name one .ddviz file")
    if not Path(path).exists():
        raise TraceError(f"{path}: no such file")
    follower = TraceFollower(path, check_steps)
    follower.poll()
    trace, torn = follower.trace, follower.torn_bytes()
    if trace is None:
        require_trace(b"" if not torn else MAGIC, str(path))
        raise TraceError(f"{path}: cut off inside its header, nothing can be read")
    if torn and not trace.damage:
        trace.damage = (
            f"the last event is cut off at byte {trace.size} ({torn} bytes of it are there); "
            f"{counted(len(trace.steps), 'whole step')} can be read"
        )
    return trace


def follow(path: str | Path, interval: float = 0.05) -> Iterator[Trace]:
    """Yield the trace each time it has grown, until its end event or damage. Waits for the file to appear."""
    follower = TraceFollower(path)
    while True:
        if follower.poll() and follower.trace is not None:
            yield follower.trace
        if follower.trace is not None and (follower.trace.end is not None or follower.trace.damage):
            return
        time.sleep(interval)


def _kind_of(event: type[AnyEvent]) -> str:
    return str(event.__struct_config__.tag)


def _no_trace(path: Path, reason: str) -> TraceError:
    return TraceError(
        f"{path}: zstd-compressed, but not a ddviz trace ({reason}); record one with: ddviz record"
    )


def _decode_header(line: bytes, path: Path) -> Header:
    if len(line) > MAX_HEADER:
        raise _no_trace(path, f"its first line is longer than {MAX_HEADER >> 20} MiB")
    try:
        raw = msgspec.json.decode(line)
    except _INVALID:
        raise _no_trace(path, "its first frame is no line of JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise _no_trace(path, "its first line is no header")
    version = str(raw.get("version", ""))
    major = version.split(".")[0]
    if not (major.isascii() and major.isdecimal() and len(major) < 10):
        raise TraceError(f"{path}: its header names no version this ddviz understands: {version!r:.40}")
    if int(major) > int(VERSION.split(".")[0]):
        raise TraceError(
            f"{path}: trace format {version:.20} is newer than this ddviz reads ({VERSION}); "
            "upgrade with: pip install -U ddviz"
        )
    try:
        header = _decoder.decode(line)
    except _INVALID as error:
        raise TraceError(f"{path}: its header is not valid: {error}") from None
    if not isinstance(header, Header):
        raise TraceError(f"{path}: its first event is no header")
    return header


def _decode(line: bytes, offset: int) -> AnyEvent | None:
    """One event; None for a kind this version does not know. Raises DamageError."""
    try:
        event = _decoder.decode(line)
        if isinstance(event, Step):
            _require_short(line)
            _require_small(event)
        return event
    except _INVALID as error:
        if _is_unknown_event(line):
            return None
        raise DamageError(offset, f"an event is not valid ({error})") from None


def decode_step(line: bytes) -> Step:
    """Raises msgspec.DecodeError for a line that is no step, or one of more nodes than ddviz reads."""
    _require_short(line)
    try:
        step = _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("brackets are nested too deep") from None
    if not isinstance(step, Step):
        raise msgspec.ValidationError("it is no step")
    _require_small(step)
    return step


def _require_short(line: bytes) -> None:
    if line.count(b",") > MAX_VALUES:
        raise msgspec.ValidationError(f"a step of more than {MAX_VALUES:,} values")


def _require_small(step: Step) -> None:
    stages = len(step.times_us)
    if stages > MAX_STAGES:
        raise msgspec.ValidationError(f"a step of {stages} stages; ddviz reads up to {MAX_STAGES}")
    lists: list[Sized] = [
        step.tree.tokens,
        step.tree.parents,
        step.emitted,
        step.accept.index,
        step.accept.predicts,
    ]
    lists += [step.retrieve.index] if step.retrieve is not None else []
    lists += [step.draft.top_ids] if step.draft is not None else []
    nodes = max(map(len, lists))
    if nodes > MAX_NODES:
        raise msgspec.ValidationError(f"a step of {nodes} nodes; ddviz reads up to {MAX_NODES}")


def _is_unknown_event(line: bytes) -> bool:
    try:
        return _tag_decoder.decode(line).event not in _KNOWN_EVENTS  # type: ignore[attr-defined]
    except _INVALID:
        return False
