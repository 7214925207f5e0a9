"""The container of a trace: one zstd frame per line, each with its content size and checksum.

In:  bytes of a file, or one line of JSON.
Out: where each frame lies, or one frame.
Not here: what the lines mean (schema.py).

A frame that is independent makes an append atomic enough, random access cheap, and `zstdcat x.ddviz | jq`
work. The reader walks the frames itself, since zstandard's `read_across_frames` drops a torn last frame in
silence. The layout, RFC 8878:

    magic 4 | descriptor 1 | window 0-1 | dictionary id 0-4 | content size 0-8 | blocks | checksum 0-4
"""

from typing import NamedTuple

import zstandard

from ddviz.errors import TraceError

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_LINE = 16 << 20  # bytes of JSON in one event; the largest honest step (1,025 nodes) is under 2 MiB
MAX_TOTAL = (
    700 << 20
)  # bytes of JSON in one trace, which is held in memory; 10,000 steps of 64 nodes: 250 MiB
MAX_RATIO = 100  # bytes of JSON for each of the file, on the whole; honest traces have 2 to 4
MAX_EVENTS = 250_000  # of one trace; 10,000 steps have about 20,000
MAX_BLOCKS = 1 << 14  # of one frame; zstd's are of 128 KiB as a rule
FREE = 32 << 20  # bytes of JSON before the ratio counts
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3


class Frame(NamedTuple):
    offset: int
    size: int


class DamageError(Exception):
    """The bytes at `offset` are no whole frame of a trace.

    torn     the file just ends, as one being written does
    foreign  zstd's, but not of the kind that ddviz writes
    """

    def __init__(self, offset: int, reason: str, torn: bool = False, foreign: bool = False) -> None:
        super().__init__(reason)
        self.offset, self.reason, self.torn, self.foreign = offset, reason, torn, foreign


def compress_line(line: bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    return compressor.compress(line + b"\n")


def new_compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True)


def next_frame(data: bytes | memoryview, offset: int) -> Frame:
    """The frame that starts at `offset` of `data`, found from its block headers alone. Raises DamageError."""
    end = len(data)

    def need(position: int) -> None:
        if position > end:
            raise DamageError(offset, "the last frame is cut off", torn=True)

    head = bytes(data[offset : offset + 4])
    if head != MAGIC[: len(head)]:
        raise DamageError(offset, "no zstd frame starts here")
    need(offset + 5)
    descriptor = data[offset + 4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    checksum_bytes = 4 * (descriptor >> 2 & 1)
    position = offset + 5 + (1 - single_segment) + dictionary_bytes + content_size_bytes
    last, blocks = False, 0
    while not last:
        if position - offset > MAX_LINE or blocks > MAX_BLOCKS:
            raise DamageError(offset, f"a frame larger than {MAX_LINE >> 20} MiB", foreign=True)
        blocks += 1
        need(position + 3)
        block = int.from_bytes(data[position : position + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED_BLOCK:
            raise DamageError(offset, "a block of reserved type")
        position += 3 + (1 if kind == _RLE_BLOCK else size)
    need(position + checksum_bytes)
    return Frame(offset, position + checksum_bytes - offset)


def decompress_frame(data: bytes | memoryview, frame: Frame) -> bytes:
    """The line in a frame. Raises DamageError for a wrong checksum, an absent or oversized content size."""
    raw = bytes(data[frame.offset : frame.offset + frame.size])
    try:
        parameters = zstandard.get_frame_parameters(raw)
        if not parameters.has_checksum or parameters.content_size > MAX_LINE:
            # a stream's unknown size reads as 2^64 - 1
            size = f"{MAX_LINE >> 20} MiB"
            raise DamageError(frame.offset, f"a frame without checksum, or larger than {size}", foreign=True)
        return zstandard.ZstdDecompressor().decompress(raw)
    except zstandard.ZstdError as error:
        raise DamageError(frame.offset, f"a frame does not decompress ({error})") from None


class Budget:
    """How much a file may unpack to: raises DamageError where it is more than ddviz reads, a bomb say."""

    def __init__(self) -> None:
        self._packed = self._unpacked = self._events = 0

    def take(self, frame: Frame, line: bytes) -> None:
        self._packed += frame.size
        self._unpacked += len(line)
        self._events += 1
        if self._events > MAX_EVENTS:
            raise DamageError(frame.offset, f"it holds more than {MAX_EVENTS:,} events")
        if self._unpacked > MAX_TOTAL:
            raise DamageError(frame.offset, f"it unpacks to more than {MAX_TOTAL >> 20} MiB")
        if self._unpacked > FREE and self._unpacked > MAX_RATIO * self._packed:
            raise DamageError(frame.offset, f"it unpacks to more than {MAX_RATIO} times its size")


def require_trace(head: bytes, path: str) -> None:
    """Raises TraceError unless the first bytes of a file are those of a trace, or the beginning of them."""
    if not head:
        raise TraceError(f"{path}: the file is empty, so it is no trace")
    if head[:4] != MAGIC[: len(head)]:
        raise TraceError(
            f"{path}: not a .ddviz trace (no zstd frame at its start); record one with: ddviz record"
        )
