"""Relevance judgements as BEIR and TREC write them, with their grades.

BEIR   a header, then `query-id<tab>corpus-id<tab>score`
TREC   no header, `query-id 0 document-id grade`, separated by blanks
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlkit.errors import DataError
from rlkit.library.corpus import clean_text


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Map query id -> document id -> grade; a grade above 0 means relevant (gold).

    Raises DataError with file and line where a line is not as the format says.
    """
    path = Path(path)
    grades: dict[str, dict[str, int]] = {}
    for number, cells in tab_lines(path):
        cells = cells if len(cells) > 1 else cells[0].split()
        if number == 1 and _is_header(cells):
            continue
        if len(cells) not in (3, 4):
            raise DataError(
                f"{path}, line {number}: {len(cells)} fields where three are wanted "
                "(query-id, corpus-id, score) or TREC's four."
            )
        grades.setdefault(cells[0].strip(), {})[cells[-2].strip()] = _grade(cells[-1], path, number)
    if not grades:
        raise DataError(f"{path} holds no judgements; at least one is needed.")
    return grades


def find_qrels(folder: Path) -> Path | None:
    """The judgements beside a query file: `test` where there are several, None for none.

    Raises DataError where there are several and none is called `test`.
    """
    found = sorted(
        (*folder.glob("qrels/*.tsv"), *folder.glob("qrel*.tsv"), *folder.glob("qrel*.txt"))
    )
    # BrowseComp-Plus has two: the evidence (all that is needed) holds the golds too.
    preferred = [p for p in found if p.stem in ("test", "qrels.test", "qrel_evidence")]
    if len(found) > 1 and len(preferred) != 1:
        names = ", ".join(str(p.relative_to(folder)) for p in found)
        raise DataError(
            f"{folder} has several files of judgements ({names}); "
            "give the path of the one to use as the questions' path."
        )
    return (preferred or found or [None])[0]


def tab_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, cells) of a tab-separated file, blank lines left out."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, [clean_text(cell) for cell in line.rstrip("\r").split("\t")]


def _is_header(cells: list[str]) -> bool:
    return "score" in (cell.strip().casefold() for cell in cells)


def _grade(cell: str, path: Path, number: int) -> int:
    try:
        return int(cell)
    except ValueError:
        raise DataError(
            f"{path}, line {number}, field 'score': {cell[:40]!r} is not a whole number."
        ) from None
