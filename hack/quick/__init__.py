"""What a change touches, checked in two minutes: `python -m hack.quick` (make quick)."""
