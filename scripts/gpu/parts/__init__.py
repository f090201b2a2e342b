"""The parts of `make gpu`, each a program of its own; scripts/gpu/run.py has their list."""
