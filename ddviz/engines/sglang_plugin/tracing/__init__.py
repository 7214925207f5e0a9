"""Tracing of an SGLang server: every step of a traced request, from the engine's own buffers, to a file.

    tracer.py       what the worker and the hooks call; which requests are traced
    traced_step.py  one step, from before draft until its arrays are on their way
    reading.py      what is read from a step's buffers on the device, before they are used again
    ring.py         copies a step's arrays into pinned memory that the writer's process shares (slots.py)
    process.py      the writer's process, and the pipe through which it gets jobs (jobs.py)
    writer.py       turns copied bytes into events of the trace
    steps.py        arrays of one step -> schema.Step

Nothing here waits for the device on the scheduler's thread. A step that finds no room in the ring is dropped,
counted, and the trace says so; an error in tracing is logged and never reaches a request.
"""
