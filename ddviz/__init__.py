"""ddviz: a microscope and debugger for tree speculative decoding.

    engine  --writes-->  NAME.ddviz  --read by-->  doctor, viewer, app, command line

Importing this package loads neither torch nor gradio nor sglang; see the README for the layout.
"""

__version__ = "0.1.0"
