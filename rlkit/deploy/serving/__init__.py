"""The parts of a server of our own: settings, model, continuous batching."""
