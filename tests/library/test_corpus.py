"""Corpora, libraries, and the plain and BEIR readers."""

import json
import re

import pytest
from pydantic import TypeAdapter, ValidationError

from rlkit.errors import DataError
from rlkit.library.corpus import Corpus, Document, Library, Question, clean_text
from rlkit.library.qrels import read_qrels
from rlkit.library.readers import read_corpus, read_library, read_questions
from rlkit.rounds.state import DocId


def jsonl(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_corpus_is_a_sequence_found_by_position_and_id():
    corpus = Corpus([Document("a", "A", "one"), Document("b", "B", "two")])
    assert len(corpus) == 2 and corpus[1].docid == "b" and [d.docid for d in corpus] == ["a", "b"]
    assert corpus.position("b") == 1 and corpus.get("b").title == "B" and corpus.get("c") is None
    assert "a" in corpus and "c" not in corpus


def test_fingerprints_differ_where_any_part_moves():
    one = Corpus([Document("a", "bc", "d")]).fingerprint
    assert one == Corpus([Document("a", "bc", "d")]).fingerprint
    assert one != Corpus([Document("a", "b", "cd")]).fingerprint
    two = [Document("a", "", "x"), Document("b", "", "y")]
    assert Corpus(two).fingerprint != Corpus(two[::-1]).fingerprint


def test_an_empty_corpus_and_a_repeated_id_are_errors():
    with pytest.raises(DataError, match="holds no documents"):
        Corpus([])
    with pytest.raises(DataError, match=r"'a' occurs twice \(documents 1 and 3\)"):
        Corpus([Document("a", "", "x"), Document("b", "", "x"), Document("a", "", "y")])


def test_gold_that_is_not_in_the_corpus_is_counted_and_named():
    corpus = Corpus([Document("a", "", "x")])
    questions = tuple(Question(f"q{i}", "?", gold_docids=(f"lost{i}", "a")) for i in range(5))
    with pytest.raises(DataError, match=r"5 gold document ids .* first 'lost0' \(question 'q0'\)"):
        Library(corpus, questions)
    with pytest.raises(DataError, match="question id 'q' occurs twice"):
        Library(corpus, (Question("q", "?"), Question("q", "!")))


def test_strange_text_is_cleaned():
    assert clean_text("\ufeffa\x00b\r\nc\rd\ud800\u2028e\x9f\t") == "a b\nc\nd\ufffd\ne \t"


def test_plain_files_are_read(tmp_path):
    corpus = jsonl(
        tmp_path / "corpus.jsonl",
        {"id": "a", "title": "A", "text": "x\r\ny\ud800"},
        {"id": 7, "text": "t" * 100_000},
    )
    questions = jsonl(
        tmp_path / "questions.jsonl",
        {"id": "q1", "question": "?", "answer": "z", "gold": ["a", 7, "a"]},
        {"id": "q2", "question": "?", "answers": ["u", "v"], "gold": ["a"], "hops": 3},
        {"id": "q3", "question": "?"},
    )
    library = read_library(corpus, questions)
    assert library.corpus[0] == Document("a", "A", "x\ny\ufffd")
    assert library.corpus[1].docid == "7" and library.corpus[1].title == ""
    assert library.questions == (
        Question("q1", "?", "z", ("a", "7"), 2),
        Question("q2", "?", "u", ("a",), 3),
        Question("q3", "?", None, (), None),
    )
    assert read_library(tmp_path, tmp_path).questions == library.questions


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\r\n\r\n{"id": "b", "text": "y"}\r\n')
    assert [document.docid for document in read_corpus(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"title": "T", "text": "x"}, "line 2, field 'id' or '_id' or 'docid': missing"),
        ({"id": "", "text": "x"}, "line 2, field 'id': empty"),
        ({"id": True, "text": "x"}, "line 2, field 'id': a bool where text is wanted"),
        (
            {"id": "b" * 501, "text": "x"},
            "line 2, field 'id': an id of 501 characters; at most 500",
        ),
        ({"id": "b"}, "line 2, field 'text' or 'contents': missing"),
        ({"id": "b", "text": ["x"]}, "line 2, field 'text': a list where text is wanted"),
        ({"id": "b", "text": " \x00 "}, "line 2, field 'text': empty"),
    ],
)
def test_errors_of_documents_name_file_line_and_field(tmp_path, row, message):
    path = jsonl(tmp_path / "c.jsonl", {"id": "a", "text": "x"}, row)
    with pytest.raises(DataError, match="c.jsonl, ") as error:
        read_corpus(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "q"}, "field 'question' or 'query' or 'text': missing"),
        ({"id": "q", "question": "?", "gold": "a"}, "field 'gold': a str where a list is wanted"),
        ({"id": "q", "question": "?", "gold": [None]}, "field 'gold[0]'"),
        ({"id": "q", "question": "?", "hops": "two"}, "field 'hops': 'two' is not a whole number"),
        ({"id": "q", "question": "?", "answer": 3}, "field 'answer': a int where a list is wanted"),
    ],
)
def test_errors_of_questions_name_file_line_and_field(tmp_path, row, message):
    path = jsonl(tmp_path / "q.jsonl", row)
    with pytest.raises(DataError) as error:
        read_questions(path)
    assert f"{path}, line 1, {message}" in str(error.value)


def test_the_rows_that_the_formats_page_shows_are_read(root, tmp_path):
    page = (root / "docs" / "formats.md").read_text(encoding="utf-8")
    section = page.partition("## Documents and questions")[2]
    document, question = re.findall(r"```jsonl\n(.*?)```", section, re.DOTALL)[:2]
    (tmp_path / "corpus.jsonl").write_text(document, encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text(question, encoding="utf-8")
    (shown,) = read_corpus(tmp_path / "corpus.jsonl")
    assert shown == Document("d17", "Elm Row", "Elm Row was built by Ada Holt in 1931.")
    (asked,) = read_questions(tmp_path / "questions.jsonl")
    assert (asked.answer, asked.gold_docids, asked.hops) == ("Trent", ("d17", "d42"), 2)


def test_an_id_as_long_as_records_of_rounds_allow_is_read(tmp_path):
    longest = "b" * 500
    assert [*read_corpus(jsonl(tmp_path / "c.jsonl", {"id": longest, "text": "x"}))]
    assert TypeAdapter(DocId).validate_python(longest) == longest
    with pytest.raises(ValidationError):
        TypeAdapter(DocId).validate_python(longest + "b")


def test_broken_empty_and_missing_files_are_one_sentence(tmp_path):
    broken = tmp_path / "corpus.jsonl"
    broken.write_text('{"id": "a", "text": "x"}\n{"id": "b", "te')
    with pytest.raises(DataError, match="corpus.jsonl, line 2: not a JSON object"):
        read_corpus(broken)
    broken.write_text("")
    with pytest.raises(DataError, match="holds no documents"):
        read_corpus(broken)
    with pytest.raises(DataError, match="holds no questions"):
        read_questions(broken)
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="has none of questions.jsonl, queries.jsonl"):
        read_questions(tmp_path)


def beir(folder, judgements="query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t2\n1\tc\t0\n2\tc\t0\n"):
    jsonl(folder / "corpus.jsonl", *({"_id": i, "title": "", "text": i} for i in "abc"))
    queries = [{"_id": str(i), "text": f"query {i}"} for i in (1, 2, 3)]
    jsonl(folder / "queries.jsonl", *queries)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(judgements)
    return folder


def test_beir_gold_is_what_is_graded_above_zero_best_first(tmp_path):
    folder = beir(tmp_path)
    assert read_library(folder, folder).questions == (
        Question("1", "query 1", None, ("b", "a"), 2),
    )
    grades = {"1": {"a": 1, "b": 2, "c": 0}, "2": {"c": 0}}
    assert read_qrels(folder / "qrels" / "test.tsv") == grades
    assert read_questions(folder / "queries.jsonl") == read_questions(folder)


def test_other_judgements_are_chosen_by_their_path(tmp_path):
    folder = beir(tmp_path)
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\r\n3\tc\t1\r\n")
    assert [q.question_id for q in read_questions(folder)] == ["1"]
    assert [q.question_id for q in read_questions(folder / "qrels" / "dev.tsv")] == ["3"]
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
    with pytest.raises(DataError, match="several files of judgements"):
        read_questions(folder)


def test_damaged_judgements_name_their_line(tmp_path):
    folder = beir(tmp_path, "query-id\tcorpus-id\tscore\n1\ta\thigh\n")
    with pytest.raises(DataError, match="test.tsv, line 2, field 'score': 'high'"):
        read_questions(folder)
    (folder / "qrels" / "test.tsv").write_text("1\ta\n")
    with pytest.raises(DataError, match="test.tsv, line 1: 2 fields where three"):
        read_questions(folder)
    (folder / "qrels" / "test.tsv").write_text("9\ta\t1\n")
    with pytest.raises(DataError, match="judges 1 queries that are not among"):
        read_questions(folder)


def test_trec_judgements_are_read(tmp_path):
    (tmp_path / "qrels.test.txt").write_text("1 0 a 1\n1 0 b 0\n")
    assert read_qrels(tmp_path / "qrels.test.txt") == {"1": {"a": 1, "b": 0}}
