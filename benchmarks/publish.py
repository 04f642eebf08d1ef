"""How a benchmark hands on what it found: a table, one JSON line, and the file that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlkit.files import write_text


def publish(result: Mapping[str, Any], table: str, output: Path | None) -> None:
    """Print `table` and the JSON line; keep the latter, indented, in `output` (None: nowhere)."""
    print(table)
    print(json.dumps(result))
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, json.dumps(result, indent=1) + "\n")
