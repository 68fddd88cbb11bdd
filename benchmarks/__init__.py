"""Benchmarks of cudamem_ops: ``python -m benchmarks --help``; docs/measuring.md says how the figures are made."""
