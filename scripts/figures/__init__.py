"""The documents' figures, drawn from short descriptions: `python -m scripts.figures docs`."""
