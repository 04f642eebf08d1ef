"""Writes the two JSON schemas next to this file."""

from rlkit.files import write_json
from rlkit.rounds.schemas import MODELS, generated_schema, schema_path

for name in MODELS:
    print(write_json(schema_path(name), generated_schema(name)))
