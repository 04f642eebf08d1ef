"""How a benchmark hands on what it found: a table, one JSON line, and the file that is kept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
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


def parse_to_keep(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    result: Path,
    beside: Sequence[str] = (),
) -> argparse.Namespace:
    """The options, with `--output`: `result`, which is kept in results/, where no other option is
    changed than those `beside`, and else nothing but what is said."""
    parser.add_argument(
        "--output", type=Path, metavar="F", help=f"default: {result.name}, kept in results/ where "
        "the other flags are left alone",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    flags = set(vars(options)) - {"output", *beside}
    if all(getattr(options, name) == parser.get_default(name) for name in flags):
        options.output = options.output or result
    return options
