"""Which label a text gives to a document, clause by clause.

A label counts where a whole clause is the label (`IMPORTANT, as it ...`), is led to it (`so LOCAL`,
`Verdict: LOCAL`), or affirms it in plain words (`it is LOCAL`). A label that is a word of any other
clause (`IMPORTANT would be wrong`) is none, whatever the words around it are; so are labels that
are asked, taken back, contradicted, or follow a denial in their sentence. Reading is linear in the
length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rlkit.rounds.state import Verdict

LABELS: dict[str, dict[Verdict, str]] = {
    "en": {"IMPORTANT": "IMPORTANT", "LOCAL": "LOCAL", "DISCARD": "DISCARD"},
    "zh": {"IMPORTANT": "重要", "LOCAL": "部分相关", "DISCARD": "无关"},
}
MAX_CLAUSE = 80  # characters of a clause that can be a label

_VERDICTS = {label: verdict for words in LABELS.values() for verdict, label in words.items()}
_ENGLISH, _CHINESE = "|".join(LABELS["en"].values()), "|".join(LABELS["zh"].values())
_ANY = f"(?:{_ENGLISH}|{_CHINESE})"
OPEN, CLOSE = r"[\"'“‘「『【(\[<*_`]", r"[\"'”’」』】)\]>*_`]"
_AROUND = " \t\"'“”‘’「」『』【】[]<>{}*_`#•-"  # a clause, as decoration

_ID = re.compile(r"(?<!\w)d\d{1,4}(?!\w)", re.IGNORECASE)
# What ends a sentence (`end`) or a clause; `!IMPORTANT`, `!= IMPORTANT`, `IMPORTANT-ish` are whole
_BREAK = re.compile(
    r"(?P<end>[;。]|\?+|[.!…]+(?!\w))|[,、:|()]|(?<![!<>~/=])=(?![/=])>?|->|→|[–—]|--+|\s-\s|"
    r"(?=\b(?:because|since|due to|rather than|instead of)\b)",
    re.IGNORECASE,
)
_NAMED = r"(?:(?:the |my )?(?:final |overall )?(?:label|verdict|answer)|final|标签|判断|结论)"
_LEAD = re.compile(rf"so|thus|therefore|hence|因此|所以|故|{_NAMED}", re.IGNORECASE)
_SURELY = r"(?:(?:definitely|clearly|certainly|obviously|surely) |肯定|显然|明显)?"
_IT = r"(?:it|this|(?:the|this) (?:document|text)|(d\d{1,4}))"
_FORM = re.compile(
    rf"(?P<lead>(?:so|thus|therefore|hence) |因此|所以|故)?"
    rf"(?P<plain>{_IT}(?:['’]s| is) |{_NAMED} is |I(?:['’]d| would)? (?:say|(?:label|rate|mark|"
    rf"judge|call|classify) {_IT}(?: as)?) |(?:这篇|该)?(?:文档|文章)?(?:应该?)?"
    rf"(?:标为|标注为|判为|归为|属于|是|为))?{_SURELY}{OPEN}*+(?P<label>{_ANY})",
    re.IGNORECASE,
)
STARTS = re.compile(
    rf"(?:{_NAMED}\s*[:=]\s*)?{_SURELY}{OPEN}*+{_ANY}(?!\w)(?:{CLOSE})*+", re.IGNORECASE
)
_OF_LABELS = re.compile(r"\b(?:label|verdict|call it|apply|applies|fits?)\b|标签", re.IGNORECASE)
_MENTION = re.compile(rf"(?<!\w)({_ENGLISH})(?!\w)|{OPEN}({_CHINESE}){CLOSE}")
_NOT_BUT = re.compile(
    rf"(?:\bnot|不是|并非)\s*+{OPEN}*+{_ANY}{CLOSE}*+\s*+,?\s*+(?:but(?: rather)?\b|而是)\s*+"
)
_NOT = re.compile(
    r"\b(?:not|no|non|nor|neither|never|none|nothing|cannot|without|un|hardly|barely|less|least|"
    r"semi|quasi|partly|partially|maybe|perhaps|possibly|almost|nearly|instead of|rather than|"
    r"far from|anything but|too|wrong|incorrect|false|lack\w*|fail\w*|\w+n['’]t)\b|"
    r"不|没|未|别|勿|否|并非|非(?!常)|错",
    re.IGNORECASE,
)
# Of a text that leads to labels; `nothing else`, `without explanation` deny none
_DENIAL = re.compile(
    r"\b(?:not|neither|never|cannot|wrong|incorrect|false|instead of|rather than|refuse|"
    r"anything but|\w+n['’]t)\b|"
    r"不(?:是|应|该|能|可|会|对|属|算|宜|要?(?:回答|说|选|标))|并非|错误|别(?:回答|说|选|标)|勿",
    re.IGNORECASE,
)
_LEADS_ON = re.compile(r"(?:[:：]|\b(?:that|say|answer|be))\W*$", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?!\w)|[。！？]")
_LONGEST_LEAD = 500  # characters before a label that are looked at
_HEDGE = re.compile(
    r"\b(?:if|unless|would|could|might|(?-i:may)|should|whether|either|doubt\w*|refus\w*|den(?:y|ied)|"
    r"claims?|says?|said|asks?|wants?|tells?|told|labels|options?|choices?)\b|"
    r"如果|若|假如|可能|或许|也许|是否|声称|自称|难",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(  # a clause behind the label
    r"(?:but |or |and )?(?:(?:oh |well )?(?:no )?(?:wait|hold on|hm+|oops|sorry|correction|"
    r"scratch that|strike that|never ?mind|on second thoughts?|on reflection)\b"
    r"(?! (?-i:[A-Z][a-z]))"  # `Wait Until Dark` is a title
    r"|I (?:\w+ not|\w+n['’]t) (?:say|think|agree|believe|call|label|mark|rate)(?: so| it| that)*$"
    r"|actually,? no"
    r"|(?:I (?:think|guess) )?(?:no|non|nope|not?|never|false|wrong|incorrect|0|maybe|perhaps|"
    r"possibly|as if|not (?:really|quite|at all)|\w+ not|(?:I['’]?a?m )?(?:not sure|unsure))$"
    r"|(?:that|this|it|which|the label)\b.* (?:wrong|incorrect|mistaken?|too (?:strong|weak|much)|"
    r"not|not (?:right|correct|it|so|true))$|(?:it|that|this) isn['’]t$"
    r"|(?:这|那|还|也|其实|恐怕)*(?:否|不|不是|并非|并不|不对|错|错了|说错了|等等|更正|可能|未必|算不上|"
    r"谈不上)$|(?:等等|更正|不对|其实不))",
    re.IGNORECASE,
)


class _Clause(NamedTuple):
    """A clause, bare of decoration. `first` of its line; `ended` by more than a comma or colon;
    `last` of its sentence; `led` by a clause such as `Verdict`; `doubted` by what stands before it
    in its sentence."""

    text: str
    first: bool
    ended: bool
    last: bool
    asked: bool
    led: bool
    doubted: bool


def _clauses(line: str) -> Iterator[_Clause]:
    start, first, led, doubted = 0, True, False, False
    content = len(line.rstrip(_AROUND + "|)"))
    breaks = [(m.start(), m.end(), m[0], m["end"]) for m in _BREAK.finditer(line)]
    for begin, end, sign, ends in [*breaks, (len(line), len(line), ".", ".")]:
        text = " ".join(line[start:begin].split()).strip(_AROUND)
        start = end
        if text:
            closes = bool(ends) or end >= content
            asked = "?" in sign
            yield _Clause(text, first, sign[:1] not in ",、:=", closes, asked, led, doubted)
            first, led = False, bool(_LEAD.fullmatch(text)) or sign in ("→", "->", "=>")
            doubted = doubted or bool(_NOT.search(text) or _HEDGE.search(text))
        if ends:
            led = doubted = False


def label_in(said: str, name: str | None) -> Verdict | None:
    """The one label that a text gives to the document `name` (None: the only one)."""
    affirmed: set[Verdict] = set()
    against: set[Verdict] = set()  # other labels that the judge wavers to
    denied: set[Verdict] = set()
    near = False  # whether what is said still belongs to the label
    lead = ""  # the line before, where it leads to this one
    for number, line in enumerate(_NOT_BUT.sub(", so ", said).splitlines()):
        if not affirmed and is_denied(lead):
            return None
        lead = line if _LEADS_ON.search(line) else ""
        foreign = any(other.casefold() != name for other in _ID.findall(line))
        here = False  # whether the label stands on this line
        near = near and (name is None or bool(line.strip()))
        for clause in _clauses(line):
            if affirmed and _is_taken_back(clause.text, near) or here and clause.asked:
                return None
            form = _FORM.fullmatch(clause.text) if len(clause.text) <= MAX_CLAUSE else None
            if form and not any(given and given.casefold() != name for given in form.group(3, 4)):
                verdict = _VERDICTS[form["label"].upper()]
                if _is_affirmed(clause, form, alone=not foreign, begins=number == 0):
                    affirmed.add(verdict)
                    near = here = True
                elif near or not foreign:
                    against.add(verdict)
                continue
            mentioned = set(labels_named(clause.text))
            if mentioned and _NOT.search(clause.text):
                denied |= mentioned
            elif near:
                against |= mentioned
    if len(affirmed) != 1 or affirmed & denied or against - affirmed:
        return None
    return affirmed.pop()


def _is_affirmed(clause: _Clause, form: re.Match[str], *, alone: bool, begins: bool) -> bool:
    """Whether a clause that is a label gives it. `alone`: its line speaks of no other document;
    `begins`: it is the first line. Small letters need more: they are words of the language, too."""
    small = form["label"] not in _VERDICTS
    whole = clause.first and clause.last
    if clause.asked or not (clause.first or alone):
        return False
    if small:
        return clause.ended and (clause.led or whole or (clause.first and begins))
    if clause.first or clause.led or form["lead"]:
        return True
    return not clause.doubted and (clause.last or bool(form["plain"]))


def _is_taken_back(clause: str, near: bool) -> bool:
    """Whether a clause behind a label withdraws it, or denies something of labels near it."""
    of_labels = near and _OF_LABELS.search(clause) and _NOT.search(clause)
    return bool(of_labels or _TAKEN_BACK.match(clause))


def is_denied(lead: str) -> bool:
    """Whether the sentence that leads to labels, and has not ended, denies them: `It is not true
    that`, `Do not answer`."""
    return bool(_DENIAL.search(_SENTENCE.split(lead[-_LONGEST_LEAD:])[-1]))


def labels_named(text: str) -> list[Verdict]:
    """The labels in a text that are surely meant as labels: in capitals, or in quotes."""
    return [_VERDICTS[english or chinese] for english, chinese in _MENTION.findall(text)]
