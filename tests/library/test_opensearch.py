"""OpenSearch as a backend, against a server on a real socket that checks the requests."""

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("opensearchpy", reason="pip install -e '.[opensearch]'")

from rlkit.errors import AgentError, ConfigError, DataError, ServerAwayError  # noqa: E402
from rlkit.library import opensearch  # noqa: E402
from rlkit.library.bm25 import BM25sBackend, Hit, build_backend  # noqa: E402
from rlkit.library.corpus import Corpus, Document  # noqa: E402
from rlkit.library.opensearch import OpenSearchBackend, fill_index  # noqa: E402
from tests.library.search_server import running  # noqa: E402

CORPUS = Corpus(
    [
        Document("d0", "", "apple banana"),
        Document("d1", "", "apple apple cherry"),
        Document("国", "战国", "cherry"),
        Document("tie/1", "", "plum"),
        Document("tie 2", "", "plum"),
    ]
)


@pytest.fixture
def cluster(monkeypatch):
    for name in (opensearch.USER, opensearch.PASSWORD, opensearch.API_KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opensearch, "WAIT", 0.01)
    with running() as (cluster, url):
        cluster.url = url
        yield cluster


def config(cluster, **changes):
    values = {"backend": "opensearch", "k1": 0.9, "b": 0.4, "stem": False, "stop_words": True}
    values |= {"url": cluster.url, "index": "fruit", "timeout": 5.0}
    return SimpleNamespace(**(values | changes))


@pytest.fixture
def backend(cluster):
    assert fill_index(CORPUS, config(cluster)) == 5
    return build_backend(CORPUS, config(cluster))


def test_scores_worked_out_by_hand(backend):
    """idf(banana) = ln(1 + 4.5/1.5) = 1.3862944; lengths 2, 3, 2, 1, 1, on average 1.8.
    d0: 1 / (1 + 0.9 * (0.6 + 0.4 * 2/1.8)) = 0.5154639, times idf 0.7145848"""
    [[hit]] = backend.search(["Banana"], 5)
    assert hit.position == 0 and hit.score == pytest.approx(0.7145848, abs=1e-6)


def test_it_ranks_as_bm25s_does_with_float32_scores(cluster):
    rng = random.Random(4)
    texts = (" ".join(f"w{rng.randrange(40)}" for _ in range(9)) for _ in range(80))
    corpus = Corpus(Document(f"d{n}", "", text) for n, text in enumerate(texts))
    fill_index(corpus, config(cluster))
    queries = [" ".join(f"w{rng.randrange(50)}" for _ in range(4)) for _ in range(30)]
    ours = OpenSearchBackend(corpus, config(cluster)).search(queries, 7)
    for mine, theirs in zip(ours, BM25sBackend(corpus).search(queries, 7), strict=True):
        assert [hit.position for hit in mine] == [hit.position for hit in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], rel=1e-6)


def test_ties_stand_in_the_order_of_the_corpus_also_where_top_k_cuts_them(backend):
    assert [hit.position for hit in backend.search(["plum"], 5)[0]] == [3, 4]
    assert [hit.position for hit in backend.search(["plum"], 1)[0]] == [3]


def test_chinese_is_cut_as_everywhere_and_words_count_as_often_as_they_stand(backend):
    chinese, once, twice = backend.search(["战国", "apple", "apple apple"], 1)
    assert chinese[0].position == 2
    assert twice[0].score == pytest.approx(2 * once[0].score, rel=1e-6)


def test_queries_go_together_and_empty_ones_nowhere(backend, cluster, monkeypatch):
    monkeypatch.setattr(opensearch, "TOGETHER", 2)
    cluster.requests.clear()
    found = backend.search(["", "banana", "the of", "zebra", "plum"], 1)
    assert [[hit.position for hit in hits] for hits in found] == [[], [0], [], [], [3]]
    assert [path for _, path, _ in cluster.requests] == ["/fruit/_msearch"] * 2
    assert backend.search([], 5) == [] and backend.search(["?!"], 5) == [[]]
    assert len(cluster.requests) == 2
    with pytest.raises(ConfigError, match="top_k is 0"):
        backend.search(["plum"], 0)


def test_an_unknown_document_is_one_sentence(backend, cluster):
    def stranger(response):
        response["hits"]["hits"][0]["_id"] = "stranger"
        return response

    cluster.change = stranger
    with pytest.raises(DataError, match="found the document 'stranger', which is not in the corp"):
        backend.search(["plum"], 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timed_out": True}, "a part of its shards only"),
        ({"_shards": {"failed": 1}}, "a part of its shards only"),
        ({"error": {"reason": "too many clauses"}, "status": 400}, r"an error \(too many clauses"),
        ({"hits": None}, "has no 'hits'"),
        ({"hits": {"hits": [{"_id": 3}]}}, "has no '_id'"),
        ({"hits": {"hits": [{"_id": "d0", "_score": None}]}}, "has no '_score'"),
        ({"hits": {"hits": [7]}}, "has no '_id'"),
    ],
)
def test_answers_that_are_not_whole_are_errors(backend, cluster, change, message):
    cluster.change = lambda response: response | change
    with pytest.raises(AgentError, match=message):
        backend.search(["plum"], 5)


def test_a_busy_cluster_is_asked_again_for_what_is_missing(backend, cluster):
    wanted = backend.search(["plum", "banana"], 1)
    cluster.busy, cluster.failing = 1, [503, 429]
    assert backend.search(["plum", "banana"], 1) == wanted
    cluster.busy = 99
    with pytest.raises(AgentError, match="queue is full"):
        backend.search(["plum"], 1)


def test_timeouts_are_tried_again_and_then_said(cluster):
    fill_index(CORPUS, config(cluster))
    backend = OpenSearchBackend(CORPUS, config(cluster, timeout=0.1))
    cluster.requests.clear()
    cluster.delay = 0.5
    with pytest.raises(ServerAwayError, match="within 0.1 s, tried 4 times"):
        backend.search(["plum"], 1)


def test_no_server_and_no_index_are_one_sentence(cluster):
    away = config(cluster, url="http://127.0.0.1:9")
    with pytest.raises(ServerAwayError, match="no search cluster answers at http://127.0.0.1:9"):
        build_backend(CORPUS, away)
    with pytest.raises(DataError, match="has no index 'fruit'; fill it with `python -m rlkit"):
        build_backend(CORPUS, config(cluster))


def test_keys_come_from_the_environment_and_are_never_shown(cluster, monkeypatch):
    cluster.token = "Basic bWU6c2VjcmV0LTE="  # me:secret-1 in base64
    with pytest.raises(AgentError, match="set OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"):
        fill_index(CORPUS, config(cluster))
    monkeypatch.setenv(opensearch.USER, "me")
    monkeypatch.setenv(opensearch.PASSWORD, "secret-1")
    assert fill_index(CORPUS, config(cluster)) == 5
    backend = OpenSearchBackend(CORPUS, config(cluster))
    assert "secret" not in repr(backend._client) + repr(vars(backend))
    monkeypatch.delenv(opensearch.USER)
    cluster.token = "ApiKey secret-2"
    monkeypatch.setenv(opensearch.API_KEY, "secret-2")
    assert OpenSearchBackend(CORPUS, config(cluster)).search(["plum"], 1) == [[Hit(3, _any())]]
    cluster.token = "ApiKey other"
    with pytest.raises(AgentError) as error:
        OpenSearchBackend(CORPUS, config(cluster))
    assert "secret" not in str(error.value)


class _any:
    def __eq__(self, other):
        return True


def test_an_index_of_something_else_is_neither_searched_nor_overwritten(cluster):
    fill_index(CORPUS, config(cluster))
    other = Corpus([Document("x", "", "plum")])
    for corpus, changed in [(other, {}), (CORPUS, {"k1": 1.2}), (CORPUS, {"stem": True})]:
        with pytest.raises(DataError, match="was filled with something else"):
            build_backend(corpus, config(cluster, **changed))
        with pytest.raises(DataError, match="is there and holds something else"):
            fill_index(corpus, config(cluster, **changed))
    assert len(cluster.indices["fruit"]["documents"]) == 5


def test_a_filling_that_was_killed_is_not_searched_and_is_gone_on_with(cluster, monkeypatch):
    whole = opensearch._actions

    def killed(corpus, search_config):
        yield next(whole(corpus, search_config))
        raise KeyboardInterrupt

    monkeypatch.setattr(opensearch, "BULK", {"chunk_size": 1})
    monkeypatch.setattr(opensearch, "_actions", killed)
    with pytest.raises(KeyboardInterrupt):
        fill_index(CORPUS, config(cluster))
    with pytest.raises(DataError, match="was not filled to its end"):
        build_backend(CORPUS, config(cluster))
    monkeypatch.setattr(opensearch, "_actions", whole)
    assert fill_index(CORPUS, config(cluster)) == 5
    assert build_backend(CORPUS, config(cluster)).search(["banana"], 1)[0][0].position == 0
    assert fill_index(CORPUS, config(cluster)) == 0  # all there: nothing is sent


def test_documents_that_are_refused_are_counted_and_named(cluster):
    corpus = Corpus([Document("d", "", "plum"), Document("x" * 600, "", "plum")])
    with pytest.raises(AgentError, match="refused 1 documents, first 'xxx.*id is too long"):
        fill_index(corpus, config(cluster))
    with pytest.raises(DataError, match="was not filled to its end"):
        build_backend(corpus, config(cluster))


def test_something_else_than_a_cluster_is_said_so(cluster):
    cluster.failing = [418]
    with pytest.raises(AgentError, match=r"status 418 and an error \(not now\)"):
        build_backend(CORPUS, config(cluster))


def test_the_command_fills_the_index_of_a_params_file(cluster, tmp_path):
    rows = [{"id": document.docid, "text": document.text} for document in CORPUS]
    corpus, params = tmp_path / "corpus.jsonl", tmp_path / "p.yaml"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    search = {"backend": "opensearch", "url": cluster.url, "index": "fruit"}
    data = {"source": "rounds", "corpus_path": str(corpus), "rounds_path": str(tmp_path)}
    params.write_text(json.dumps({"search": search, "data": data, "output_root": str(tmp_path)}))
    command = [sys.executable, "-m", "rlkit.library.opensearch", "--params", str(params)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "5 documents written, 5 in fruit.\n", done.stderr
    done = subprocess.run([*command, "--set", "search.k1=2"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "holds something else" in done.stderr
