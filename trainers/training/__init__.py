"""Training itself: loop.py reads from top to bottom, assemble.py builds what it works with."""
