"""What the Executor wrote, read as clues.

Three forms are read: two-phase (`<search_clues>` with `<clue>` inside, after an `<analysis>`),
legacy (a `<search>` block, or a list under `Clues:`), and bare (`<clue>` tags alone, or plain
lines). The output of a model is untrusted: reading is linear in its length and never raises.
What is passed over (thinking, analysis, fences) is replaced by blanks of the same length, so that
every clue keeps its place in the text; `credit: clue` needs it.

A tag that is still open where the output ends was cut off by the token limit, so the unfinished
clue in it is dropped. A missing `</clue>` is tolerated where a line break or the next tag ends
the clue.

| a candidate | is no clue beyond |
|---|---|
| in a `<clue>` tag | MAX_CLUE_WORDS (64), MAX_CLUE_CHARS (300) |
| a numbered or bulleted line of a block | the same |
| another line of a block; any line outside of one | MAX_LINE_WORDS (30), MAX_CLUE_CHARS |
| any, before its tags and entities are resolved | MAX_RAW_CHARS (2,000) |

Of the clues that are left, distinct but for case and width, the first `search.max_clues` count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlkit.agents.clues import MAX_CLUE_WORDS, MAX_RAW_CHARS, clean_clue
from rlkit.library.tokenize import folded

MAX_LINE_WORDS = 30  # a longer line is prose, unless it is numbered within a block of clues

_TAG = re.compile(
    r"<[ \t]*+(/?)[ \t]*+(search_clues|search|clue|analysis|think(?:ing)?)\b[^<>]*+>", re.IGNORECASE
)
_CLOSED = re.compile(r"</clue>\s*\Z", re.IGNORECASE)
_FENCE = re.compile(r"```[\w+\-]*+[ \t]*+(?=[\r\n]|\Z)|```|~~~")
_MARKER = re.compile(
    r"\s*+(?:[-*+–—‣◦·●•・]\s|[•●‣◦]|[(（]?\d{1,2}(?:[)）、]|[.．](?!\d))|[①-⑳]"
    r"|[(（]?[一二三四五六七八九十]{1,3}[、.．)）]|(?:clue|线索)\s*+\d{1,2}\s*+[:：.)])\s*+",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"[#*\s]*+(?:(?:the|my|new|next|final|search)\s++){0,3}(?:clues?|搜索线索|检索线索|线索)"
    r"[*\s]*+[:：][*\s]*+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedClues:
    """The clues of one output, in order; it can be used like the tuple of them.

    `how` is one of two_phase, search_block, clue_list, clue_tags, plain_lines, nothing. `dropped`
    counts candidates that were empty, too long, repeated, cut off, or beyond the cap, `repeated`
    those of them that say again what an earlier one said. `spans[i]` is where clue i stands in the
    output, as (start, end) in characters.
    """

    clues: tuple[str, ...]
    how: str
    dropped: int
    spans: tuple[tuple[int, int], ...] = ()
    repeated: int = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.clues)

    def __len__(self) -> int:
        return len(self.clues)


class _Candidate(NamedTuple):
    start: int
    end: int
    max_words: int


class _Tag(NamedTuple):
    start: int
    end: int
    name: str
    closes: bool


def parse_clues_from_output(text: str, max_clues: int = 4, plain_lines: bool = True) -> ParsedClues:
    """Read the clues out of a completion of the policy.

    Any string is allowed; what cannot be read gives no clues. With `plain_lines` false, lines
    count only in a `<search>` or `<search_clues>` block or under a `Clues:` heading.
    """
    text, tags = _without_passages(text)
    how, candidates, dropped = _candidates(text, tags, plain_lines)
    kept: dict[str, tuple[str, tuple[int, int]]] = {}
    repeated = 0
    for start, end, max_words in candidates:
        clue = clean_clue(text[start:end], max_words) if end - start <= MAX_RAW_CHARS else ""
        key = folded(clue)
        if not key or key in kept or len(kept) >= max_clues:
            dropped += 1
            repeated += key in kept
        else:
            kept[key] = (clue, (start, end))
    clues = tuple(clue for clue, _ in kept.values())
    spans = tuple(span for _, span in kept.values())
    return ParsedClues(clues, how, dropped, spans, repeated)


def completeness(config: Any) -> Callable[[str], bool] | None:
    """Whether an output holds all the clues that count, where `executor.stop_at_max_clues` ends
    it there: it ends with the tag of a clue, and `search.max_clues` clues are read in it."""
    if not config.executor.stop_at_max_clues:
        return None
    most, plain_lines = config.search.max_clues, config.executor.plain_lines

    def complete(text: str) -> bool:
        if not _CLOSED.search(text):
            return False
        return len(parse_clues_from_output(text, most, plain_lines)) == most

    return complete


def _without_passages(text: str) -> tuple[str, list[_Tag]]:
    """Blank thinking, closed analyses and fences; all other characters keep their places."""
    tags = _tags(text)
    for passages in (_thinking, _analyses):
        spans = passages(tags, len(text))
        if spans:
            text = _blank(text, spans)
            tags = _tags(text)
    return _FENCE.sub(lambda fence: " " * len(fence[0]), text), tags


def _tags(text: str) -> list[_Tag]:
    return [_Tag(t.start(), t.end(), t[2].lower(), bool(t[1])) for t in _TAG.finditer(text)]


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    """Replace disjoint, ascending spans by blanks."""
    pieces, done = [], 0
    for start, end in spans:
        pieces += [text[done:start], " " * (end - start)]
        done = end
    return "".join([*pieces, text[done:]])


def _thinking(tags: list[_Tag], length: int) -> list[tuple[int, int]]:
    """Blocks of thinking. One that was cut off reaches to the end; a `</think>` without its
    `<think>` (a chat template may have opened it in the prompt) ends one that began at 0."""
    spans: list[tuple[int, int]] = []
    opened = None
    for tag in tags:
        if not tag.name.startswith("think"):
            continue
        if not tag.closes:
            opened = tag.start if opened is None else opened
        elif opened is None:
            spans = [(0, tag.end)]
        else:
            spans.append((opened, tag.end))
            opened = None
    return spans if opened is None else [*spans, (opened, length)]


def _analyses(tags: list[_Tag], length: int) -> list[tuple[int, int]]:
    """The insides of closed analyses. The tags stay: they tell that the output is tagged. What
    follows an `<analysis>` that is never closed is read as if the tag were not there."""
    spans: list[tuple[int, int]] = []
    opened = None
    for tag in tags:
        if tag.name == "analysis" and not tag.closes and opened is None:
            opened = tag.end
        elif tag.name == "analysis" and tag.closes and opened is not None:
            spans.append((opened, tag.start))
            opened = None
    return spans


def _candidates(
    text: str, tags: list[_Tag], plain_lines: bool
) -> tuple[str, list[_Candidate], int]:
    """(how, candidates, number of clues that were cut off)."""
    opened = {tag.name for tag in tags if not tag.closes}
    for name, how in (("search_clues", "two_phase"), ("search", "search_block")):
        if name in opened:
            return how, *_in_blocks(text, tags, name)
    if "clue" in opened:
        return "clue_tags", *_in_clue_tags(text, tags, len(text), closed=False)
    lines = list(_lines(text, 0, len(text)))
    found = _under_heading(text, lines)
    if found:
        return "clue_list", found, 0
    found = _list_items(text, lines) if plain_lines and not tags else []
    return ("plain_lines" if found else "nothing"), found, 0


def _in_blocks(text: str, tags: list[_Tag], name: str) -> tuple[list[_Candidate], int]:
    """The clues of every block `name`: its `<clue>` tags, or its lines where it has none."""
    found: list[_Candidate] = []
    cut_off = 0
    for start, end, inside, closed in _blocks(text, tags, name):
        if any(tag.name == "clue" and not tag.closes for tag in inside):
            more, cut = _in_clue_tags(text, inside, end, closed)
        else:
            lines = list(_lines(text, start, end))
            unfinished = not closed and bool(lines) and text[end - 1] not in "\r\n"
            cut = int(unfinished and bool(text[slice(*lines[-1])].strip()))
            more = _list_items(text, lines[:-1] if unfinished else lines, MAX_CLUE_WORDS)
        found += more
        cut_off += cut
    return found, cut_off


def _blocks(text: str, tags: list[_Tag], name: str) -> Iterator[tuple[int, int, list[_Tag], bool]]:
    """(start, end, tags inside, whether it was closed) of every block `name`."""
    start, inside = None, []
    for tag in tags:
        if start is None:
            if tag.name == name and not tag.closes:
                start, inside = tag.end, []
        elif tag.name == name and tag.closes:
            yield start, tag.start, inside, True
            start = None
        elif tag.name != name:
            inside.append(tag)
    if start is not None:
        yield start, len(text), inside, False


def _in_clue_tags(
    text: str, tags: list[_Tag], end: int, closed: bool
) -> tuple[list[_Candidate], int]:
    """The clues in `<clue>` tags, and how many were cut off by the end of the output."""
    found: list[_Candidate] = []
    for index, tag in enumerate(tags):
        if tag.name != "clue" or tag.closes:
            continue
        after = tags[index + 1] if index + 1 < len(tags) else None
        stop = after.start if after else end
        if after and after.name == "clue" and after.closes:
            found.append(_Candidate(tag.end, stop, MAX_CLUE_WORDS))
            continue
        start, stop, finished = _first_line(text, tag.end, stop)
        if finished or after or closed:
            found.append(_Candidate(start, stop, MAX_CLUE_WORDS))
        else:
            return found, 1
    return found, 0


def _first_line(text: str, start: int, end: int) -> tuple[int, int, bool]:
    """(start, end, whether a line break ends it) of the first line that is not blank."""
    while (stop := text.find("\n", start, end)) >= 0:
        if not text[start:stop].isspace() and stop > start:
            return start, stop, True
        start = stop + 1
    return start, end, False


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for line in text[start:end].splitlines(keepends=True):
        yield start, start + len(line)
        start += len(line)


def _list_items(
    text: str, lines: list[tuple[int, int]], marked_words: int = MAX_LINE_WORDS
) -> list[_Candidate]:
    """One candidate a line; where some lines are numbered or bulleted, only those, and each of at
    most `marked_words`."""
    marked, plain = [], []
    for start, end in lines:
        marker = _MARKER.match(text, start, end)
        if marker:
            marked.append(_Candidate(marker.end(), end, marked_words))
        elif not text[start:end].isspace() and not text[start:end].rstrip().endswith((":", "：")):
            plain.append(_Candidate(start, end, MAX_LINE_WORDS))
    return marked or plain


def _under_heading(text: str, lines: list[tuple[int, int]]) -> list[_Candidate]:
    """The list under the first `Clues:`, which ends at a blank line unless it is numbered or
    bulleted; what stands on the heading's own line belongs to it."""
    heads = [_HEADING.match(text, start, end) for start, end in lines]
    first = next((index for index, head in enumerate(heads) if head), None)
    if first is None:
        return []
    own: list[_Candidate] = []
    rest: list[tuple[int, int]] = []
    for head, (start, end) in zip(heads[first:], lines[first:], strict=True):
        if head and text[head.end() : end].strip():
            own.append(_Candidate(head.end(), end, MAX_LINE_WORDS))
        elif not head:
            rest.append((start, end))
    if not any(_MARKER.match(text, start, end) for start, end in rest):
        rest = _first_paragraph(text, rest)
    return sorted(own + _list_items(text, rest))


def _first_paragraph(text: str, lines: list[tuple[int, int]]) -> list[tuple[int, int]]:
    paragraph: list[tuple[int, int]] = []
    for start, end in lines:
        if not text[start:end].isspace():
            paragraph.append((start, end))
        elif paragraph:
            break
    return paragraph
