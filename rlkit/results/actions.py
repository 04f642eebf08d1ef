"""The stored actions of a run (`rollouts/step-<n>.parquet`), a few steps and columns at a time: a
run of a thousand steps is opened without reading it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlkit.errors import DataError, RunError
from rlkit.run import Run, RunFrames, find_run

GROUP = ["step", "state_id", "visit"]  # what tells one group from another


def named_run(run: Run | RunFrames | str | Path, output_root: str | Path = "outputs") -> Run:
    """A run by name, by the path of its folder, as `load_run` read it, or itself."""
    if isinstance(run, RunFrames):
        run, output_root = run.config.run_name, run.config.output_root
    return run if isinstance(run, Run) else Run.at(find_run(str(run), output_root))


class StoredActions:
    """One row an action, one file a step. Raises RunError where the run holds none."""

    def __init__(self, run: Run) -> None:
        self.folder = run.rollouts_folder
        numbers = (p.stem.removeprefix("step-") for p in self.folder.glob("step-*.parquet"))
        self.steps = sorted(int(number) for number in numbers if number.isdigit())
        if not self.steps:
            raise RunError(f"{self.folder} holds no actions yet; train first.")

    def columns(self, step: int) -> list[str]:
        """The columns of a step's actions, in order."""
        with _whole(self._file(step)), pq.ParquetFile(self._file(step)) as file:
            return list(file.schema_arrow.names)

    def rows(self, step: int, without: Iterable[str] = ()) -> list[dict]:
        """The actions of a step as plain values, without the columns named."""
        left_out = set(without)
        return read_step(self._file(step), lambda name: name not in left_out).to_pylist()

    def frame(self, columns: Sequence[str], steps: Iterable[int] | None = None) -> pd.DataFrame:
        """These columns of the actions of some steps (None: all), in the order in which they were
        sampled, with `step` first."""
        wanted = [self._known(step) for step in (self.steps if steps is None else steps)]
        with ThreadPoolExecutor(4) as pool:
            tables = list(
                pool.map(lambda s: read_step(self._file(s), {*columns}.__contains__), wanted)
            )
        frame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
        sizes = [table.num_rows for table in tables]
        frame.insert(0, "step", pd.Series(wanted).repeat(sizes).to_numpy())
        return frame

    def _known(self, step: int) -> int:
        if step not in self.steps:
            raise RunError(
                f"{self.folder} holds no actions of step {step}; it has {len(self.steps)} steps, "
                f"{self.steps[0]} to {self.steps[-1]}."
            )
        return step

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{self._known(step)}.parquet"


def read_step(path: Path, wanted: Callable[[str], bool]) -> pa.Table:
    """The columns that are `wanted` of a step's file. Raises DataError where it is damaged."""
    with _whole(path), pq.ParquetFile(path) as file:
        return file.read([name for name in file.schema_arrow.names if wanted(name)])


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read ({said}); restore it or move it away.") from None
