"""Training itself: loop.py reads from top to bottom, trainer.py builds what it works with."""
