"""HotpotQA, 2WikiMultihopQA, MuSiQue and BrowseComp-Plus in their own files."""

import json

import pytest
from pydantic import TypeAdapter

from rlkit.errors import DataError
from rlkit.library.corpus import Document, Question
from rlkit.library.readers import read_corpus, read_library, read_questions
from rlkit.rounds.state import DocId


def hotpot(number, context, facts):
    return {
        "_id": f"h{number}",
        "question": "Who?",
        "answer": "A",
        "type": "bridge",
        "context": context,
        "supporting_facts": facts,
    }


def test_hotpot_ids_are_titles_and_another_text_gets_another_id(tmp_path):
    path = tmp_path / "hotpot.json"
    first = hotpot(1, [["X", ["One.", " Two."]], ["Y", ["y"]]], [["Y", 0], ["X", 1], ["Y", 1]])
    second = hotpot(2, [["X", ["Other."]], ["Y", ["y"]]], [["X", 0]])
    path.write_text(json.dumps([first, second]))
    library = read_library(path, path)
    other = library.corpus[2].docid
    assert library.corpus[0] == Document("X", "X", "One. Two.")
    assert other.startswith("X #") and library.corpus[2].title == "X" and len(library.corpus) == 3
    assert library.questions[0] == Question("h1", "Who?", "A", ("Y", "X"), 2)
    assert library.questions[1].gold_docids == (other,)


def test_a_byte_order_mark_before_the_list_is_no_damage(tmp_path):
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([hotpot(1, [["X", ["a"]]], [["X", 0]])]), encoding="utf-8-sig")
    assert len(read_library(path, path).questions) == 1


@pytest.mark.parametrize(
    ("context", "facts", "message"),
    [
        (None, [["X", 0]], "item 1, field 'context': missing where a list is wanted"),
        ([["X", "text"]], [["X", 0]], "field 'context[0]': the second part must be the list"),
        (["X"], [["X", 0]], "field 'context[0]': not a pair"),
        ([["X", ["a"]]], [["Z", 0]], "field 'supporting_facts': 'Z' is no title of the context"),
        ([["", ["a"]]], [["", 0]], "field 'context[0]', field 'title': empty"),
        (
            [["t" * 493, ["a"]]],
            [["t" * 493, 0]],
            "field 'context[0]', field 'title': 493 characters, and the title is the document's id",
        ),
    ],
)
def test_damaged_hotpot_rows_are_named(tmp_path, context, facts, message):
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([hotpot(1, context, facts)]))
    with pytest.raises(DataError) as error:
        read_questions(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_the_longest_title_gives_two_ids_that_records_of_rounds_allow(tmp_path):
    path, title = tmp_path / "hotpot.json", "t" * 492
    rows = [hotpot(n, [[title, [text]]], [[title, 0]]) for n, text in enumerate(("one", "two"))]
    path.write_text(json.dumps(rows))
    first, second = (document.docid for document in read_corpus(path))
    assert (len(first), len(second)) == (492, 500)
    for docid in (first, second):
        assert TypeAdapter(DocId).validate_python(docid) == docid


def musique(number, **changes):
    paragraphs = [
        {"idx": 0, "title": "B", "paragraph_text": "b", "is_supporting": True},
        {"idx": 1, "title": "C", "paragraph_text": "c", "is_supporting": False},
        {"idx": 2, "title": "A", "paragraph_text": "a", "is_supporting": True},
    ]
    steps = [{"paragraph_support_idx": 2}, {"paragraph_support_idx": 0}]
    row = {
        "id": f"2hop__{number}",
        "question": "Who?",
        "answer": "A",
        "paragraphs": paragraphs,
        "question_decomposition": steps,
        "answerable": True,
    }
    return row | changes


def test_musique_gold_is_in_the_order_of_the_hops(tmp_path):
    path = tmp_path / "musique.jsonl"
    rows = [musique(1), musique(2, answerable=False)]
    path.write_text("\n".join(map(json.dumps, rows)))
    library = read_library(path, path)
    assert [document.docid for document in library.corpus] == ["B", "C", "A"]
    assert library.questions == (Question("2hop__1", "Who?", "A", ("A", "B"), 2),)
    path.write_text(json.dumps(musique(1, paragraphs=[{"title": "A", "is_supporting": "yes"}])))
    with pytest.raises(DataError, match=r"line 1, field 'paragraphs\[0\]', field 'is_supporting'"):
        read_corpus(path)


def browsecomp(folder):
    text = "---\ntitle: A page\ndate: 2020\n---\nBody."
    row = {
        "query_id": "769",
        "query": "Who?",
        "answer": "A",
        "gold_docs": [{"docid": "3", "text": "three"}],
        "evidence_docs": [{"docid": "3", "text": "three"}, {"docid": "1", "text": text}],
        "negative_docs": [{"docid": "2", "text": "two"}],
    }
    queries = folder / "browsecomp_plus_decrypted.jsonl"
    queries.write_text(json.dumps(row))
    return queries, [
        {"docid": "1", "text": text, "url": "u"},
        {"docid": "3", "text": "t", "url": ""},
    ]


def test_browsecomp_plus_is_read_from_its_queries_alone(tmp_path):
    queries, _ = browsecomp(tmp_path)
    library = read_library(queries, queries)
    assert [document.docid for document in library.corpus] == ["3", "1", "2"]
    assert library.corpus.get("1").title == "A page" and library.corpus.get("3").title == ""
    assert library.questions == (Question("769", "Who?", "A", ("1", "3"), 2),)


def test_browsecomp_plus_corpus_as_jsonl_and_parquet_shards_agree(tmp_path):
    pandas = pytest.importorskip("pandas")
    queries, rows = browsecomp(tmp_path)
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shards = tmp_path / "corpus" / "data"
    shards.mkdir(parents=True)
    for number, row in enumerate(rows):
        pandas.DataFrame([row]).to_parquet(shards / f"train-{number}.parquet")
    plain = read_library(tmp_path / "c.jsonl", queries)
    sharded = read_library(tmp_path / "corpus", queries)
    assert plain.corpus.fingerprint == sharded.corpus.fingerprint
    assert plain.corpus[0].title == "A page"
    (shards / "train-2.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(DataError, match="train-2.parquet is not a parquet file"):
        read_corpus(tmp_path / "corpus")


def test_browsecomp_plus_topics_and_judgements_are_read(tmp_path):
    (tmp_path / "queries.tsv").write_text("769\tWho?\n770\tWhere?\n")
    (tmp_path / "qrel_evidence.txt").write_text("769 Q0 1 1\n769 Q0 3 1\n")
    (tmp_path / "qrel_golds.txt").write_text("769 Q0 3 1\n")
    assert read_questions(tmp_path) == (Question("769", "Who?", None, ("1", "3"), 2),)


def test_the_native_hotpot_file_equals_the_plain_one(shared_data):
    folder = shared_data / "hotpotqa100"
    native = read_library(folder / "orig_hotpotqa_train.json", folder / "orig_hotpotqa_train.json")
    plain = read_library(folder, folder)
    assert len(native.corpus) == len(plain.corpus) == 994

    def gold_titles(library):
        return {
            q.question_id: {library.corpus.get(d).title for d in q.gold_docids}
            for q in library.questions
        }

    assert gold_titles(native) == gold_titles(plain)
