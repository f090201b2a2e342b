"""Uses trained models: loads one with all that it needs (model.py), and runs it over any images.

inputs.py     folders, zips, prepared shards     forward.py    the model over all of them, on any number of processes
classes.py    the data's classes and the model's measures.py   what the outcome is worth
evaluate.py   trainyard evaluate        predict.py    trainyard predict
starting.py   what both say before they load PyTorch
"""
