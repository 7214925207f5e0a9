"""The app: Live and Replay in a browser, served by Gradio on this machine.

    main.py              builds the page, launches it
    live.py, replay.py   one tab each
    samples.py           the samples that Replay offers while no trace is open
    panels.py            the HTML panels and their server functions; *.js and app.css run in the browser
    session.py           the engine and its current run
    traces.py            which trace files may be read, each by an opaque id
    guard.py, access.py, uploads.py: who may ask what, and where uploads lie

Not here: drawing a tree (viewer/), computing one (engines/). The two meet in trace files.
"""

import os

from ddviz.app.uploads import uploads_folder

os.environ["GRADIO_TEMP_DIR"] = str(uploads_folder())  # before Gradio is imported: a part of it looks then
