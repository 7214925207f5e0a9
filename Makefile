# ddviz. `make help` lists the targets.
# JOBS=4 runs the tests in four processes.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu picks another package index for torch (a CPU build, say).

PYTHON ?= python3
VENV   := .venv
SGLANG := .venv-sglang
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PORT   ?= 7860
JOBS   ?= 2
INPUTS ?= 2000
TORCH  := torch>=2.11,<2.14

.DEFAULT_GOAL := help
.PHONY: help install run test test-sglang fuzz lint bench bench-viewer bench-load soak supply traces docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with the package and what its tests need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ddviz needs Python >= 3.11; name one with: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --index-url $(TORCH_INDEX) '$(TORCH)')
	$(BIN)/python -m pip install -e '.[test]'
	@touch $@

run: $(STAMP)  ## start the app on http://127.0.0.1:7860
	$(BIN)/ddviz --port $(PORT)

test: lint  ## run the tests
	@command -v chromium >/dev/null || echo "chromium is missing: browser tests will skip; install it with: sudo apt-get install chromium"
	@command -v dot >/dev/null || echo "dot is missing; install it with: sudo apt-get install graphviz"
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-sglang: $(SGLANG)/.installed  ## test the plugin inside SGLang, which takes 9 GB of its own; needs no GPU
	$(SGLANG)/bin/python -m pytest tests/with_sglang

$(SGLANG)/.installed: pyproject.toml
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install -e '.[sglang,test]'
	@touch $@

fuzz: $(STAMP)  ## try hostile traces on all that reads one; INPUTS=2000 of each kind (long)
	$(BIN)/python scripts/fuzz.py --inputs $(INPUTS)

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)  ## measure the modes on the 60 prompts, 64 tokens each (long)
	$(BIN)/ddviz bench --prompts benchmarks/prompts.jsonl --max-tokens 64

bench-viewer: $(STAMP)  ## measure the viewer on a trace of 10,000 steps (long)
	mkdir -p build
	test -f build/steps.ddviz || $(BIN)/ddviz record --out build/steps.ddviz --budget 64 --topk-cap 8 \
	  --temperature 0.8 --seed 3 --prompt "Write a Python implementation of quicksort with comments."
	test -f build/big.ddviz || $(BIN)/python scripts/make_big_trace.py build/steps.ddviz build/big.ddviz
	$(BIN)/python scripts/bench_viewer.py build/big.ddviz

bench-load: $(STAMP)  ## 20 sessions replay and 4 generate at once through one app on two cores, a minute
	$(BIN)/python scripts/bench_load.py

soak: $(STAMP)  ## the same for half an hour; fails where memory or file handles grow
	$(BIN)/python scripts/bench_load.py --soak 30

supply: $(STAMP)  ## dependency ranges resolve, wheel and sdist install and work; fetches tools from PyPI
	$(BIN)/python scripts/check_supply.py resolve
	$(BIN)/python scripts/check_supply.py build

traces: $(STAMP)  ## record the samples in traces/ anew
	$(BIN)/python scripts/make_traces.py

docs: $(STAMP)  ## generate docs/trace-format.md, its JSON Schema and docs/doctor.md from the code
	$(BIN)/python -m ddviz.trace.docs
	$(BIN)/python -m ddviz.check.docs

clean:  ## remove the virtual environments
	rm -rf $(VENV) $(SGLANG)
