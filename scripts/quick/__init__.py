"""What a change touches, checked in two minutes: `python -m scripts.quick` (make quick)."""
