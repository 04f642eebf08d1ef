"""Studies of parameters: what `tune.py` is made of."""
