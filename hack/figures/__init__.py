"""The documents' figures, drawn from short descriptions: `python -m hack.figures docs`."""
