"""What the project keeps of a study's output, so that a later part can run on another machine, and
whoever likes can try the trained adapters without training them.

    python benchmarks/study/kept.py --out outputs/study --data data              output -> kept
    python benchmarks/study/kept.py --out outputs/study --data data --restore    kept -> output

Of parts that are done: parameters, lineage, curves, rows, the ledger of the test, and the adapters
that later parts begin with or play (the best checkpoint of GRPO, SFT's warm start), each once, by
its hash. Left out are rounds (they are collected anew in seconds), how fast the machine is
(clock/<seed>), what a stopped training needs,
and all texts of questions and documents, which are not the project's to hand on: ids and numbers
stay, and a row's hash in the ledger is that of the row with its texts. Where a curve, a row, an
adapter or the ledger of another study is in the way, nothing is written.
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

from benchmarks.study.ledger import NAME, sha256  # noqa: E402
from benchmarks.study.parts import PLAN, QUEUE, ROWS, Part, best_checkpoint, parts  # noqa: E402
from benchmarks.study.run import DONE, Queue  # noqa: E402
from rlkit.errors import RlkitError, RunError  # noqa: E402
from rlkit.files import read_object, write_bytes  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "study"
RUNS, WEIGHTS = "runs", "weights"
OF_A_RUN = ("config.yaml", "lineage.json", "status.json", "metrics.jsonl", "splits.json")
OF_AN_ADAPTER = ("adapter_config.json", "base.json", "sft_metrics.json")
ADAPTER = "adapter_model.safetensors"
RESULTS = ("metrics.jsonl", "sft_metrics.json", ".is", ".gz", ADAPTER, NAME)  # never change
OF_A_MACHINE = ("collect", "hotpotqa-rounds", "clock")  # kinds that run again elsewhere
STOOD_ON = ("sft", "grpo")  # kinds whose adapters later parts need
TEXTS = ("question", "subgoal", "completion", "text", "title", "answer")
LISTS = ("missing", "clues", "documents")


def keep(output: Path, data: Path, kept: Path = KEPT, plan: Path = PLAN) -> list[Path]:
    """Copy what is done in the output; the files. Raises RunError, having written nothing, where
    what is kept is of another study."""
    found = dict(_of_output(output, data, plan))
    _refuse_another(kept, found)
    return [write_bytes(kept / name, content) for name, content in found.items()]


def restore(output: Path, data: Path, kept: Path = KEPT) -> list[Path]:
    """Write what is kept into an output, with its own paths, where it is not there yet; the rows
    come without texts. Raises RunError, having written nothing, where the output is another
    study's."""
    found = dict(_of_kept(kept, output, data))
    if not found:
        raise RunError(f"{kept} holds nothing that was kept of a study.")
    _refuse_another(output, found)
    new = {name: content for name, content in found.items() if not (output / name).exists()}
    return [write_bytes(output / name, content) for name, content in new.items()]


def _refuse_another(folder: Path, found: Mapping[str, bytes]) -> None:
    """Where a result differs; the ledger may have grown."""
    for name, content in found.items():
        path = folder / name
        before = path.read_bytes() if name.endswith(RESULTS) and path.exists() else content
        if before != content and not (name == NAME and content.startswith(before)):
            raise RunError(
                f"{path} is there and differs: it is another study's, or was changed. Move "
                f"{folder} away, or give another folder."
            )


def _of_output(output: Path, data: Path, plan: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file to keep."""
    queue = Queue(parts(plan), output, data)
    found = [part for part in queue.parts.values() if part.kind not in OF_A_MACHINE]
    done = [part for part in found if queue.state(part) == DONE]
    places = {str(data.absolute()): "{data}", str(output.absolute()): "{output}"}
    for part in done:
        row = part.row_path(output)
        if row is not None:
            text = json.dumps(without_texts(read_object(row)), indent=0)
            yield f"{ROWS}/{row.name}.gz", gzip.compress(text.encode(), mtime=0)
        else:
            yield from _of_run(part, output, places)
        record = {k: v for k, v in queue.record(part).items() if k != "pid"}
        text = _replaced(json.dumps(record, indent=1), places)
        yield f"{QUEUE}/{part.slug}.json", text.encode()
    if (output / NAME).exists():
        yield NAME, (output / NAME).read_bytes()


def _of_run(part: Part, output: Path, places: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    run = output / part.run
    adapters = [run / "sft" / "adapter", run / "reference_adapter", best_checkpoint(run)]
    files = [run / name for name in OF_A_RUN]
    files += [folder / name for folder in adapters for name in OF_AN_ADAPTER]
    for file in files:
        if file.exists():
            text = _replaced(file.read_text("utf-8"), places)
            yield f"{RUNS}/{file.relative_to(output)}", text.encode()
    weights = [f / ADAPTER for f in adapters] if part.kind in STOOD_ON else []
    for file in weights:
        if file.exists():
            content = file.read_bytes()
            name = f"{sha256(content)}.safetensors"
            yield f"{WEIGHTS}/{name}", content
            yield f"{RUNS}/{file.relative_to(output)}.is", name.encode()


def _of_kept(kept: Path, output: Path, data: Path) -> Iterator[tuple[str, bytes]]:
    """(name in the output, content) of every file that is kept."""
    places = {"{output}": str(output.absolute()), "{data}": str(data.absolute())}
    for file in sorted(path for path in kept.rglob("*") if path.is_file()):
        folder, _, rest = file.relative_to(kept).as_posix().partition("/")
        if folder == RUNS and file.suffix == ".is":
            yield rest.removesuffix(".is"), _weights(kept, file)
        elif folder == RUNS:
            yield rest, _replaced(file.read_text("utf-8"), places).encode()
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


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for before, after in sorted(places.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(before, after)  # the longer path first: one may lie in the other
    return text


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
