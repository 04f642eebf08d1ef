"""BM25 in an OpenSearch or Elasticsearch cluster, for libraries that outgrow a machine.

`fill_index(corpus, config.search)` writes the corpus's words, as our own tokenizer cuts them, into
the index `search.index`, under each document's id, with its position; so Chinese, stemming and
stop words are as everywhere else. The index notes what it was filled with, and a search of another
corpus, or with other settings, is refused.

Lucene keeps scores in float32 and rounds the lengths of documents of more than 40 words, so scores
differ from bm25.py's in the third digit, and near ties may change places. Hits come by falling
score, and equal ones in the order of the corpus, also where `top_k` cuts them.

    python -m rlkit.library.opensearch --params F       fills the index of a params file
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlkit.errors import AgentError, ConfigError, DataError, RlkitError, ServerAwayError
from rlkit.library.bm25 import Hit
from rlkit.library.corpus import Corpus
from rlkit.library.tokenize import Tokenizer

USER, PASSWORD, API_KEY = "OPENSEARCH_USERNAME", "OPENSEARCH_PASSWORD", "OPENSEARCH_API_KEY"
TOGETHER = 100  # searches of one request
RETRIES = 3
BUSY = (429, 502, 503, 504)
WAIT = 0.5  # seconds before the first retry of single searches, then twice as long
BULK = {"chunk_size": 1000, "max_chunk_bytes": 10 * 2**20, "max_retries": 5, "initial_backoff": 1}


class OpenSearchBackend:
    """See SearchBackend. Raises DataError where the index is missing or holds something else."""

    def __init__(self, corpus: Corpus, search_config: Any) -> None:
        self.corpus, self.config = corpus, search_config
        self.tokenizer = _tokenizer(search_config)
        self._client = connect(search_config)
        with _one_sentence(search_config):
            about = _about(self._client, search_config.index)
        if about != _filled_with(corpus, search_config):
            said = (
                "was not filled to its end" if about is None else "was filled with something else"
            )
            raise DataError(
                f"the index {search_config.index!r} at {search_config.url} {said}, not with this "
                "corpus, k1, b, stem and stop_words; run `python -m rlkit.library.opensearch`, "
                "or name another search.index."
            )

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See SearchBackend. Raises AgentError where the cluster does not answer as it must."""
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; at least 1 document per clue must be asked for.")
        found: list[list[Hit]] = [[] for _ in queries]
        words = [(place, self.tokenizer(query)) for place, query in enumerate(queries)]
        words = [pair for pair in words if pair[1]]
        for first in range(0, len(words), TOGETHER):
            some = words[first : first + TOGETHER]
            bodies = [_body(cut, top_k) for _, cut in some]
            with _one_sentence(self.config):
                answers = self._ask(bodies)
            for (place, _), answer in zip(some, answers, strict=True):
                found[place] = self._hits(answer)[:top_k]
        return found

    def _ask(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers in order; searches that the cluster was too busy for are sent again."""
        answers: list[Any] = [None] * len(bodies)
        missing = list(range(len(bodies)))
        for attempt in range(RETRIES + 1):
            if attempt:
                time.sleep(WAIT * 2 ** (attempt - 1))
            lines = [line for place in missing for line in ({}, bodies[place])]
            answer = self._client.msearch(
                body=lines, index=self.config.index, search_type="dfs_query_then_fetch"
            )
            responses = _part(answer, "responses", list)
            if len(responses) != len(missing):
                raise self._strange(f"{len(responses)} answers to {len(missing)} searches")
            for place, response in zip(missing, responses, strict=True):
                answers[place] = response
            missing = [
                p for p in missing if isinstance(answers[p], dict) and _status(answers[p]) in BUSY
            ]
            if not missing:
                break
        return answers

    def _hits(self, answer: Any) -> list[Hit]:
        if not isinstance(answer, dict) or "error" in answer:
            raise self._strange(_reason(answer))
        if answer.get("timed_out") or _part(answer, "_shards", dict).get("failed"):
            raise self._strange("an answer from a part of its shards only")
        hits = [self._hit(hit) for hit in _part(_part(answer, "hits", dict), "hits", list)]
        return sorted((hit for hit in hits if hit.score > 0), key=lambda h: (-h.score, h.position))

    def _hit(self, hit: Any) -> Hit:
        docid, score = _part(hit, "_id", str), _part(hit, "_score", (int, float))
        if docid not in self.corpus:
            raise DataError(
                f"the index {self.config.index!r} at {self.config.url} found the document "
                f"{docid[:80]!r}, which is not in the corpus; fill the index anew."
            )
        return Hit(self.corpus.position(docid), round(float(score), 9))

    def _strange(self, what: str) -> AgentError:
        return AgentError(
            f"the search cluster at {self.config.url} answered with {what}; look into its log."
        )


def fill_index(corpus: Corpus, search_config: Any) -> int:
    """Write the corpus into the index that `search_config` names, through the bulk API; returns
    the number of documents written, 0 where all of them are there. One that was not finished is
    gone on with.

    Raises DataError where the index holds something else: it is never overwritten.
    """
    from opensearchpy import helpers

    client, index = connect(search_config), search_config.index
    wanted = _filled_with(corpus, search_config)
    with _one_sentence(search_config):
        if not client.indices.exists(index=index):
            client.indices.create(index=index, body=_settings(search_config, wanted))
        elif _about(client, index) == wanted:
            return 0
        elif _about(client, index, "filling") != wanted:
            raise DataError(
                f"the index {index!r} at {search_config.url} is there and holds something else; "
                "name another search.index, or delete it."
            )
        done, _ = helpers.bulk(
            client, _actions(corpus, search_config), stats_only=True, raise_on_error=True, **BULK
        )
        client.indices.refresh(index=index)
        count = client.count(index=index)["count"]
        if count != len(corpus):
            raise DataError(
                f"the index {index!r} at {search_config.url} holds {count} documents and the "
                f"corpus {len(corpus)}; delete the index and fill it anew."
            )
        client.indices.put_mapping(index=index, body={"_meta": {"filled": wanted}})
    return done


def connect(search_config: Any) -> Any:
    """A client of the cluster, with a user and password or an API key of the environment's."""
    try:
        from opensearchpy import OpenSearch
    except ImportError:
        raise ConfigError(
            "search.backend opensearch needs the package opensearch-py; install it with: pip "
            "install -c constraints.txt -e '.[opensearch]'"
        ) from None
    logging.getLogger("opensearch").addHandler(logging.NullHandler())  # it logs every retry
    user, key = os.environ.get(USER), os.environ.get(API_KEY)
    return OpenSearch(
        hosts=[search_config.url],
        http_auth=(user, os.environ.get(PASSWORD, "")) if user else None,
        headers={"Authorization": f"ApiKey {key}"} if key and not user else None,
        timeout=search_config.timeout,
        max_retries=RETRIES,
        retry_on_timeout=True,
        retry_on_status=BUSY,
    )


def _tokenizer(search_config: Any) -> Tokenizer:
    return Tokenizer(stem=search_config.stem, stop_words=search_config.stop_words)


def _filled_with(corpus: Corpus, search_config: Any) -> dict[str, Any]:
    names = ("k1", "b", "stem", "stop_words")
    return {
        "schema": 1,  # raise it when Tokenizer or _settings change
        "corpus": corpus.fingerprint,
        "documents": len(corpus),
        **{name: getattr(search_config, name) for name in names},
    }


def _settings(search_config: Any, filling: dict[str, Any]) -> dict[str, Any]:
    bm25 = {"type": "BM25", "k1": search_config.k1, "b": search_config.b}
    words = {"type": "text", "analyzer": "whitespace", "similarity": "ours"}
    return {
        "settings": {"index": {"similarity": {"ours": bm25}}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {"filling": filling},
            "properties": {"words": words, "position": {"type": "integer"}},
        },
    }


def _actions(corpus: Corpus, search_config: Any) -> Iterator[dict[str, Any]]:
    tokenizer = _tokenizer(search_config)
    for position, document in enumerate(corpus):
        words = " ".join(tokenizer(f"{document.title}\n{document.text}"))
        source = {"words": words, "position": position}
        yield {"_index": search_config.index, "_id": document.docid, "_source": source}


def _body(words: list[str], top_k: int) -> dict[str, Any]:
    return {
        "query": {"match": {"words": {"query": " ".join(words), "operator": "or"}}},
        "sort": [{"_score": {"order": "desc"}}, {"position": {"order": "asc"}}],
        "size": top_k,
        "track_scores": True,
        "track_total_hits": False,
        "_source": False,
    }


def _about(client: Any, index: str, key: str = "filled") -> dict[str, Any] | None:
    """What the index says of itself; raises opensearchpy's NotFoundError where there is none."""
    mappings = list(client.indices.get_mapping(index=index).values())
    meta = mappings[0].get("mappings", {}).get("_meta", {}) if len(mappings) == 1 else {}
    return meta.get(key)


def _part(answer: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise AgentError(f"the search cluster's answer has no {name!r}; is it OpenSearch?")
    return value


def _status(answer: dict[str, Any]) -> Any:
    return answer.get("status", 200)


def _reason(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    reason = error.get("reason") if isinstance(error, dict) else error
    return f"an error ({str(reason)[:200]})"


@contextmanager
def _one_sentence(search_config: Any) -> Iterator[None]:
    """What the client raises, as a sentence that says what to do."""
    import opensearchpy
    from opensearchpy.helpers.errors import BulkIndexError

    where = search_config.url
    try:
        yield
    except BulkIndexError as error:
        first = next(iter(error.errors[0].values())) if error.errors else {}
        raise AgentError(
            f"the search cluster at {where} refused {len(error.errors)} documents, first "
            f"{str(first.get('_id'))[:80]!r}: {_reason(first)}; mend them or the cluster."
        ) from None
    except (opensearchpy.AuthenticationException, opensearchpy.AuthorizationException):
        raise AgentError(
            f"the search cluster at {where} does not let this user in; set {USER} and {PASSWORD}, "
            f"or {API_KEY}, in the environment."
        ) from None
    except opensearchpy.NotFoundError:
        raise DataError(
            f"the cluster at {where} has no index {search_config.index!r}; fill it with "
            "`python -m rlkit.library.opensearch`, or name another search.index."
        ) from None
    except opensearchpy.ConnectionError:
        raise ServerAwayError(
            f"no search cluster answers at {where} within {search_config.timeout:g} s, tried "
            f"{RETRIES + 1} times; start it, or set search.url."
        ) from None
    except opensearchpy.TransportError as error:
        raise AgentError(
            f"the search cluster at {where} answered with status {error.status_code} and "
            f"{_reason(error.info)}; look into its log."
        ) from None
    except opensearchpy.OpenSearchException:
        raise AgentError(
            f"what answers at {where} is no OpenSearch or Elasticsearch; check search.url."
        ) from None


def main(arguments: list[str] | None = None) -> None:
    from rlkit.config import RunConfig
    from rlkit.library.readers import read_corpus

    parser = argparse.ArgumentParser(description="Fills search.index with data.corpus_path.")
    parser.add_argument("--params", required=True, help="params file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="S.K=V", dest="overrides")
    options = parser.parse_args(arguments)
    try:
        config = RunConfig.load(options.params, overrides=options.overrides)
        if config.data.corpus_path is None:
            raise ConfigError("data.corpus_path is not set; give the documents to be searched.")
        corpus = read_corpus(config.data.corpus_path, f"{config.output_root}/.index")
        written = fill_index(corpus, config.search)
    except RlkitError as error:
        parser.exit(1, f"{error}\n")
    print(f"{written} documents written, {len(corpus)} in {config.search.index}.")


if __name__ == "__main__":
    main()
