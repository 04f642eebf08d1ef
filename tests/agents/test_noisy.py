"""A noisy judge errs in its share of the documents, and always in the same ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlkit.agents.checker import GoldChecker, build_checker
from rlkit.agents.noisy import FlippedChecker
from rlkit.config import RunConfig
from rlkit.library.corpus import Corpus, Document
from tests.practice.toys import STATE

DOCUMENTS = [Document(f"d{i}", f"Some title {i}", "text") for i in range(2000)]


class AllDiscard:
    def check(self, state, documents):
        return {d.docid: "DISCARD" for d in documents} | {"d0": None}


def flipped(share, state=STATE, documents=DOCUMENTS):
    found = FlippedChecker(AllDiscard(), share, "toy").check(state, documents)
    return {docid: label for docid, label in found.items() if label not in ("DISCARD", None)}


def test_the_share_of_the_verdicts_is_replaced_by_each_of_the_other_two():
    found = flipped(0.1)
    assert len(found) / 2000 == pytest.approx(0.1, abs=0.025)  # four standard deviations
    labels = list(found.values())
    assert labels.count("IMPORTANT") / len(labels) == pytest.approx(0.5, abs=0.15)
    assert set(labels) == {"IMPORTANT", "LOCAL"}


def test_what_is_replaced_depends_on_question_and_document_alone():
    later = replace(STATE, state_id="q1/run_002/3", round=3, subgoal="another")
    assert flipped(0.1, later, DOCUMENTS[::-1]) == flipped(0.1)
    assert flipped(0.1, replace(STATE, question_id="q2")) != flipped(0.1)


def test_with_a_larger_share_more_is_replaced_and_the_rest_as_before():
    few, many = flipped(0.05), flipped(0.2)
    assert few.items() < many.items()


def test_what_could_not_be_judged_stays_unjudged():
    found = FlippedChecker(AllDiscard(), 1.0, "toy").check(STATE, DOCUMENTS[:3])
    assert found["d0"] is None and "DISCARD" not in found.values()


def test_the_params_make_any_checker_noisy_and_its_label_says_so():
    corpus = Corpus(DOCUMENTS)
    plain = build_checker(RunConfig(), corpus)
    noisy = build_checker(RunConfig().with_overrides("checker.flip_share=0.05"), corpus)
    assert isinstance(plain, GoldChecker)
    assert noisy.label == "gold, 0.05 flipped"
    state = replace(STATE, gold_docids=("d1",), known_important=frozenset({"d1"}))
    before, after = (c.check(state, DOCUMENTS) for c in (plain, noisy))
    assert 0.02 < sum(before[d] != after[d] for d in before) / 2000 < 0.08
