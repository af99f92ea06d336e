"""What `python -m benchmarks` measures: the cases of each module, by name."""
