"""The JSON schemas of the two recorded files, as other programs can use them. They are made from
the pydantic models; `python -m rlkit.rounds.schemas` writes them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlkit.rounds.state import MetaFile, RoundFile

MODELS = {"meta": MetaFile, "round": RoundFile}


def schema_path(name: str) -> Path:
    """The schema file of `meta` or `round`."""
    return Path(__file__).parent / f"{name}.schema.json"


def generated_schema(name: str) -> dict[str, Any]:
    """The schema of `meta` or `round` as the models define it now."""
    schema = MODELS[name].model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def load_schema(name: str) -> dict[str, Any]:
    """The schema of `meta` or `round` as it ships with the package."""
    return json.loads(schema_path(name).read_text(encoding="utf-8"))
