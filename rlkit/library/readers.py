"""Finds out the format of a file or folder, and reads documents and questions from it.

    plain            JSONL rows {id, title, text} and {id, question, answer, gold: [ids], hops}
    BEIR             a folder with corpus.jsonl, queries.jsonl (or .tsv) and qrels/*.tsv, graded
    HotpotQA, 2Wiki  their own JSON, MuSiQue its own JSONL         (`multihop.py`)
    BrowseComp-Plus  decrypted queries as JSONL, corpus as JSONL or parquet   (`multihop.py`)

A folder may hold any of these under the names `corpus` and `questions` or `queries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rlkit.errors import DataError
from rlkit.files import read_json, read_jsonl
from rlkit.library import multihop
from rlkit.library.corpus import Corpus, Document, Library, Question
from rlkit.library.fields import Row, identifier, strings, text_field
from rlkit.library.qrels import find_qrels, read_qrels, tab_lines

LARGE = 2**26  # bytes: some 100,000 passages
_SUFFIXES = (".jsonl", ".json", ".tsv", ".parquet")


def read_library(
    corpus_path: str | Path, questions_path: str | Path, keep: str | Path | None = None
) -> Library:
    """Read a corpus (see read_corpus) and its questions, and check that every gold document is
    there."""
    return Library(read_corpus(corpus_path, keep), read_questions(questions_path))


def read_corpus(path: str | Path, keep: str | Path | None = None) -> Corpus:
    """Read the documents of a file or folder: into memory, or, where the files have LARGE bytes
    or more and `keep` names a folder, into a corpus on disk in there (stored.py).

    Raises DataError with file, line and field where something is missing or damaged.
    """
    files = _corpus_files(Path(path))

    def documents() -> Iterator[Document]:
        return (document for file in files for document in _documents(file))

    if keep is not None and sum(f.stat().st_size for f in files if f.is_file()) >= LARGE:
        from rlkit.library.stored import stored_corpus

        return stored_corpus(files, documents, keep, str(path))
    return Corpus(documents(), str(path))


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """Read the questions of a file or folder; the path of a file in `qrels/` chooses that one.

    Raises DataError with file, line and field where something is missing or damaged.
    """
    path = Path(path)
    if path.is_file() and path.parent.name == "qrels":
        questions = _judged(_questions(_named(path.parent.parent, "queries")), path)
    else:
        file = _named(path, "questions", "queries") if path.is_dir() else path
        questions = _questions(file)
        if file.stem == "queries" and not any(q.gold_docids for q in questions):
            qrels = find_qrels(file.parent)
            questions = _judged(questions, qrels) if qrels else questions
    if not questions:
        raise DataError(f"{path} holds no questions; at least one is needed.")
    return tuple(questions)


def _documents(file: Path) -> Iterator[Document]:
    rows = read_rows(file)
    first = next(rows, None)
    if first is not None:
        convert = multihop.documents_reader(first.fields) or _plain_documents
        yield from convert(chain([first], rows))


def _questions(file: Path) -> list[Question]:
    rows = read_rows(file)
    first = next(rows, None)
    if first is None:
        return []
    convert = multihop.questions_reader(first.fields) or _plain_questions
    return list(convert(chain([first], rows)))


def _plain_documents(rows: Iterable[Row]) -> Iterator[Document]:
    for row in rows:
        title = text_field(row, "title", required=False)
        text = text_field(row, "text", "contents", required=not title)
        yield Document(identifier(row, "id", "_id", "docid"), title, text)


def _plain_questions(rows: Iterable[Row]) -> Iterator[Question]:
    for row in rows:
        gold = strings(row, "gold", "gold_docids")
        yield Question(
            question_id=identifier(row, "id", "_id", "question_id", "query_id"),
            text=text_field(row, "question", "query", "text"),
            answer=_answer(row),
            gold_docids=gold,
            hops=_hops(row) or len(gold) or None,
        )


def _answer(row: Row) -> str | None:
    if isinstance(row.fields.get("answer"), str):
        return text_field(row, "answer", required=False) or None
    return next(iter(strings(row, "answers", "answer")), None)


def _hops(row: Row) -> int | None:
    hops = row.fields.get("hops")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 1):
        raise DataError(
            f"{row.where}, field 'hops': {str(hops)[:40]!r} is not a whole number of 1 or more."
        )
    return hops


def _judged(questions: list[Question], qrels_path: Path) -> list[Question]:
    """The questions that have a judgement above 0, best-judged documents first."""
    qrels = read_qrels(qrels_path)
    unknown = set(qrels).difference(q.question_id for q in questions)
    if unknown:
        raise DataError(
            f"{qrels_path} judges {len(unknown)} queries that are not among the queries "
            f"(first {min(unknown)!r}); give the queries that the judgements were made for."
        )
    judged = []
    for question in questions:
        grades = qrels.get(question.question_id, {})
        gold = tuple(sorted((d for d in grades if grades[d] > 0), key=lambda d: -grades[d]))
        if gold:
            judged.append(replace(question, gold_docids=gold, hops=len(gold)))
    return judged


def _corpus_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    shards = sorted((*path.glob("*.parquet"), *path.glob("data/*.parquet")))
    if shards and not any((path / f"corpus{suffix}").is_file() for suffix in _SUFFIXES):
        return shards
    return [_named(path, "corpus")]


def _named(folder: Path, *stems: str) -> Path:
    for stem in stems:
        for suffix in _SUFFIXES:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    names = ", ".join(f"{stem}.jsonl" for stem in stems)
    raise DataError(f"{folder} has none of {names}; give a file, or a folder that holds one.")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL, JSON-array, TSV or parquet file, each with its place."""
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
    elif path.suffix == ".tsv":
        yield from _tsv_rows(path)
    elif path.suffix == ".json" and _starts_with_bracket(path):
        items = read_json(path)
        for number, item in enumerate(items, start=1):
            yield Row.checked(item, f"{path}, item {number}")
    else:
        for number, row in read_jsonl(path):
            yield Row(row, f"{path}, line {number}")


def _starts_with_bracket(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path.") from error


def _tsv_rows(path: Path) -> Iterator[Row]:
    """Queries as `id<tab>text` lines, with or without a header (BrowseComp-Plus's queries.tsv)."""
    for number, cells in tab_lines(path):
        if number == 1 and cells[-1].strip().casefold() in ("text", "query", "question"):
            continue
        if len(cells) != 2:
            raise DataError(
                f"{path}, line {number}: {len(cells)} fields where two are wanted (id, text), "
                "separated by a tab."
            )
        yield Row({"id": cells[0], "text": cells[1]}, f"{path}, line {number}")


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=256)
        number = 0
        for batch in batches:
            for fields in batch.to_pylist():
                number += 1
                yield Row(fields, f"{path}, row {number}")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); check the path.") from error
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path} is not a parquet file ({error}); fetch it again.") from error
