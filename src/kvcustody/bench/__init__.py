"""Benchmarks: ratios of contenders that run by turns in one process."""
