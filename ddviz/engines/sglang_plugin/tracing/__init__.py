"""Tracing of an SGLang server: every step of a traced request, from the engine's own buffers, to a file.

    start.py        the tracer of a scheduler's process, once its graphs are captured
    tracer.py       what the worker and the hooks call; which requests are traced
    traced_step.py  one step, from before draft until its arrays are on their way
    ddtree_step.py  the same of DDTREE     notes.py      what it keeps, read and packed by one CUDA graph
    builtin/        the same of SGLang's own algorithms, which hooks watch
    reading.py      what is read from a step's buffers on the device, before they are used again
    clock.py        CUDA events: when a slot is written, and stage times of SGLang's own algorithms
                    (DDTREE's are stamped by the device, ../stamps.py)
    read_rows.py    the kernel that passes over a row of logits once
    ring.py         puts a step's arrays into pinned memory that the writers' processes share (slots.py)
    process.py      those processes, and the pipes (outbox.py) through which they get jobs (jobs.py)
    writer.py       turns copied bytes into events of the trace
    steps.py        arrays of one step -> schema.Step
    rotation.py     keeps the folder within its limit

Nothing here waits for the device on the scheduler's thread. A step that finds no room in the ring is dropped,
counted, and the trace says so; an error in tracing is logged and never reaches a request.
"""
