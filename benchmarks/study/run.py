"""The study as a queue: every part in the order of what it needs, one process a worker.

    python benchmarks/study/run.py --data data --out outputs/study --list
    python benchmarks/study/run.py --data data --out outputs/study [--only 'grpo/*'] [--hours 8]
        [--workers 2]

What is finished is never run again, whoever ran it (the runs' folders tell). A part that was
stopped or killed goes on where it was. One that fails is written down with its reason, holds up
only what needs it, and is tried again by later calls, twice at most (--retry: once more). Under
queue/ in the output each part has a log and a record; rows/ holds what evaluations measured, and
ledger.py guards the test. Ctrl-C, SIGTERM, --until and --hours stop the part that is under way so
that it saves; a second Ctrl-C stops it at once.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.study.ledger import Ledger, recipe_of  # noqa: E402
from benchmarks.study.parts import PLAN, QUEUE, Part, parts  # noqa: E402
from rlkit.config import RunConfig  # noqa: E402
from rlkit.errors import RlkitError, RunError  # noqa: E402
from rlkit.files import append_line, read_object, write_json  # noqa: E402
from rlkit.run import Run  # noqa: E402
from rlkit.yaml_text import read_yaml  # noqa: E402

DONE, FAILED, STOPPED, BEGUN = "done", "failed", "stopped", "begun"
TRIES = 3  # of a part that fails
PATIENCE = 1800  # seconds that a stopped part may take to save, before it is stopped at once
EVERY = 60  # seconds between two notes of the time spent


class Queue:
    """The parts of a study and what has become of them. `hours` are expected ones by kind."""

    def __init__(
        self,
        found: Mapping[str, Part],
        output: Path,
        data: Path,
        *,
        hours: Mapping[str, float] | None = None,
        ledger: Ledger | None = None,
        command: Callable[[Part], list[str]] | None = None,
    ) -> None:
        self.parts, self.output, self.data = dict(found), output, data
        self.hours, self.ledger = dict(hours or {}), ledger or Ledger(output)
        self.command = command or (lambda part: ["-m", *part.arguments(output, data)])
        self.stop_at: float | None = None  # time.time(); 0 once a signal came
        self.signals = 0
        self.left: list[str] = []  # what `run` left undone, though there was time
        self._lock: int | None = None

    def record(self, part: Part) -> dict[str, Any]:
        """What is written of a part: state, tries, seconds, reason, started, pid."""
        path = self._file(part, "json")
        return read_object(path) if path.exists() else {"state": "", "tries": 0, "seconds": 0.0}

    def state(self, part: Part) -> str:
        """done, failed, stopped, begun, waiting (for others) or ready."""
        record = self.record(part)
        if record["state"] == DONE or part.is_there(self.output):
            return DONE
        if record["state"]:
            return record["state"]
        return "waiting" if self.lacking(part) else "ready"

    def lacking(self, part: Part) -> list[str]:
        """The parts that it needs and that are not done."""
        return [name for name in part.after if self.state(self.parts[name]) != DONE]

    def run(self, chosen: Sequence[str], retry: bool = False, workers: int = 1) -> int:
        """Run what is chosen and can be run, each part once, the earlier ones first, and as many
        at a time as there are workers; the number of parts that failed now. Raises RunError where
        the output was trained with other parameters than the parts say."""
        waiting = [self.parts[name] for name in chosen]
        self._check_recipes(chosen)
        running: dict[Future[tuple[str, str]], Part] = {}
        failed = 0
        with ThreadPoolExecutor(workers) as pool:
            try:
                while True:
                    while len(running) < workers and (part := self._next(waiting, running, retry)):
                        waiting.remove(part)
                        running[pool.submit(self._one, part)] = part
                    if not running:
                        self._say_left(waiting)
                        return failed
                    for over in wait(running, return_when=FIRST_COMPLETED).done:
                        name, (outcome, reason) = running.pop(over).name, over.result()
                        print(f"{_now()} {name}: {outcome}{reason and ': ' + reason}", flush=True)
                        failed += outcome == FAILED
            except BaseException:
                self.stop_at = 0.0  # what else runs saves, and ends
                raise

    def _next(self, waiting: list[Part], running: Mapping[Any, Part], retry: bool) -> Part | None:
        """The first part that can begin now; those that will not are taken out of `waiting`."""
        folders = {part.run for part in running.values()}
        for part in list(waiting):
            state = self.state(part)
            if self.is_over():
                return None
            if state == DONE:
                waiting.remove(part)
            elif part.run in folders or self.lacking(part):
                continue
            elif state == FAILED and self.record(part)["tries"] >= TRIES and not retry:
                print(f"{part.name}: failed {TRIES} times, left as it is (--retry)", flush=True)
                waiting.remove(part)
                self.left.append(part.name)
            elif self._busy(part):
                print(f"{part.name}: somebody is at work in its folder; passed over", flush=True)
                waiting.remove(part)
                self.left.append(part.name)
            else:
                return part
        return None

    def _check_recipes(self, chosen: Sequence[str]) -> None:
        """Of all parts that are done: those that are chosen, and those that they need."""
        needed = [*chosen]
        for name in needed:  # it grows
            needed += [other for other in self.parts[name].after if other not in needed]
        for part in (self.parts[name] for name in needed):
            if self.state(part) == DONE:
                try:
                    part.check_recipe(self.output, self.data)
                except RunError as error:
                    said = f"{part.name}: {error} An output stays with its folders and its data, "
                    said += "and a variant of the study wants one of its own (--out)."
                    raise RunError(said) from error

    def _say_left(self, waiting: Sequence[Part]) -> None:
        for part in waiting:
            if not self.is_over() and (lacking := self.lacking(part)):
                self.left.append(part.name)
                print(f"{part.name}: left waiting, needs {', '.join(lacking)}", flush=True)

    def is_over(self) -> bool:
        """Whether no further part should begin."""
        return self.stop_at is not None and time.time() >= self.stop_at

    def _busy(self, part: Part) -> bool:
        folder = self.output / part.run
        return folder.exists() and Run(RunConfig(), folder).locked()

    def _one(self, part: Part) -> tuple[str, str]:
        """Run a part; its outcome, and the reason of a failure."""
        record = {**self.record(part), "state": BEGUN, "started": _now(), "reason": ""}
        write_json(self._file(part, "json"), record)
        outcome, reason = FAILED, ""
        try:
            if not (part.test and self.ledger.found(part)):
                if part.test:
                    self.ledger.open(part)
                outcome, reason = self._process(part, record)
                if outcome == DONE and part.row_path(self.output) is not None:
                    self.ledger.keep(part)
                elif outcome == FAILED and part.test:
                    self.ledger.broke_off(part)
            else:
                outcome = DONE
        except (RlkitError, OSError) as error:
            outcome, reason = FAILED, str(error)
        record |= {"state": outcome, "reason": reason, "ended": _now()}
        record["tries"] += outcome == FAILED
        write_json(self._file(part, "json"), record)
        return outcome, reason

    def _process(self, part: Part, record: dict[str, Any]) -> tuple[str, str]:
        command, log = [sys.executable, *self.command(part)], self._file(part, "log")
        append_line(log, f"== {_now()} {' '.join(['python', *command[1:]])}")
        print(f"{_now()} {part.name}: begins ({log})", flush=True)
        before, start = record["seconds"], time.monotonic()
        with open(log, "ab") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=[] if self._lock is None else [self._lock],
            )  # fmt: skip
        record["pid"] = process.pid
        noted, asked = -EVERY, 0.0
        while process.poll() is None:
            spent = time.monotonic() - start
            if spent - noted >= EVERY:
                noted, record["seconds"] = spent, round(before + spent, 1)
                write_json(self._file(part, "json"), record)
            if self.is_over() and asked == 0.0:
                asked = time.monotonic()
                process.send_signal(signal.SIGINT)
            if asked and (self.signals > 1 or time.monotonic() - asked > PATIENCE):
                process.terminate()
            time.sleep(0.2)
        record["seconds"] = round(before + time.monotonic() - start, 1)
        if process.returncode == 0:
            return DONE, ""
        return (STOPPED, "") if asked else (FAILED, _reason(log, process.returncode))

    def _file(self, part: Part, ending: str) -> Path:
        return self.output / QUEUE / f"{part.slug}.{ending}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the queue, and hear signals. The processes of parts hold it, too: where an earlier
        call was killed and its part still works, it is waited for."""
        (self.output / QUEUE).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.output / QUEUE / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        kept = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        try:
            if not self._locked():
                print("a part of an earlier call is still at work; waiting for it", flush=True)
            while not self.is_over() and not self._locked():
                time.sleep(2)
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
            os.close(self._lock)
            self._lock = None

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _hear(self, *_: Any) -> None:
        self.signals, self.stop_at = self.signals + 1, 0.0

    def expected(self, part: Part) -> float:
        """Hours: the mean of its kind's parts that are done here, else what the plan says."""
        alike = [self.record(p) for p in self.parts.values() if p.kind == part.kind]
        known = [r["seconds"] / 3600 for r in alike if r["state"] == DONE and r["seconds"]]
        return sum(known) / len(known) if known else self.hours.get(part.kind, 0.0)

    def text(self, chosen: Sequence[str]) -> str:
        """A table of the parts: state, hours spent and expected, and what they wait for."""
        lines, left = [f"{'part':<34} {'state':<8} {'spent h':>8} {'expected h':>11}"], 0.0
        for part in (self.parts[name] for name in chosen):
            state, record, expected = self.state(part), self.record(part), self.expected(part)
            spent, note = record["seconds"] / 3600, record.get("reason") or ""
            if state == "waiting":
                note = f"needs {', '.join(self.lacking(part)[:3])}"
            elif state != DONE and self._busy(part):
                state = "busy"
            left += 0.0 if state == DONE else max(expected - spent, 0.0)
            lines.append(f"{part.name:<34} {state:<8} {spent:>8.2f} {expected:>11.2f}  {note}")
        return "\n".join([*lines, f"left: about {left:.1f} hours of one worker"])


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: what was chosen is done or the time is over, 1: something failed or was left undone (it
    failed three times, somebody else is at work on it, or it needs a part that is not done),
    130: stopped."""
    options = build_parser().parse_args(arguments)
    plan, output = options.plan.resolve(), options.out.absolute()
    queue = Queue(
        parts(plan), output, options.data.absolute(), hours=read_yaml(plan).get("hours"),
        ledger=Ledger(output, recipe_of(plan)),
    )  # fmt: skip
    patterns = options.only or ["*"]
    chosen = [n for n in queue.parts if any(fnmatch(n, pattern) for pattern in patterns)]
    if options.list:
        print(queue.text(chosen))
        return 0
    if options.commands:
        for name in chosen:
            part = queue.parts[name]
            if lacking := queue.lacking(part):
                print(f"# once {', '.join(lacking)} are done, which may fill in other values:")
            print(shlex.join(["python", *queue.command(part)]))
        return 0
    queue.stop_at = _deadline(options)
    with queue.alone():
        failed = queue.run(chosen, options.retry, options.workers)
    return 130 if queue.signals else int(failed > 0 or bool(queue.left))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder that holds 2wiki/ and hotpotqa100/")
    add("--out", type=Path, required=True, help="the study's output")
    add("--list", action="store_true", help="show every part, and run nothing")
    add("--commands", action="store_true", help="print every part's command, and run nothing")
    add("--only", nargs="+", metavar="PATTERN", help="parts, such as 'grpo/*' or '*7'")
    add("--until", type=_time_of_day, metavar="HH:MM", help="stop then, local time")
    add("--hours", type=float, metavar="H", help="stop after so many")
    add("--workers", type=int, default=1, help="parts at a time; set OMP_NUM_THREADS beside it")
    add("--retry", action="store_true", help="also what failed three times")
    add("--plan", type=Path, default=PLAN, help="another queue.yaml")
    return parser


def _time_of_day(text: str) -> datetime.time:
    return datetime.datetime.strptime(text, "%H:%M").time()


def _deadline(options: argparse.Namespace) -> float | None:
    if options.hours is not None:
        return time.time() + 3600 * options.hours
    if options.until is None:
        return None
    now = datetime.datetime.now()
    then = datetime.datetime.combine(now, options.until)
    return (then if then > now else then + datetime.timedelta(days=1)).timestamp()


def _reason(log: Path, code: int) -> str:
    """The error that a part's log ends with."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines[-20:] if line.startswith("error:")]
    return f"code {code}: {(errors or lines)[-1][:300]}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RlkitError as error:
        sys.exit(f"error: {error}")
