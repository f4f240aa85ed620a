"""What the study costs: the plain program beside it, the benchmark and latencies."""
