"""What TxStore promises about speed and size, measured: `python -m benchmarks`."""
