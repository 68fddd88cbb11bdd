# make demo | make test | make bench: from a bare clone, with Python 3.11+ and a C++ compiler.
# The active environment is used where it has torch; else a .venv with the torch below is made.

TORCH := torch==2.13.0
PYTHON := $(shell python3 -c 'import torch' 2>/dev/null && command -v python3 || echo .venv/bin/python)
BUILT := build/.built
SOURCES := $(shell find csrc -type f) setup.py pyproject.toml

.PHONY: demo test bench build lint clean

demo: build
	$(PYTHON) examples/demo.py

test: build
	$(PYTHON) -m pytest

bench: build
	$(PYTHON) -m benchmarks

lint: build
	PYTHON=$(PYTHON) tools/check.sh

build: $(BUILT)

.venv/bin/python:
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	python3 -m venv .venv
	.venv/bin/python -m pip install '$(TORCH)'

# What is there already is left as it is: pip installs only what is missing.
$(BUILT): $(SOURCES) | $(filter .venv/%,$(PYTHON))
	$(PYTHON) -m pip install 'setuptools>=77' wheel ninja numpy pytest hypothesis rich scikit-learn matplotlib
	$(PYTHON) -m pip install --no-build-isolation --no-deps -e .
	mkdir -p $(@D) && $(PYTHON) -c 'import sys; print(sys.executable)' > $@

clean:
	rm -rf build dist *.egg-info cudamem_ops/*.so cudamem_ops/build_info.json
