"""The trace file: what an engine writes and everything else reads."""

from ddviz.trace.reader import StepSequence, Trace, TraceFollower, follow, load
from ddviz.trace.tokens import TokenTable
from ddviz.trace.writer import NullRecorder, Recorder, display_list, display_rows, float32, float32_list

__all__ = [
    "NullRecorder",
    "Recorder",
    "StepSequence",
    "TokenTable",
    "Trace",
    "TraceFollower",
    "display_list",
    "display_rows",
    "float32",
    "float32_list",
    "follow",
    "load",
]
