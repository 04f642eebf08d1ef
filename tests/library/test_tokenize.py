"""Words of every script; the expected words are worked out by hand."""

import pytest

from rlkit.library.tokenize import LONGEST_WORD, Tokenizer, dominant_language


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("战国无双3", ["战国", "国无", "无双", "3"]),
        ("《国》 ω-force", ["国", "ω", "force"]),
        ("食べるラーメン", ["食", "べる", "ラー", "ーメ", "メン"]),
        ("日本語とEnglish", ["日本", "本語", "と", "english"]),
        ("한국어 서울 A", ["한국", "국어", "서울"]),
        ("ｶﾞﾝ ＡＢＣ１２３", ["ガン", "abc123"]),  # half and full width
        ("𠮷野家", ["𠮷野", "野家"]),  # beyond 16 bits
        ("Россия ту154 Ελλάδα", ["россия", "ту", "154", "ελλάδα"]),
        ("हिन्दी में। क्षत्रिय", ["हिन्दी", "में", "क्षत्रिय"]),  # vowel signs stay, the danda does not
        ("مُحَمَّد שָׁלוֹם", ["محمد", "שלום"]),  # vowel points are left out
        ("ษา", ["ษา"]),
        ("Straße ﬁn naïve", ["strasse", "fin", "naïve"]),
        ("cafe\u0301", ["café"]),  # a letter and its accent written apart
        ("Alba's dog, don’t; O'Brien's foo_bar", "alba dog don t o brien foo bar".split()),
        ("The end of the COVID19", ["end", "covid19"]),
        ("\ud800abc\x00d\ufeff\r\ne", ["abc", "d", "e"]),
        ("", []),
        (" \n…!?", []),
    ],
)
def test_scripts_give_these_words(text, words):
    assert Tokenizer()(text) == words


def test_stemming_and_stop_words_are_optional():
    assert Tokenizer(stem=True)("the running dogs") == ["run", "dog"]
    assert Tokenizer(stop_words=False)("the dogs") == ["the", "dogs"]


def test_width_case_and_composition_make_no_difference():
    tokenizer = Tokenizer()
    assert tokenizer("ＣＡＦÉ 한") == tokenizer("cafe\u0301 \u1112\u1161\u11ab")


def test_very_long_runs_are_cut_and_do_not_hang():
    assert [len(word) for word in Tokenizer()("a" * 1_000_000 + " b")] == [LONGEST_WORD, 1]
    assert len(Tokenizer()("国" * 100_000)) == 99_999
    assert Tokenizer()("é" * 100_000) == ["é" * LONGEST_WORD]
    assert Tokenizer()("ე" * 50_000) == ["ე" * LONGEST_WORD]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("《The Brand New Testament》是哪个国家的电影？", "zh"),
        ("Who directed the film 战国无双?", "en"),
        ("", "en"),
        ("12 34", "en"),
        ("谁?", "zh"),
    ],
)
def test_language_follows_most_of_the_words(text, language):
    assert dominant_language(text) == language
