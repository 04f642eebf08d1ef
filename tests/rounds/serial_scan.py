"""The loader's oracle: one question after the other, every file whole in memory, no index."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

from rlkit.errors import RlkitError
from rlkit.files import check_id
from rlkit.rounds.checkpoints import RLCheckpointLoader, ScanReport
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import MetaFile, RoundFile, make_state


def serial_scan(root: Path, min_clues=2, cap=10, seed=7):
    """(report, samples, damaged as text, all states), as `loaded` gives them."""
    report, samples, damaged, everything = ScanReport(), [], [], []
    folders = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    for folder in sorted(folders, key=lambda path: path.name):
        runs = _read_runs(folder, report, damaged)
        if not runs:
            continue
        metas = [meta for _, meta, _ in runs]
        gold = next((meta.gold_docids for meta in metas if meta.gold_docids), ())
        known = frozenset(gold) or frozenset(
            row.docid
            for _, _, files in runs
            for file in files.values()
            for row in (*file.document_table, *file.results)
            if row.verdict == "IMPORTANT"
        )
        last = {meta.collector: name for name, meta, _ in runs}
        old = [
            (name, meta, files)
            for name, meta, files in runs
            if meta.status == "failed" and meta.collector and last[meta.collector] != name
        ]
        current = [run for run in runs if run not in old]
        report.questions += 1
        report.questions_without_gold += not gold
        report.runs += len(current)
        report.superseded_runs += len(old)
        options = (gold, known, min_clues, cap, seed)
        everything += _states(runs, ScanReport(), *options[:3], len(runs) * 10**5, seed)
        samples += _states(current, report, *options)
    report.samples = len(samples)
    return asdict(report), samples, [str(item) for item in damaged], everything


def loaded(root: Path, min_clues=2, cap=10, seed=7, processes=None):
    loader = RLCheckpointLoader(root, min_clues, cap, seed, processes)
    report = loader.load_data()
    samples = loader.extract_training_samples() if report.samples else []
    return asdict(report), samples, [str(item) for item in loader.damaged], loader.all_states()


def _read_runs(folder, report, damaged):
    runs = []
    found = [p for p in folder.iterdir() if p.name.startswith("run_") and p.is_dir()]
    for run in sorted(found, key=lambda path: int(path.name.removeprefix("run_"))):
        path = run / "meta.json"
        if not path.exists():
            report.unfinished_runs += 1
            continue
        try:
            meta = read_recorded(path, MetaFile)
            try:
                check_id(meta.question_id, "question_id")
            except RlkitError as error:
                raise DamagedFile(path, None, str(error)) from error
            if meta.question_id != folder.name:
                reason = f"question_id is {meta.question_id!r}, and the folder is {folder.name!r}"
                raise DamagedFile(path, None, reason)
            files = {}
            names = {0: "round_000.json", **{ref.round: ref.checkpoint for ref in meta.rounds}}
            for number, name in names.items():
                files[number] = read_recorded(run / name, RoundFile)
                if (found := files[number].round) != number:
                    reason = f"holds round {found}, and the run lists it as round {number}"
                    raise DamagedFile(run / name, None, reason)
            if runs and meta.question != runs[0][1].question:
                raise DamagedFile(path, None, f"asks another question than {runs[0][0]}")
        except DamagedFile as error:
            report.damaged_runs += 1
            damaged.append(error.damaged)
        else:
            runs.append((run.name, meta, files))
    return runs


def _states(runs, report, gold, known, min_clues, cap, seed):
    states = []
    for name, meta, files in runs:
        for ref in meta.rounds:
            if ref.round == 0:
                continue
            report.rounds += 1
            clues = ref.clues or files[ref.round].clues
            if ref.failed is not None:
                report.failed_rounds += 1
            elif ref.strategy != "SEARCH":
                report.not_search += 1
            elif len(clues) < min_clues:
                report.too_few_clues += 1
            else:
                state = make_state(
                    files[ref.round - 1],
                    question_id=meta.question_id,
                    question=meta.question,
                    run=name,
                    strategy=ref.strategy,
                    subgoal=ref.subgoal,
                    gold_docids=gold,
                    known_important=known,
                    recorded_clues=clues,
                    recorded_results=files[ref.round].results,
                    hops=meta.hops or len(set(gold)) or None,
                )
                states.append(state)
    if len(states) <= cap:
        return states
    report.over_the_cap += len(states) - cap
    generator = random.Random(f"{seed}/{states[0].question_id}")
    return [states[i] for i in sorted(generator.sample(range(len(states)), cap))]
