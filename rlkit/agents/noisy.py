"""A checker that errs: a share of its verdicts is replaced, to see what noise does to training.

Which document is replaced, and by what, is a function of question and document alone: the same in
every process, round and run, as the prejudice of a judge is, and not averaged out by asking again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from rlkit.agents.checker import DocumentChecker
from rlkit.library.corpus import Document
from rlkit.rounds.state import VERDICTS, State, Verdict


class FlippedChecker:
    """Another checker's verdicts, of which `share` (0 to 1) are replaced by one of the other two.

    A document that the checker could not judge stays unjudged. With a larger share, those that
    were replaced with a smaller one still are, by the same verdict.
    """

    def __init__(self, checker: DocumentChecker, share: float, kind: str) -> None:
        self._checker, self.share = checker, share
        self.label = f"{getattr(checker, 'label', kind)}, {share:g} flipped"

    def check(self, state: State, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        """docid -> verdict for each document that the checker judged."""
        found = self._checker.check(state, documents)
        return {docid: self._flipped(state, docid, label) for docid, label in found.items()}

    def _flipped(self, state: State, docid: str, label: Verdict | None) -> Verdict | None:
        key = f"{state.question_id}\n{state.question}\n{docid}".encode()
        drawn = hashlib.sha256(key).digest()
        if label is None or int.from_bytes(drawn[:8]) >= self.share * 2**64:
            return label
        return [other for other in VERDICTS if other != label][drawn[8] % 2]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied, there is no checker yet
            raise AttributeError(name)
        return getattr(self._checker, name)
