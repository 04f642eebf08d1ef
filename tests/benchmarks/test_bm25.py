"""The BM25 benchmark: its generator, its percentiles, and a small run of the whole."""

import json
from itertools import islice
from types import SimpleNamespace

import pytest

from benchmarks import bm25


def test_a_library_is_the_same_every_time_and_the_beginning_of_a_larger_one(monkeypatch):
    monkeypatch.setattr(bm25, "BATCH", 100)
    small, large = (list(bm25.generated_texts(n, 7)) for n in (150, 250))
    assert len(small) == 150 and small == large[:150] and len(set(large)) == 250
    assert small != list(bm25.generated_texts(150, 8))


def test_words_and_lengths_are_as_stated():
    texts = list(islice(bm25.generated_texts(10_000, 7), 10_000))
    words = [word for text in texts for word in text.split()]
    assert len(words) / len(texts) == pytest.approx(60, rel=0.02)
    weights = (bm25.np.arange(500_000) + 31.0) ** -1.1
    shares = weights / weights.sum()
    for rank in (0, 30):
        assert words.count(f"w{rank}") / len(words) == pytest.approx(shares[rank], rel=0.1)


def test_percentiles_are_over_queries_of_each_ones_median(monkeypatch):
    clock = iter(range(10**6))
    fake = SimpleNamespace(
        perf_counter=lambda: next(clock) / 1e3, thread_time=lambda: next(clock) / 1e3
    )
    monkeypatch.setattr(bm25, "time", fake)
    sides = {"ours": lambda text: next(clock), "peer": lambda text: [next(clock) for _ in range(3)]}
    found = bm25.latencies(sides, ["a", "b"], 3)
    assert found["ours"]["cpu_p50_ms"] == pytest.approx(2)  # one tick of its own, one of the clock
    assert found["peer"]["cpu_p99_ms"] == pytest.approx(4)
    assert found["n"] == 2 and found["repeats"] == 3


@pytest.mark.slow
def test_a_small_run_compares_all_sides(tmp_path):
    small = "--documents 3000 --queries 20 --rank-documents 1000 --rank-queries 5 --repeats 1"
    out = tmp_path / "bm25.json"
    result = bm25.main([*small.split(), "--folder", str(tmp_path), "--output", str(out)])
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
    assert result["generated"]["documents"] == 3000
    assert result["query"]["n"] == 20 and result["rank_bm25"]["n"] == 5
    assert result["query"]["ours_to_bm25s"].keys() == {"p50", "cpu_p50", "p99", "cpu_p99"}
    assert list(tmp_path.iterdir()) == [out]  # the library is gone
