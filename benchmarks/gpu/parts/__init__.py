"""The parts of `make gpu`, each a program of its own; benchmarks/gpu/run.py has their list."""
