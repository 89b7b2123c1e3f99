"""Sweeps: named rows under several seeds, each a run, and one table and picture of them all."""
