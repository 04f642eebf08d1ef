"""Names in a text, found by their spelling alone: runs of capitalised words, and what stands in
Chinese title marks. Crude, but it needs no model, and never sees more than the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlkit.rounds.tables import one_line

MAX_WORDS = 30  # of a name; a longer run is a menu or a heading
MAX_CHARS = 300  # of a name; a longer one is code, an address or data
_QUOTED = re.compile(r"[《「『]([^《》「」『』]{2,60})[》」』]")
_WORD = re.compile(r"[^\W_](?:[\w'’\-]|\.(?=\w))*|\S")
_POSSESSIVE = re.compile(r"(?:['’]s?|-)$")
_QUALIFIER = re.compile(r" \((?!born|died|née|aged|about|circa)[a-z][a-z ]{1,30}\)")  # (novelist)
_NUMERAL = re.compile(r"[IVX]+")
_MONTHS = frozenset(
    "january february march april may june july august september october november december "
    "monday tuesday wednesday thursday friday saturday sunday".split()
)
_JOINERS = frozenset("of the de la le du des von van der den di da del al el bin ibn y".split())
_OPENERS = frozenset(
    "a an the this that these those it its he she his her they their there here we you i my our "
    "in on at by from to for of with as after before during since until when while where who "
    "whom whose which what why how and or but if although though because so both either neither "
    "is are was were do does did has have had not no yes one two also later then born died "
    "find".split()
)


_PEOPLES = frozenset(
    "american australian austrian belgian brazilian british bulgarian canadian chinese croatian "
    "czech danish dutch egyptian english european finnish flemish french german greek hungarian "
    "indian iranian irish israeli italian japanese korean mexican norwegian pakistani persian "
    "polish portuguese romanian russian scottish serbian soviet spanish swedish swiss thai turkish "
    "ukrainian welsh".split()
)  # as adjectives; alone they name nothing that can be looked up


def names_in(text: str) -> list[str]:
    """Names in the order of their first appearance: what stands in 《》 or corner quotes, and
    runs of capitalised words (joined by words such as `of`), with a qualifier such as `(novelist)`
    if one follows. A single capitalised word at the beginning of a sentence counts only if it is
    capitalised within one too."""
    text = one_line(text)
    found = [(match.start(), match[1].strip(), True) for match in _QUOTED.finditer(text)]
    found += _capitalised(text)
    found.sort(key=lambda item: item[0])
    sure = {name for _, name, is_sure in found if is_sure}
    return list(dict.fromkeys(name for _, name, _ in found if name in sure))


def _capitalised(text: str) -> Iterator[tuple[int, str, bool]]:
    """(position, name, whether it is surely one) of every run of capitalised words."""
    run: list[re.Match[str]] = []
    begins_sentence = run_began_sentence = True
    for word in [*_WORD.finditer(text), None]:
        if word is not None and _continues(run, word, text):
            if not run:
                run_began_sentence = begins_sentence
            run.append(word)
        else:
            if run:
                yield from _as_name(text, run, run_began_sentence)
            run = []
            if word is not None and _is_name_word(word[0]):
                run, run_began_sentence = [word], begins_sentence
        begins_sentence = word is not None and word[0] in '.!?:;"“'


def _continues(run: list[re.Match[str]], word: re.Match[str], text: str) -> bool:
    if not run:
        return _is_name_word(word[0])
    gap = text[run[-1].end() : word.start()]
    if word[0] == ".":  # an initial or a short title: J. R. R. Tolkien, St. Mary
        return not gap and len(run[-1][0]) <= 2 and not _NUMERAL.fullmatch(run[-1][0])
    if not (gap == " " or (gap == "" and run[-1][0] == ".")):
        return False
    return _is_name_word(word[0]) or word[0] in _JOINERS or _is_short_number(word[0])


def _as_name(
    text: str, run: list[re.Match[str]], began_sentence: bool
) -> Iterator[tuple[int, str, bool]]:
    """Cut words that cannot begin or end a name off a run; one that is too long is none."""
    first, end = 0, len(run)
    if began_sentence and run[0][0].casefold() in _OPENERS:
        first, began_sentence = 1, False
        while first < end and run[first][0] in _JOINERS:
            first += 1
    while end > first and (run[end - 1][0] in _JOINERS or run[end - 1][0] == "."):
        end -= 1
    if not 0 < end - first <= MAX_WORDS or not _is_name_word(run[first][0]):
        return
    words = run[first:end]
    if words[-1].end() - words[0].start() > MAX_CHARS:
        return
    name = _POSSESSIVE.sub("", text[words[0].start() : words[-1].end()])
    qualifier = _QUALIFIER.match(text, words[-1].end())
    name += qualifier[0] if qualifier else ""
    if len(words) == 1 and (len(name) < 3 or name.casefold() in _OPENERS | _PEOPLES):
        return
    yield words[0].start(), name, len(words) > 1 or not began_sentence


def _is_name_word(word: str) -> bool:
    return word[0].isupper() and word.casefold() not in _MONTHS


def _is_short_number(word: str) -> bool:
    """`Apollo 11`, but not `1916`, which is a year."""
    return word.isdigit() and len(word) <= 3
