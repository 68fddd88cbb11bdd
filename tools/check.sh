#!/usr/bin/env bash
# Style, types, spelling, and the resources of every kernel for every architecture. Run `make lint`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
PATH="$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH"

find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format --dry-run -Werror
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$python" -m codespell_lib csrc cudamem_ops tests benchmarks examples tools docs ./*.md ./*.py
"$python" tools/kernel_ledger.py --check
