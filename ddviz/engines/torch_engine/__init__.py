"""The embedded engine: DDTree, linear DFlash and autoregression on any Llama or Qwen, CPU or CUDA.

models.py loads, kv_cache.py holds keys and values, drafter.py drafts, engine.py steps, record.py writes what
it did. `python -m ddviz.engines.torch_engine` is the engine as a process of its own.
"""
