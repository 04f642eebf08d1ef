"""The parts of our own server (rlkit/deploy/serve.py): settings, model, batching, requests."""
