"""Object stores: on a server beside the benchmarks, and 30 ms away."""
