"""A small made-up library, so that everything runs with no download."""
