"""BM25 over a large library: this package beside bm25s used directly, and beside rank-bm25.

    python benchmarks/bm25.py                        a million documents, 1000 queries
    python benchmarks/bm25.py --documents 100000     another size

Documents are generated: words with Zipf-Mandelbrot frequencies, p(r) ~ (r + 30)^-1.1 over 500,000
words, lengths gamma-distributed (shape 4, mean 60 words). A query has 2 to 6 words of a document.
Each build runs in a process of its own. Queries run in one process, one at a time, each by every
side in turn. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # so that it runs from anywhere, as a script
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.machine import machine  # noqa: E402
from benchmarks.measure import memory_mib, run_child  # noqa: E402
from benchmarks.publish import parse_to_keep, publish  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "bm25.json"
VOCABULARY, SHIFT, EXPONENT = 500_000, 30, 1.1
SHAPE, MEAN_WORDS, BATCH = 4, 60, 10_000
TOP_K = 10
K1, B = 0.9, 0.4


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    folder = Path(tempfile.mkdtemp(prefix="rlkit-bm25-", dir=options.folder))
    try:
        result = {**header(options), **measured(folder, options)}
    finally:
        shutil.rmtree(folder)
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--queries", type=int, default=1000, metavar="N")
    parser.add_argument("--rank-documents", type=int, default=100_000, metavar="N",
                        help="documents of the comparison with rank-bm25; 0: none")  # fmt: skip
    parser.add_argument("--rank-queries", type=int, default=100, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, help="runs of a query; the median counts")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where the library is made; default: temporary")
    return parse_to_keep(parser, arguments, RESULT, ["folder"])


def header(options: argparse.Namespace) -> dict[str, Any]:
    names = ("bm25s", "rank-bm25", "numpy", *(["numba"] if util.find_spec("numba") else []))
    return {
        "benchmark": "bm25",
        "command": f"python benchmarks/bm25.py --documents {options.documents} "
        f"--queries {options.queries} --seed {options.seed}",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in names},
    }


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    def child(what: str, documents: int, **more: Any) -> dict[str, Any]:
        print(f"{what}, {documents} documents", file=sys.stderr, flush=True)
        job = {"what": what, "folder": str(folder / str(documents)), "documents": documents}
        job |= {"seed": options.seed, "queries": options.queries, "repeats": options.repeats}
        return run_child("benchmarks.bm25", job | more, threads=1)

    size = options.documents
    result: dict[str, Any] = {"generated": child("generate", size)}
    result["build"] = {"ours": child("build ours", size), "bm25s": child("build bm25s", size)}
    result["open"] = child("open ours", size)
    result["query"] = child("query", size)
    if options.rank_documents:
        size, few = options.rank_documents, options.rank_queries
        for what in ("generate", "build ours"):
            child(what, size)
        result["rank_bm25"] = child("query rank-bm25", size, queries=few)
    return result


# ---- what the children do


def generate(job: dict[str, Any]) -> dict[str, Any]:
    """Write corpus.jsonl."""
    folder, words = Path(job["folder"]), 0
    folder.mkdir()
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for number, text in enumerate(generated_texts(job["documents"], job["seed"])):
            words += text.count(" ") + 1
            file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")
    return {
        "documents": job["documents"],
        "words": words,
        "mib": (folder / "corpus.jsonl").stat().st_size / 2**20,
    }


def generated_texts(documents: int, seed: int) -> Iterator[str]:
    """The texts; a smaller library is the beginning of a larger one in whole batches."""
    weights = (np.arange(VOCABULARY) + 1.0 + SHIFT) ** -EXPONENT
    edges = np.cumsum(weights / weights.sum())
    names = np.array([f"w{rank}" for rank in range(VOCABULARY)], dtype=object)
    for first in range(0, documents, BATCH):
        rng = np.random.default_rng((seed, first))
        lengths = np.maximum(1, rng.gamma(SHAPE, MEAN_WORDS / SHAPE, BATCH).astype(int))
        ranks = np.searchsorted(edges, rng.random(lengths.sum()))
        words = names[np.minimum(ranks, VOCABULARY - 1)]
        ends = np.cumsum(lengths)
        for start, end in list(zip(ends - lengths, ends, strict=True))[: documents - first]:
            yield " ".join(words[start:end])


def generated_queries(corpus: Any, count: int, seed: int) -> list[str]:
    """Queries of 2 to 6 words out of one document each."""
    rng = np.random.default_rng((seed, 1))
    found = []
    for position in rng.integers(0, len(corpus), count):
        words = sorted(set(corpus[position].text.split()))
        found.append(" ".join(rng.permutation(words)[: rng.integers(2, 7)]))
    return found


def build_ours(job: dict[str, Any]) -> dict[str, Any]:
    """Reading the library onto the disk, and its index; nothing is there before."""
    before = memory_mib()
    corpus, reading = timed(lambda: our_corpus(job))
    read = memory_mib("VmHWM")
    _, building = timed(lambda: our_backend(corpus, job))
    kept = Path(job["folder"]) / "kept"
    return {
        "read_s": reading,
        "index_s": building,
        "before_mib": before,
        "read_peak_mib": read,
        "peak_mib": memory_mib("VmHWM"),
        "disk_mib": sum(f.stat().st_size for f in kept.rglob("*") if f.is_file()) / 2**20,
    }


def open_ours(job: dict[str, Any]) -> dict[str, Any]:
    """What was built, opened, and one query."""
    before = memory_mib()
    (corpus, backend), seconds = timed(lambda: opened(job))
    backend.search(generated_queries(corpus, 1, job["seed"]), TOP_K)
    return {"seconds": seconds, "before_mib": before, "peak_mib": memory_mib("VmHWM")}


def build_bm25s(job: dict[str, Any]) -> dict[str, Any]:
    """bm25s as its README uses it: all texts in a list, its own tokenizer, its own defaults
    (float32) but for k1, b and stop words; saved at the end."""
    import bm25s

    before = memory_mib()
    texts, reading = timed(lambda: read_texts(job))
    index, building = timed(lambda: bm25s_index(texts, bm25s))
    _, saving = timed(lambda: index.save(peer_folder(job), show_progress=False))
    return {
        "read_s": reading,
        "index_s": building + saving,
        "before_mib": before,
        "peak_mib": memory_mib("VmHWM"),
    }


def query(job: dict[str, Any]) -> dict[str, Any]:
    """Ours, mapped, and bm25s, in memory, one query at a time; bm25s gets its words ready-made."""
    import bm25s

    corpus, backend = opened(job)
    queries = generated_queries(corpus, job["queries"], job["seed"])
    words = {query: query.split() for query in queries}

    def directly(index: Any) -> Callable[[str], Any]:
        return lambda query: index.retrieve([words[query]], k=TOP_K, show_progress=False)

    peer = bm25s.BM25.load(peer_folder(job), show_progress=False)
    sides = {"ours": lambda query: backend.search([query], TOP_K), "bm25s": directly(peer)}
    if util.find_spec("numba"):
        fast = bm25s.BM25.load(peer_folder(job), backend="numba", show_progress=False)
        sides["bm25s_numba"] = directly(fast)
    for text in queries[:50]:
        agree(sides["ours"](text)[0], sides["bm25s"](text).scores[0])
    return latencies(sides, queries, job["repeats"])


def query_rank_bm25(job: dict[str, Any]) -> dict[str, Any]:
    """Ours and rank-bm25 (get_top_n over all positions), which gets its words ready-made."""
    from rank_bm25 import BM25Okapi

    corpus, backend = opened(job)
    queries = generated_queries(corpus, job["queries"], job["seed"])
    peer = BM25Okapi([text.split() for text in read_texts(job)], k1=K1, b=B)
    everything = range(len(corpus))
    sides = {
        "ours": lambda query: backend.search([query], TOP_K),
        "rank_bm25": lambda query: peer.get_top_n(query.split(), everything, n=TOP_K),
    }
    return latencies(sides, queries, job["repeats"])


def latencies(
    sides: dict[str, Callable[[str], Any]], queries: list[str], repeats: int
) -> dict[str, Any]:
    """p50 and p99 over the queries, in ms, of each side's median over the repeats: on the clock,
    and of the processor, which agree on one thread unless something else had the processor."""
    for call in sides.values():
        for text in queries[:20]:  # warm: pages, compilers
            call(text)
    taken: dict[str, list[np.ndarray]] = {name: [] for name in sides}
    for text in queries:
        tries: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, call in sides.items():
                clock, processor = time.perf_counter(), time.thread_time()
                call(text)
                processor = time.thread_time() - processor
                tries[name].append((time.perf_counter() - clock, processor))
        for name, seconds in tries.items():
            taken[name].append(np.median(seconds, axis=0) * 1e3)
    found: dict[str, Any] = {"n": len(queries), "repeats": repeats, "top_k": TOP_K}
    for name, values in taken.items():
        found[name] = {
            f"{kind}p{p}_ms": float(value)
            for p in (50, 99)
            for kind, value in zip(("", "cpu_"), np.percentile(values, p, axis=0), strict=True)
        }
    for name in list(sides)[1:]:
        ours, theirs = found["ours"], found[name]
        found[f"ours_to_{name}"] = {key[:-3]: ours[key] / theirs[key] for key in ours}
    return found


def our_corpus(job: dict[str, Any]) -> Any:
    from rlkit.library import readers

    readers.LARGE = 0  # also small libraries are kept on disk
    return readers.read_corpus(Path(job["folder"]), Path(job["folder"]) / "kept")


def our_backend(corpus: Any, job: dict[str, Any]) -> Any:
    from rlkit.library.bm25 import BM25sBackend

    return BM25sBackend(corpus, K1, B, cache_folder=Path(job["folder"]) / "kept")


def opened(job: dict[str, Any]) -> tuple[Any, Any]:
    corpus = our_corpus(job)
    return corpus, our_backend(corpus, job)


def peer_folder(job: dict[str, Any]) -> Path:
    return Path(job["folder"]) / "bm25s"


def read_texts(job: dict[str, Any]) -> list[str]:
    with open(Path(job["folder"]) / "corpus.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def bm25s_index(texts: list[str], bm25s: Any) -> Any:
    tokens = bm25s.tokenize(texts, stopwords=None, show_progress=False)
    index = bm25s.BM25(k1=K1, b=B)
    index.index(tokens, show_progress=False)
    return index


def agree(ours: Any, theirs: Any) -> None:
    """The same scores, as far as float32 goes."""
    scores = [hit.score for hit in ours]
    np.testing.assert_allclose(scores, theirs[: len(scores)], rtol=1e-4)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


CHILDREN = {
    "generate": generate,
    "build ours": build_ours,
    "open ours": open_ours,
    "build bm25s": build_bm25s,
    "query": query,
    "query rank-bm25": query_rank_bm25,
}


def as_text(result: dict[str, Any]) -> str:
    made, ours, peer = result["generated"], result["build"]["ours"], result["build"]["bm25s"]
    lines = [
        f"{made['documents']} documents, {made['words']} words, {made['mib']:.0f} MiB",
        f"{'':14}{'read s':>9}{'index s':>9}{'peak MiB':>10}",
        *(
            f"{name:14}{side['read_s']:9.1f}{side['index_s']:9.1f}{side['peak_mib']:10.0f}"
            for name, side in (("ours", ours), ("bm25s", peer))
        ),
        f"ours, opened again: {result['open']['seconds']:.1f} s, "
        f"{result['open']['peak_mib']:.0f} MiB; on disk {ours['disk_mib']:.0f} MiB",
    ]
    for part in ("query", "rank_bm25"):
        for name, values in result.get(part, {}).items():
            if isinstance(values, dict):
                shown = "  ".join(f"{p} {value:.3f}" for p, value in values.items())
                lines.append(f"{part}, {name}: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        asked = json.loads(sys.argv[1])
        answer = CHILDREN[asked["what"]](asked)
        print("\n" + json.dumps(answer), flush=True)
    else:
        main()
