"""Words for BM25, from any script.

Text is brought to one form (NFKC, case folded). Latin letters with digits, and the letters of
each other alphabet, make words; Chinese, Japanese, Korean, and the scripts of South-East Asia
that put no blanks between words make pairs of neighbouring characters, and a single character
only where it stands alone. Characters of two scripts never make one word: `战国无双3` gives
战国, 国无, 无双, 3. On cmrc2018_dev splitting at blanks finds 1 % of the passages, pairs 96 %.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

# Lucene's English stop words, which published BM25 figures rest on.
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

LONGEST_WORD = 200  # characters; longer runs (base64, corrupt text) are cut

# Ranges are written as escapes: some of these characters change when an editor normalises them.
_LATIN = (
    r"0-9A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\u02af\u1d00-\u1dbf\u1e00-\u1eff\u2c60-\u2c7f"
    r"\ua722-\ua7ff\uab30-\uab64\ufb00-\ufb06"
)
_MARKS = r"\u0300-\u036f"  # accents that NFKC could not join to their letter
_HAN = r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA, _KATAKANA = r"\u3041-\u3096\u309d\u309e", r"\u30a1-\u30fa\u30fd\u30fe\u31f0-\u31ff"
_GREEK = r"\u0370-\u037d\u037f-\u03ff\u1f00-\u1ffe"
_CYRILLIC = r"\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f"
_KANA_MARKS = r"\u30fc\u3099\u309a"  # the long-vowel sign and voicing marks go with what precedes

# Scripts whose runs become pairs, each script a run of its own.
_PAIRED = {
    "han": f"[{_HAN}]+",
    "hiragana": f"[{_HIRAGANA}][{_HIRAGANA}{_KANA_MARKS}]*",
    "katakana": f"[{_KATAKANA}][{_KATAKANA}{_KANA_MARKS}]*",
    "hangul": r"[\uac00-\ud7a3\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]+",
    "thai": r"[\u0e01-\u0e3a\u0e40-\u0e4e]+",
    "lao": r"[\u0e81-\u0ebd\u0ec0-\u0ecf]+",
    "tibetan": r"[\u0f40-\u0fbc]+",
    "myanmar": r"[\u1000-\u109f]+",
    "khmer": r"[\u1780-\u17d3]+",
}
# Alphabets: letters and the marks that belong to them.
_SPELLED = {
    "latin": f"[{_LATIN}][{_LATIN}{_MARKS}]*",
    "greek": f"[{_GREEK}][{_GREEK}{_MARKS}]*",
    "cyrillic": f"[{_CYRILLIC}][{_CYRILLIC}{_MARKS}]*",
    "armenian": r"[\u0531-\u0587]+",
    "hebrew": r"[\u05d0-\u05ea\u05ef-\u05f2]+",
    "arabic": r"[\u0620-\u0669\u066e-\u06d3\u06d5-\u06ff\u0750-\u077f\u08a0-\u08ff]+",
}
# Vowel points of Hebrew and Arabic, and the stretching sign: seldom written, so left out.
_POINTS = re.compile(
    r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]"
)
# The scripts of India have 128 places each, letters and vowel signs mixed; dandas are no letters.
_INDIC = {
    f"indic-{start:x}": rf"(?:[\u{start:04x}-\u{start + 0x7F:04x}]"
    r"(?<![\u0964\u0965])[\u200c\u200d]?)+"
    for start in range(0x900, 0xE00, 0x80)
}

_RUNS = re.compile(
    "(?P<paired>"
    + "|".join(_PAIRED.values())
    + ")|"
    + "|".join(
        (*_SPELLED.values(), *_INDIC.values(), r"[^\W_]+?(?=[\W_]|[" + _LATIN + _HAN + "]|$)")
    )
)
_ASCII_WORD = re.compile("[0-9a-z]+")
_POSSESSIVE = re.compile(r"(?<=\w)'s\b")
_HAN_SIGN = re.compile(f"[{_HAN}]")
_LATIN_WORD = re.compile(rf"[{_LATIN}]*[A-Za-z\xc0-\u02af][{_LATIN}]*")
# One sign of Chinese, Japanese or Korean, of which a text has no blanks between words.
WIDE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_SIGNS_A_WORD = 1.5  # a Chinese word has between one and two characters


class Tokenizer:
    """Turns text into words for BM25; used alike for documents and clues.

    stem: cut English endings (Snowball's English stemmer, through PyStemmer).
    stop_words: leave out Lucene's 33 English stop words.
    """

    def __init__(self, stem: bool = False, stop_words: bool = True) -> None:
        self.stem, self.stop_words = stem, stop_words
        self._stem_words = _stemmer().stemWords if stem else None

    def __call__(self, text: str) -> list[str]:
        """The words of a text in order, repeated ones repeated; [] where there is none."""
        words = _words(text)
        if self.stop_words:
            words = [word for word in words if word not in STOP_WORDS]
        return self._stem_words(words) if self._stem_words else words

    def __repr__(self) -> str:
        return f"Tokenizer(stem={self.stem}, stop_words={self.stop_words})"


def folded(text: str) -> str:
    """The form in which two texts are the same: width (NFKC), case and blanks folded."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def dominant_language(text: str) -> str:
    """`zh` where the text has more Chinese words than Latin ones, else `en`.

    >>> dominant_language("《The Brand New Testament》是哪个国家的电影？")
    'zh'
    """
    chinese = len(_HAN_SIGN.findall(text)) / _SIGNS_A_WORD
    return "zh" if chinese > len(_LATIN_WORD.findall(text)) else "en"


def _words(text: str) -> list[str]:
    if text.isascii():
        words = _ASCII_WORD.findall(_POSSESSIVE.sub("", text.lower()))
    else:
        words = _words_of_any_script(text)
    return [w[:LONGEST_WORD] for w in words] if any(len(w) > LONGEST_WORD for w in words) else words


def _words_of_any_script(text: str) -> list[str]:
    # Folding can undo NFKC (and NFKC can bring up capitals), so it is applied on both sides.
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = _POINTS.sub("", _POSSESSIVE.sub("", text.replace("\u2019", "'")))
    words: list[str] = []
    for match in _RUNS.finditer(text):
        if match["paired"] is None:
            words.append(match[0])
        else:
            words.extend(_pairs(match[0]))
    return words


def _pairs(run: str) -> list[str]:
    """Neighbouring characters, each with the marks on it, two by two.

    >>> _pairs("战国无双"), _pairs("国")
    (['战国', '国无', '无双'], ['国'])
    """
    signs: list[str] = []
    for character in run:
        if signs and unicodedata.category(character) in ("Mn", "Mc"):
            signs[-1] += character
        else:
            signs.append(character)
    return [a + b for a, b in pairwise(signs)] or signs


@lru_cache(maxsize=1)
def _stemmer():
    import Stemmer

    return Stemmer.Stemmer("english")
