"""Documents, questions, recorded rounds and splits: are they there, and are they sound?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from rlkit.doctor.language import rarest_words
from rlkit.doctor.look import Look, Said
from rlkit.library.corpus import Document
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.library.tokenize import Tokenizer, folded
from rlkit.practice.source import chosen_ids
from rlkit.practice.splits import NAME, PARTS, kept_splits, new_splits

GOLD_LOOKED_AT = 200  # documents
LOST = 0.1  # share of gold documents that cannot be found: beyond it, rewards are capped from below
_WORDS = Tokenizer(stop_words=False)
_GRAVITY = ("ok", "warn", "fail")


def library(look: Look) -> Said | None:
    if look.config.task == "answers":
        return _answers(look.config.answers.dataset)
    if not look.searches:
        return None  # a task of the user's own brings its data along
    corpus, questions = look.library.corpus, look.library.questions
    text = f"{len(corpus)} documents, {len(questions)} questions"
    if look.rounds is not None:
        return "ok", f"{text}; {len(look.recorded.states)} states in {look.rounds}"
    without = sum(not question.gold_docids for question in questions)
    if look.config.checker.kind == "gold" and without:
        level = "fail" if without == len(questions) else "warn"
        text = f"{text}; {without} without the gold that checker.kind gold judges by"
        return level, text, "give gold_docids, or take another checker.kind"
    return "ok", text


def _answers(dataset: str) -> Said:
    from rlkit.answers.datasets import GSM8K, SPLITS, source_rows
    from rlkit.answers.quality import find_problems

    if dataset in GSM8K:
        return "ok", f"{dataset} is taken from the hub (or its cache) when the run begins"
    found = find_problems({split: source_rows(dataset, split) for split in SPLITS})
    problems = [one.message for one in found if one.kind != "shared template"]  # no fault by itself
    if not problems:
        return "ok", f"{dataset}: no problem found in its rows"
    more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
    todo = "mend the rows; notebooks/inspect.ipynb lists all problems"
    return "warn", f"{dataset}: {' '.join(problems[:2])}{more}", todo


def gold(look: Look) -> Said | None:
    """Known documents that neither their title nor their rarest words bring back."""
    if not look.searches:
        return None
    if look.rounds is not None:
        known = {docid for state in look.recorded.states for docid in state.known_important}
    else:
        known = {docid for question in look.library.questions for docid in question.gold_docids}
    corpus = look.orchestrator.corpus
    documents = [corpus.get(d) for d in sorted(chosen_ids(list(known), GOLD_LOOKED_AT))]
    there = [document for document in documents if document is not None]
    return judge_gold(unfindable(there, look.orchestrator), len(there), len(documents) - len(there))


def unfindable(documents: Sequence[Document], orchestrator: SearchOrchestrator) -> list[Document]:
    """The documents that neither their own title nor their rarest words bring back in top_k."""
    words = rarest_words(documents, orchestrator.corpus)
    clues = [
        [c for c in (d.title, " ".join(w)) if c] for d, w in zip(documents, words, strict=True)
    ]
    rankings = orchestrator.search_many(clues)
    return [
        document
        for document, ranking in zip(documents, rankings, strict=True)
        if document.docid not in {row.docid for row in ranking}
    ]


def judge_gold(lost: Sequence[Document], looked_at: int, absent: int = 0) -> Said:
    """`absent`: known documents that are not in the corpus at all."""
    if not looked_at + absent:
        return "warn", "no known document to look for", "give gold_docids, or record verdicts"
    if not lost and not absent:
        return "ok", f"each of {looked_at} known documents is found by its title or rarest words"
    named = ", ".join(repr((document.title or document.docid)[:60]) for document in lost[:3])
    said = [f"no clue can find {len(lost)} of {looked_at} known documents: {named}"] if lost else []
    said += [f"{absent} known documents are not in the corpus"] if absent else []
    level = "fail" if len(lost) + absent > LOST * (looked_at + absent) else "warn"
    todo = (
        "look whether they are empty or stand there several times; raise search.top_k, or give "
        "the corpus that the questions were made for"
    )
    return level, "; ".join(said), todo


def splits(look: Look) -> Said | None:
    """The split that the run has, or would make of the rounds that are there."""
    if not look.searches:
        return None
    if look.rounds is None:
        return judge_repeats([question.text for question in look.library.questions])
    recorded = look.recorded
    if (look.folder / NAME).exists():
        found = kept_splits(look.folder, recorded.loader, look.config)
    else:
        found = new_splits(recorded.states, look.config)
    return judge_splits({part: found.part(part) for part in PARTS}, recorded.loader.damaged)


def judge_repeats(questions: Sequence[str]) -> Said:
    """Questions that are not split yet: those that differ in signs alone may be parted."""
    homes: dict[Any, set[str]] = defaultdict(set)
    for question in questions:
        homes[question_key(question)].add(folded(question))
    near = [sorted(texts) for texts in homes.values() if len(texts) > 1]
    if not near:
        return "ok", "rounds are recorded when the run begins, and split by question then"
    a, b = (text[:60] for text in near[0][:2])
    text = f"leakage ahead: {len(near)} questions differ in signs alone, such as {a!r} and {b!r}"
    return "warn", text, "keep one of each, since the split may part them"


def judge_splits(parts: Mapping[str, Sequence[Any]], damaged: Sequence[Any] = ()) -> Said:
    """`parts`: the states of train, dev and eval; `damaged`: what was set aside in reading."""
    used = {name: [state for state in states if state.missing] for name, states in parts.items()}
    text = ", ".join(f"{len(used[name])} {name}" for name in parts) + " states"
    left_out = sum(len(parts[name]) - len(used[name]) for name in parts)
    if left_out:
        text += f" ({left_out} more miss no known document, and are left out)"
    problems = [*_leaks(parts), *_empty(parts, used)]
    if damaged:
        said = f"{len(damaged)} damaged runs set aside, first {damaged[0]}"
        problems.append(("warn", said, "restore or remove these files"))
    level = max((problem[0] for problem in problems), key=_GRAVITY.index, default="ok")
    problems.sort(key=lambda problem: -_GRAVITY.index(problem[0]))
    texts = [*(problem[1] for problem in problems), text]
    return level, "; ".join(texts), "; ".join(problem[2] for problem in problems)


def question_key(text: str) -> Any:
    """What two questions share that are the same but for case, width, blanks and punctuation."""
    return tuple(_WORDS(text)) or folded(text)


def _leaks(parts: Mapping[str, Sequence[Any]]) -> Iterable[Said]:
    """Questions of two parts: the same, or different in signs alone, as `C++?` and `C#?` are."""
    texts = {n: {folded(s.question): s.question for s in p} for n, p in parts.items()}
    for a, b in combinations(parts, 2):
        shared = texts[a].keys() & texts[b].keys()
        if shared:
            example = min(texts[a][key] for key in shared)[:80]
            text = f"leakage: {len(shared)} questions stand in {a} and in {b}, such as {example!r}"
            yield "fail", text, "keep one of each, remove splits.json, and start a new run"
        others = {question_key(t): said for t, said in texts[b].items() if t not in shared}
        near = [
            (said, others[question_key(t)])
            for t, said in texts[a].items()
            if t not in shared and question_key(t) in others
        ]
        if near:
            one, other = (said[:80] for said in min(near))
            text = f"{len(near)} questions of {a} differ from one of {b} in signs alone, such as "
            todo = "look whether they ask the same; if so, keep one of each in a new run"
            yield "warn", f"{text}{one!r} and {other!r}", todo


def _empty(parts: Mapping[str, Sequence[Any]], used: Mapping[str, Sequence[Any]]) -> Iterable[Said]:
    gravity = {"train": "fail", "eval": "fail", "dev": "warn"}
    todo = "record rounds of more questions, or change data.train_ratio and data.dev_ratio"
    for name, states in used.items():
        if not states:
            why = "holds no state" if not parts[name] else "misses no known document any more"
            yield gravity[name], f"{name} {why}", todo
