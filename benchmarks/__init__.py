"""Benchmarks: each compares a part of rlkit with a peer, and prints a table and one JSON line."""
