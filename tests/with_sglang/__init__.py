"""The plugin inside the real SGLang, on a machine without a GPU: `make test-sglang`."""
