"""A cluster on a real socket that knows the calls that opensearch.py makes, as OpenSearch's and
Elasticsearch's references describe them, and refuses every other one with status 400. Scores are
Lucene's (worked out here from the formula), kept in float32."""

from __future__ import annotations

import json
import math
import struct
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Cluster:
    def __init__(self):
        self.indices = {}  # name -> {"body": the body of its creation, "documents": {id: source}}
        self.requests = []  # (method, path, headers)
        self.failing = []  # statuses of the next answers
        self.busy = 0  # single searches that are turned down
        self.change = lambda response: response  # of one search
        self.token = None  # the Authorization that is wanted
        self.delay = 0

    def answer(self, method, path, query, headers, body):
        if self.failing:
            return self.failing.pop(0), {"error": {"reason": "not now"}}
        if self.token and headers.get("Authorization") != self.token:
            return 401, {"error": {"reason": "missing authentication credentials"}}
        index, _, call = path.strip("/").partition("/")
        if path == "/_bulk":
            return self.bulk(body, headers)
        if (method, call) == ("PUT", ""):
            return self.create(index, json.loads(body))
        if index not in self.indices:
            reason = f"no such index [{index}]"
            return 404, {"error": {"type": "index_not_found_exception", "reason": reason}}
        made = self.indices[index]
        calls = {
            ("HEAD", ""): lambda: None,
            ("GET", "_mapping"): lambda: {index: {"mappings": made["body"]["mappings"]}},
            ("PUT", "_mapping"): lambda: self.put_mapping(made, json.loads(body)),
            ("POST", "_refresh"): lambda: {"_shards": {"failed": 0}},
            ("POST", "_count"): lambda: {"count": len(made["documents"])},
            ("POST", "_msearch"): lambda: self.msearch(made, query, headers, body),
        }
        return 200, calls[method, call]()

    def create(self, index, body):
        assert index not in self.indices
        assert set(body) == {"settings", "mappings"}
        similarity = body["settings"]["index"]["similarity"]["ours"]
        assert similarity["type"] == "BM25" and set(similarity) == {"type", "k1", "b"}
        properties = body["mappings"]["properties"]
        assert properties["position"] == {"type": "integer"}
        words = {"type": "text", "analyzer": "whitespace", "similarity": "ours"}
        assert properties["words"] == words
        self.indices[index] = {"body": body, "documents": {}}
        return 200, {"acknowledged": True, "index": index}

    def put_mapping(self, made, body):
        assert set(body) == {"_meta"}
        made["body"]["mappings"]["_meta"] = body["_meta"]  # it replaces the old one
        return {"acknowledged": True}

    def bulk(self, body, headers):
        """Pairs of lines, an action and a source, each ended by a line break."""
        lines, items = ndjson(body, headers), []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            [(kind, where)] = action.items()
            assert kind == "index" and set(where) == {"_index", "_id"}
            assert set(source) == {"words", "position"}
            if len(where["_id"].encode()) > 512:
                error = {"type": "illegal_argument_exception", "reason": "id is too long"}
                items.append({kind: where | {"status": 400, "error": error}})
            else:
                self.indices[where["_index"]]["documents"][where["_id"]] = source
                items.append({kind: where | {"status": 201}})
        return 200, {"errors": any("error" in i["index"] for i in items), "items": items}

    def msearch(self, made, query, headers, body):
        """Pairs of lines, a header and a search."""
        assert query == {"search_type": ["dfs_query_then_fetch"]}
        lines = ndjson(body, headers)
        responses = []
        for header, search in zip(lines[::2], lines[1::2], strict=True):
            assert header == {}
            if self.busy:
                self.busy -= 1
                responses.append({"error": {"reason": "queue is full"}, "status": 429})
            else:
                responses.append(self.change(self.search(made, search)))
        return {"took": 1, "responses": responses}

    def search(self, made, search):
        assert search["_source"] is False and search["track_total_hits"] is False
        assert search["sort"] == [{"_score": {"order": "desc"}}, {"position": {"order": "asc"}}]
        assert search["track_scores"] is True
        match = search["query"]["match"]["words"]
        assert set(match) == {"query", "operator"} and match["operator"] == "or"
        hits = [
            {"_index": "i", "_id": docid, "_score": score, "sort": [score, place]}
            for docid, score, place in scored(made, match["query"].split())
        ]
        hits.sort(key=lambda hit: (-hit["_score"], hit["sort"][1]))
        shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
        found = {"max_score": None, "hits": hits[: search["size"]]}
        return {"took": 1, "timed_out": False, "_shards": shards, "hits": found, "status": 200}


def ndjson(body, headers):
    assert headers["Content-Type"] in ("application/json", "application/x-ndjson")
    text = body.decode()
    assert text.endswith("\n"), "the last line must be ended, too"
    return [json.loads(line) for line in text.split("\n")[:-1]]


def scored(made, query):
    similarity = made["body"]["settings"]["index"]["similarity"]["ours"]
    k1, b = similarity["k1"], similarity["b"]
    texts = {docid: source["words"].split() for docid, source in made["documents"].items()}
    average = sum(map(len, texts.values())) / len(texts)
    found = Counter(word for text in texts.values() for word in set(text))
    for docid, words in texts.items():
        counts, score = Counter(words), 0.0
        for word in query:
            n = found[word]
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            norm = k1 * (1 - b + b * len(words) / average)
            score += idf * counts[word] / (counts[word] + norm)
        if score:
            [score] = struct.unpack("f", struct.pack("f", score))
            yield docid, score, made["documents"][docid]["position"]


@contextmanager
def running():
    """(cluster, its address)"""
    cluster = Cluster()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self):
            time.sleep(cluster.delay)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            cluster.requests.append((self.command, url.path, dict(self.headers)))
            try:
                status, value = cluster.answer(
                    self.command, url.path, parse_qs(url.query), self.headers, body
                )
            except Exception as error:  # noqa: BLE001  a request that the references do not allow
                status, value = 400, {"error": {"reason": f"{type(error).__name__}: {error}"}}
            raw = b"" if self.command == "HEAD" else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_one

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield cluster, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
