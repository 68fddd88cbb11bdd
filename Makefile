# make demo | make test | make bench | make lint: from a bare clone, with Python 3.11+ and a C++ compiler.
# The active environment is used where it has torch 2.11 or newer; else a .venv with the torch below is made.

TORCH := torch==2.13.0
ACTIVE := $(shell python3 -c 'import sys, torch; v = torch.__version__; print(sys.prefix, v); \
  sys.exit(tuple(map(int, v.split(".")[:2])) < (2, 11))' 2>/dev/null || echo none)
PYTHON := $(if $(filter none,$(ACTIVE)),.venv/bin/python,python3)

# Another environment, another torch or other options are another build.
KEY := $(shell echo '$(ACTIVE) $(CUDAMEM_CUDA) $(TORCH_CUDA_ARCH_LIST) $(CUDA_HOME)' | cksum | cut -d' ' -f1)
BUILT := build/.built-$(KEY)
SOURCES := $(shell find csrc -type f) setup.py pyproject.toml tools/cuda_toolkit.py

.PHONY: demo test bench build lint clean

demo: build
	$(PYTHON) examples/demo.py

test: build
	$(PYTHON) -m pytest

bench: build
	$(PYTHON) -m benchmarks

lint: build
	$(PYTHON) -m pip install --quiet ruff mypy clang-format codespell
	PYTHON=$(PYTHON) tools/check.sh

build: $(BUILT)

.venv/.ready:
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	python3 -m venv .venv
	.venv/bin/python -m pip install '$(TORCH)'
	touch $@

# What is there already is left as it is: pip installs only what is missing. In compat mode the package is also found
# from the folder above a clone, which has the package's name.
$(BUILT): $(SOURCES) | $(if $(filter .venv/%,$(PYTHON)),.venv/.ready)
	$(PYTHON) -m pip install 'setuptools>=77' wheel ninja numpy pytest hypothesis rich scikit-learn matplotlib
	$(PYTHON) -m pip install --no-build-isolation --no-deps --config-settings editable_mode=compat -e .
	mkdir -p build && rm -f build/.built-* && touch $@

clean:
	rm -rf build dist *.egg-info cudamem_ops/*.so cudamem_ops/build_info.json
