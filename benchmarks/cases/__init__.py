"""What `python -m benchmarks` measures: each module has a table of its cases, by name."""
