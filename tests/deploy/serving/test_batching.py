"""Continuous batching: every answer is the one that the model gives to its prompt alone."""

from __future__ import annotations

import queue
import time

import pytest
import torch

from rlkit.deploy.serving.batching import Batcher, Failed, Job
from rlkit.deploy.serving.model import load_model
from rlkit.deploy.serving.settings import ServerSettings
from rlkit.deploy.serving.slots import PromptReader
from rlkit.training.prefix import read_prompts
from rlkit.training.sampling import sample_actions
from rlkit.training.text import decode

# of one token, of more than are read at once, and between
PROMPTS = [[3 + i % 250 for i in range(n)] for n in (1, 2, 7, 40, 300, 13)]
QUIET = {"log": lambda line: None}


class Told(queue.Queue):
    """What one job is told, until it ends."""

    def answer(self) -> tuple[list[int], str, str | Failed]:
        ids, text = [], ""
        while True:
            event = self.get(timeout=60)
            if isinstance(event, Failed):
                return ids, text, event
            ids.append(event.drawn.token)
            text += event.text
            if event.finish:
                return ids, text, event.finish


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tests.deploy.tiny import make_base

    folder = make_base(tmp_path_factory.mktemp("served") / "tiny", seed=3)
    return load_model(ServerSettings(model=str(folder), dtype="float32", device="cpu"), **QUIET)


@pytest.fixture
def batcher(served):
    made = []

    def make(**limits):
        batcher = Batcher(served, ServerSettings(model="x", **limits))
        batcher.start()
        made.append(batcher)
        return batcher

    yield make
    for batcher in made:
        batcher.stop()


def ask(batcher, prompt, tokens, **options):
    told = Told()
    job = Job(prompt, tokens, told.put, **options)
    batcher.submit(job)
    return job, told


def alone(served, prompt, tokens):
    """The package's own greedy decoding, another cache and another loop."""
    return sample_actions(served.model, [prompt], 1, tokens, end_ids=served.ends).rows()[0]


@pytest.mark.parametrize("parallel", [1, 3, 8])
def test_answers_of_a_ragged_batch_are_those_of_each_prompt_alone(served, batcher, parallel):
    jobs = [(p, 5 + 9 * i) for i, p in enumerate(PROMPTS)]  # they end one after the other
    batch = batcher(parallel=parallel)
    told = [ask(batch, *job)[1] for job in jobs]
    for (prompt, tokens), one in zip(jobs, told, strict=True):
        ids, text, finish = one.answer()
        assert ids == alone(served, prompt, tokens)
        assert text == decode(served.tokenizer, ids)
        assert finish == ("stop" if ids[-1] in served.ends else "length")


def test_a_seed_gives_the_same_draws_whatever_else_is_in_the_batch(batcher):
    batch, options = batcher(parallel=4), {"temperature": 1.0, "seed": 5}
    first = ask(batch, PROMPTS[2], 20, **options)[1].answer()
    others = [ask(batch, p, 20, temperature=1.0, seed=9) for p in PROMPTS[:3]]
    assert ask(batch, PROMPTS[2], 20, **options)[1].answer() == first
    assert others[2][1].answer() != first


def test_a_client_that_goes_away_frees_its_place(batcher):
    batch = batcher(parallel=1)
    job, told = ask(batch, PROMPTS[2], 4000, temperature=1.0)
    told.get(timeout=60)
    job.gone = True
    assert ask(batch, PROMPTS[1], 3)[1].answer()[2] in ("stop", "length")


def test_who_waits_or_is_answered_for_too_long_is_told_so(batcher):
    batch = batcher(parallel=1, queue_timeout=900.0, request_timeout=900.0)
    first = ask(batch, PROMPTS[2], 8000)[1]
    first.get(timeout=60)
    late = ask(batch, PROMPTS[1], 3, arrived=time.monotonic() - 1000)[1].answer()[2]
    assert late.status == 503 and "no place became free" in late.message
    for row in list(batch._writing):
        row.admitted -= 1000
    ended = first.answer()[2]
    assert ended in ("stop", "length") or ended.status == 504


def test_who_finds_no_place_waits_for_all_that_came_before(batcher):
    full = batcher(parallel=2, queue=7)
    full._mean = 10.0
    # of 9 inside 7 have no row yet: with one's own 8 answers, two at once, of 10 s each
    assert [full.wait_seconds(inside) for inside in (0, 2, 9, 90)] == [5, 5, 40, 60]


def test_a_failure_costs_the_jobs_of_the_batch_and_no_others(batcher, monkeypatch, caplog):
    batch = batcher(parallel=2)
    right, head = ask(batch, PROMPTS[2], 6)[1].answer(), batch._head

    def broken(hidden):
        monkeypatch.setattr(batch, "_head", head)
        raise RuntimeError("no memory, says /somewhere")

    monkeypatch.setattr(batch, "_head", broken)
    failed = ask(batch, PROMPTS[2], 6)[1].answer()[2]
    assert failed.status == 500 and "RuntimeError" in failed.message
    assert "somewhere" not in failed.message and "somewhere" in caplog.text
    assert ask(batch, PROMPTS[2], 6)[1].answer() == right


def test_stopping_fails_what_is_unfinished_and_takes_nothing_more(batcher):
    batch = batcher(parallel=1)
    told = [ask(batch, PROMPTS[2], 8000)[1] for _ in range(3)]
    told[0].get(timeout=60)
    batch.stop()
    assert [one.answer()[2].status for one in told[1:]] == [503, 503]
    assert ask(batch, PROMPTS[1], 1)[1].answer()[2].status == 503
    assert not batch.alive


def test_prompts_that_wait_are_read_in_one_pass_and_a_long_one_in_parts(served, batcher):
    passes = []
    decoder = served.model.get_decoder()
    seen = lambda module, args, given: passes.append(given["input_ids"].shape[1])  # noqa: E731
    handle = decoder.register_forward_pre_hook(seen, with_kwargs=True)
    try:
        readers = [PromptReader(served.model, p) for p in PROMPTS]  # of 1, 2, 7, 40, 300, 13
        with torch.no_grad():
            while any(reader.left for reader in readers):
                waiting = [reader for reader in readers if reader.left]
                assert PromptReader.read_together(waiting, 100) == passes[-1]
    finally:
        handle.remove()
    assert passes == [1 + 6 + 39, 100, 100, 99, 12]
    for reader, prompt in zip(readers[1:], PROMPTS[1:], strict=True):
        for layer, pair in read_prompts(served.model, [prompt]).layers.items():
            for mine, theirs in zip(reader.layers()[layer], pair, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
