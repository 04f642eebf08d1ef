"""From an adapter to a model that can be served."""
