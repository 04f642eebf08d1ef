"""What the project keeps of a study's output, so that a later part can run on another machine, and
whoever likes can try the trained adapters without training them.

    python benchmarks/study/kept.py --out outputs/study --data data              output -> kept
    python benchmarks/study/kept.py --out outputs/study --data data --restore    kept -> output

Of parts that are done: parameters, lineage, curves, rows, the ledger of the test, and the adapters
that later parts begin with or play (the best checkpoint of GRPO, SFT's warm start), each once, by
its hash. Left out are rounds (they are collected anew in seconds), how fast the machine is
(clock/<seed>), what a stopped training needs, and all texts of questions and documents, which are
not the project's to hand on: ids and numbers stay, and a row's hash in the ledger is that of the
row with its texts. Where a curve, a row, an adapter or the ledger of another study is in the way,
nothing is written. One machine at a time: two at once could both open a row of the test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

import yaml  # noqa: E402

from benchmarks.study.ledger import NAME, sha256  # noqa: E402
from benchmarks.study.parts import (  # noqa: E402
    PATHS,
    PLAN,
    QUEUE,
    ROWS,
    Part,
    best_checkpoint,
    parts,
)
from benchmarks.study.run import DONE, Queue  # noqa: E402
from rlkit.errors import RlkitError, RunError  # noqa: E402
from rlkit.files import read_object, write_bytes  # noqa: E402
from rlkit.yaml_text import read_yaml  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "study"
RUNS, WEIGHTS = "runs", "weights"
CONFIG = "config.yaml"
OF_A_RUN = ("lineage.json", "status.json", "metrics.jsonl", "splits.json")
OF_AN_ADAPTER = ("adapter_config.json", "base.json", "sft_metrics.json")
ADAPTER = "adapter_model.safetensors"
RESULTS = ("metrics.jsonl", "sft_metrics.json", ".is", ".gz", ADAPTER, NAME)  # never change
OF_A_RECORD = ("state", "tries", "seconds", "started", "ended")
OF_A_MACHINE = ("collect", "hotpotqa-rounds", "clock")  # kinds that run again elsewhere
TOGETHER = (("trl/7", "ablation/all-states"),)  # compared by the clock: of one machine
STOOD_ON = ("sft", "grpo")  # kinds whose adapters later parts need, whatever is done
TEXTS = ("question", "subgoal", "completion", "text", "title", "answer")
LISTS = ("missing", "clues", "documents")


def keep(output: Path, data: Path, kept: Path = KEPT, plan: Path = PLAN) -> list[Path]:
    """Copy what is done in the output; the files. Raises RunError, having written nothing, where
    what is kept is of another study."""
    found = dict(_of_output(output, data, plan))
    for name, content in found.items():
        _refuse_another(kept / name, content)
    return [write_bytes(kept / name, content) for name, content in found.items()]


def restore(output: Path, data: Path, kept: Path = KEPT) -> list[Path]:
    """Write what is kept into an output, with its own paths, where it is not there yet; the rows
    come without texts. Raises RunError, having written nothing, where the output is another
    study's."""
    found = dict(_of_kept(kept, output, data))
    if not found:
        raise RunError(f"{kept} holds nothing that was kept of a study.")
    for name, content in found.items():
        _refuse_another(output / name, content, shorter=True)
    ledger = found.get(NAME, b"")
    new = {name: content for name, content in found.items() if not (output / name).exists()}
    if (output / NAME).exists() and len(ledger) > (output / NAME).stat().st_size:
        new[NAME] = ledger
    return [write_bytes(output / name, content) for name, content in new.items()]


def _refuse_another(path: Path, content: bytes, shorter: bool = False) -> None:
    """Where a result is there that differs. A ledger may have grown; `shorter`: or be the one that
    had not grown yet."""
    if not path.name.endswith(RESULTS) or not path.exists():
        return
    before = path.read_bytes()
    if path.suffix == ".gz":  # what packs them differs between versions of Python
        before, content = gzip.decompress(before), gzip.decompress(content)
    grown = content.startswith(before) or (shorter and before.startswith(content))
    if before != content and not (path.name == NAME and grown):
        raise RunError(
            f"{path} is there and differs: it is another study's, or was changed. Move it away, or "
            "give another folder."
        )


def _of_output(output: Path, data: Path, plan: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file to keep."""
    queue = Queue(parts(plan), output, data)
    found = [part for part in queue.parts.values() if part.kind not in OF_A_MACHINE]
    done = {part.name: part for part in found if queue.state(part) == DONE}
    for names in TOGETHER:
        if not set(names) <= set(done):
            done = {name: part for name, part in done.items() if name not in names}
    for part in done.values():
        later = [one for one in found if part.name in one.after]
        waited_for = part.kind in STOOD_ON or any(one.name not in done for one in later)
        if part.kind == "ablation" and waited_for:
            continue  # its newest checkpoint is what is judged, and only the best would be kept
        row = part.row_path(output)
        if row is not None:
            text = json.dumps(without_texts(read_object(row)), indent=0)
            yield f"{ROWS}/{row.name}.gz", gzip.compress(text.encode(), mtime=0)
        else:
            yield from _of_run(part, output, data, waited_for)
        record = {key: queue.record(part).get(key, "") for key in OF_A_RECORD} | {"state": DONE}
        yield f"{QUEUE}/{part.slug}.json", json.dumps(record, indent=1).encode()
    if (output / NAME).exists():
        yield NAME, (output / NAME).read_bytes()


def _of_run(part: Part, output: Path, data: Path, weights: bool) -> Iterator[tuple[str, bytes]]:
    run = output / part.run
    if (run / CONFIG).exists():
        config = _placed(read_yaml(run / CONFIG), output, data)
        yield f"{RUNS}/{part.run}/{CONFIG}", yaml.safe_dump(config, sort_keys=False).encode()
    adapters = [run / "sft" / "adapter", run / "reference_adapter", best_checkpoint(run)]
    files = [run / name for name in OF_A_RUN]
    files += [folder / name for folder in adapters for name in OF_AN_ADAPTER]
    for file in files:
        if file.exists():
            yield f"{RUNS}/{file.relative_to(output)}", file.read_bytes()
    for file in [folder / ADAPTER for folder in adapters] if weights else []:
        if file.exists():
            content = file.read_bytes()
            name = f"{sha256(content)}.safetensors"
            yield f"{WEIGHTS}/{name}", content
            yield f"{RUNS}/{file.relative_to(output)}.is", name.encode()


def _of_kept(kept: Path, output: Path, data: Path) -> Iterator[tuple[str, bytes]]:
    """(name in the output, content) of every file that is kept."""
    for file in sorted(path for path in kept.rglob("*") if path.is_file()):
        folder, _, rest = file.relative_to(kept).as_posix().partition("/")
        if folder == RUNS and file.suffix == ".is":
            yield rest.removesuffix(".is"), _weights(kept, file)
        elif folder == RUNS and file.name == CONFIG:
            config = _placed(read_yaml(file), output, data, back=True)
            yield rest, yaml.safe_dump(config, sort_keys=False).encode()
        elif folder == RUNS:
            yield rest, file.read_bytes()
        elif folder == ROWS:
            yield f"{ROWS}/{rest.removesuffix('.gz')}", gzip.decompress(file.read_bytes())
        elif folder in (QUEUE, NAME):
            yield file.relative_to(kept).as_posix(), file.read_bytes()


def _weights(kept: Path, pointer: Path) -> bytes:
    path = kept / WEIGHTS / pointer.read_text("utf-8").strip()
    content = path.read_bytes() if path.is_file() else b""
    if sha256(content) != path.stem:
        raise RunError(f"{path} is missing or damaged; get it anew from the repository.")
    return content


def _placed(config: Mapping[str, Any], output: Path, data: Path, back: bool = False) -> Any:
    """A run's parameters with {output} and {data} in the place of the two folders, or `back`.
    Raises RunError where another path of this machine is among them."""
    changed = {
        key: dict(value) if isinstance(value, dict) else value for key, value in config.items()
    }
    for key in ("output_root", *PATHS):
        section, _, name = key.rpartition(".")
        values = changed.get(section, {}) if section else changed
        value = values.get(name)
        if isinstance(value, str) and back:
            values[name] = value.format(output=output.absolute(), data=data.absolute())
        elif isinstance(value, str) and "/" in value:
            values[name] = _without_place(key, value, output, data)
    return changed


def _without_place(key: str, value: str, output: Path, data: Path) -> str:
    path = (ROOT / value).resolve()
    for name, folder in (("{data}", data.resolve()), ("{output}", output.resolve())):
        if path.is_relative_to(folder):
            return f"{name}/{path.relative_to(folder)}".removesuffix("/.")
    raise RunError(f"{key} is {value}, which lies neither in {output} nor in {data}.")


def without_texts(value: Any) -> Any:
    """The same without what questions, documents and models say: ids and numbers stay."""
    if isinstance(value, list):
        return [without_texts(one) for one in value]
    if not isinstance(value, dict):
        return value
    empty = {**dict.fromkeys(TEXTS, ""), **{name: [] for name in LISTS}}
    return {
        key: empty[key] if key in empty and isinstance(one, (str, list)) else without_texts(one)
        for key, one in value.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the study's output")
    parser.add_argument("--data", type=Path, required=True, help="as in run.py")
    parser.add_argument("--plan", type=Path, default=PLAN, help="another queue.yaml")
    parser.add_argument("--kept", type=Path, default=KEPT, help="default: the project's own")
    parser.add_argument("--restore", action="store_true", help="from there into the output")
    options = parser.parse_args(arguments)
    output, data = options.out.absolute(), options.data.absolute()
    if options.restore:
        written = restore(output, data, options.kept)
    else:
        written = keep(output, data, options.kept, options.plan.resolve())
    size = sum(path.stat().st_size for path in written) / 2**20
    print(f"{len(written)} files, {size:.1f} MiB, in {output if options.restore else options.kept}")


if __name__ == "__main__":
    try:
        main()
    except RlkitError as error:
        sys.exit(f"error: {error}")
