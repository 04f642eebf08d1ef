"""Does the tokeniser of search see the corpus's language? A self-test with questions made from the
corpus itself: the rarest words of a passage must bring that passage back."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from rlkit.doctor.look import Look, Said
from rlkit.library.corpus import Corpus, Document
from rlkit.library.tokenize import STOP_WORDS, Tokenizer
from rlkit.practice.source import chosen_ids

ASKED, COUNTED = 40, 2000  # passages asked for; documents in which words are counted
WORDS = 5  # of a passage
FOUND, HARDLY = 0.9, 0.5  # shares; see judge_language
ENGLISH = 0.1  # share of stop words; English prose has about a third
_WORDS, _ALL_WORDS = Tokenizer(), Tokenizer(stop_words=False)
_NAMES = {"cjk": "Chinese", "hiragana": "Japanese", "katakana": "Japanese", "hangul": "Korean"}
_NO_BLANKS = {"Chinese", "Japanese", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}


def language(look: Look) -> Said | None:
    if not look.searches:
        return None
    corpus = look.library.corpus
    asked = [corpus.get(d) for d in sorted(chosen_ids([d.docid for d in corpus], ASKED))]
    writing = script([document.text or document.title for document in asked])
    asking = script([question.text for question in look.library.questions[:ASKED]])
    missed = lost_passages(asked, look.orchestrator)
    search = look.config.search
    if search.stem and not looks_english(asked):
        todo = "set search.stem to false"
        return "warn", "search.stem cuts English endings, and the corpus is not English", todo
    if asking and writing and asking != writing:
        todo = "BM25 finds no words of another language: ask in the corpus's"
        return "warn", f"the questions are {asking}, and the documents {writing}", todo
    return judge_language(len(asked) - len(missed), len(asked), writing, search.backend)


def judge_language(found: int, asked: int, writing: str, backend: str) -> Said:
    """`found` of `asked` passages came back by their own rarest words; `writing` as `script`."""
    text = f"{found} of {asked} passages ({writing}) are found by their own rarest words"
    facts = {"found": found, "asked": asked, "script": writing}
    if found >= FOUND * asked:
        return "ok", text, "", facts
    if found >= HARDLY * asked:
        todo = "look whether passages stand there several times; raise search.top_k"
        return "warn", text, todo, facts
    why = f"the tokeniser of search.backend {backend} is wrong for {writing} text: only {text}"
    if writing in _NO_BLANKS:
        why += ", since it looks for blanks between words, where there are none"
    return "fail", why, "take search.backend bm25s, or mend the tokeniser of your own", facts


def lost_passages(documents: Sequence[Document], orchestrator: object) -> list[Document]:
    """The documents that their own rarest words, as one clue, do not bring back in top_k."""
    clues = [" ".join(words) for words in rarest_words(documents, orchestrator.corpus)]
    rankings = orchestrator.search_many([[clue] if clue else [] for clue in clues])
    return [
        document
        for document, clue, ranking in zip(documents, clues, rankings, strict=True)
        if clue and document.docid not in {row.docid for row in ranking}
    ]


def rarest_words(
    documents: Sequence[Document], corpus: Corpus, count: int = WORDS
) -> list[list[str]]:
    """The `count` words of each document that stand in the fewest others (long ones first), by
    this package's own tokeniser, which knows all scripts; not by that of the search under test."""
    step = max(len(corpus) // COUNTED, 1)
    counted = {document.docid: document for document in (*corpus[::step], *documents)}
    frequency = Counter(word for document in counted.values() for word in _words(document))
    return [
        sorted(_words(document), key=lambda word: (frequency[word], -len(word), word))[:count]
        for document in documents
    ]


def script(texts: Iterable[str]) -> str:
    """What most letters of the texts belong to: `Latin`, `Chinese`, `Cyrillic`, ...; "" for none.

    >>> script(["战国无双 3"]), script(["Who is it?"])
    ('Chinese', 'Latin')
    """
    letters = Counter(sign for text in texts for sign in text[:2000] if sign.isalpha())
    found: Counter[str] = Counter()
    for sign, times in letters.items():
        found[unicodedata.name(sign, "unknown").split()[0].casefold()] += times
    if not found:
        return ""
    kana = found["hiragana"] + found["katakana"]
    if kana > 0.1 * found["cjk"] > 0:
        return "Japanese"
    most = found.most_common(1)[0][0]
    return _NAMES.get(most, most.capitalize())


def looks_english(documents: Iterable[Document]) -> bool:
    """Whether as many English stop words stand in the documents as English has."""
    words = [word for document in documents for word in _ALL_WORDS(document.text)]
    return sum(word in STOP_WORDS for word in words) >= ENGLISH * len(words)


def _words(document: Document) -> set[str]:
    return set(_WORDS(document.text)) or set(_WORDS(document.title))
