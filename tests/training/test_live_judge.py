"""GRPO with a live judge, over real sockets: what it leaves unjudged is left out, and a run whose
judge goes away waits for it, or stops and goes on, and is bitwise the run that was never disturbed.

The judge is scripted: it labels by a document's title, and gives some no label at all. The search
finds something for every clue, so that a random model's actions bring documents back."""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from rlkit.config import RunConfig
from rlkit.errors import AgentError
from rlkit.library.bm25 import Hit
from rlkit.library.corpus import Corpus
from rlkit.run import Run
from rlkit.training.loop import train_run
from tests.agents.fault_server import Answer, FaultServer
from tests.training.test_kill import assert_same_run

DOCUMENT = re.compile(r'<document id="(d\d+)">\n(.*)\n')
LABELS = ("IMPORTANT", "LOCAL", "DISCARD", None, None)
STEPS = 3


class AnyBackend:
    """Every query finds documents: those that the query's checksum points at."""

    def __init__(self, corpus: Corpus, search_config: object) -> None:
        self.size = len(corpus)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        starts = [zlib.crc32(query.encode()) for query in queries]
        return [[Hit((start + i) % self.size, 1.0) for i in range(top_k)] for start in starts]


def label_of(title: str) -> str | None:
    return LABELS[zlib.crc32(title.encode()) % len(LABELS)]


class Judge:
    """Labels what it is shown. `on_request(n)`: called at the n-th request with documents; where
    it returns something, that is the answer."""

    def __init__(self, on_request=lambda n: None) -> None:
        self.on_request, self.asked = on_request, 0

    def __call__(self, body: dict, n: int) -> Answer:
        documents = DOCUMENT.findall(body["messages"][-1]["content"])
        if not documents:
            return Answer("hello")  # to the probe
        self.asked += 1
        instead = self.on_request(self.asked)
        labels = {name: label_of(title) for name, title in documents}
        text = json.dumps({name: label for name, label in labels.items() if label})
        return instead or Answer(f"Here you are:\n```json\n{text}\n```")


def config(root: Path, server: FaultServer, **checker: object) -> RunConfig:
    return RunConfig.from_sections(
        run_name="live",
        output_root=str(root),
        model={
            "base_model_path": "debug",
            "load_in_4bit": False,
            "dtype": "float32",
            "device": "cpu",
            "vllm_base_url": server.url,
        },
        lora={"rank": 4, "alpha": 8},
        grpo={"max_new_tokens": 8, "learning_rate": 0.05, "temperature": 1.0},
        data={"max_questions": 8, "min_clues_per_round": 1, "max_rounds": 2, "split": "random"},
        search={"backend": f"{__name__}:AnyBackend", "top_k": 2, "max_clues": 2},
        executor={"layout": "bare", "max_prompt_tokens": 256},
        checker={"kind": "llm", "batch_size": 2, "concurrency": 2, **checker},
        training={
            "num_epochs": 1,
            "steps_per_epoch": STEPS,
            "gradient_accumulation_steps": 2,
            "gradient_checkpointing": False,
        },
        evaluation={"epoch_states": 2},
        monitoring={"use_tensorboard": False},
    )


def rollouts(run: Run) -> pd.DataFrame:
    files = sorted(run.rollouts_folder.glob("step-*.parquet"))
    return pd.concat([pd.read_parquet(file) for file in files], keys=range(1, len(files) + 1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Run, list[int]]:
    """The run whose judge is always there, and how many requests it had had after each step."""
    torch.set_num_threads(1)  # as the tests, whose own fixture comes later
    judge, after = Judge(), []
    with FaultServer(judge) as server:
        run = train_run(
            config(tmp_path_factory.mktemp("whole"), server),
            progress=lambda metrics: after.append(judge.asked),
        )
    return run, after


def test_unjudged_documents_add_nothing_and_actions_without_any_verdict_are_left_out(whole):
    run, _ = whole
    values = run.config.reward
    rows = rollouts(run)
    for row in rows.itertuples():
        judged = [d for d in row.documents if d["verdict"] is not None]
        assert all(d["verdict"] == label_of(d["title"]) for d in row.documents)
        assert row.unjudged == len(row.documents) - len(judged)
        if not len(row.documents):
            assert row.reward == values.invalid
        elif not judged:
            assert np.isnan(row.reward) and row.advantage == 0
        else:
            worth = [
                getattr(values, f"{d['verdict'].lower()}_{'new' if d['new'] else 'seen'}")
                for d in judged
            ]
            assert row.reward == pytest.approx(sum(worth), abs=1e-6)
    some = rows["unjudged"] > 0
    assert rows["reward"].isna().any() and (some & rows["reward"].notna()).any()


def test_advantages_and_metrics_are_those_of_the_actions_that_were_judged(whole):
    run, _ = whole
    metrics = [row for row in run.read_metrics() if row["step"]]
    for line, (_, group) in zip(metrics, rollouts(run).groupby(level=0), strict=True):
        known = group["reward"].dropna()
        expected = (known - known.mean()) / (known.std(ddof=0) + 1e-8)
        if known.nunique() > 1:
            assert np.allclose(group["advantage"][known.index], expected)
        assert line["reward"] == pytest.approx(known.mean())
        assert line["unjudged_share"] == pytest.approx(group["reward"].isna().mean())
    assert sum(row["unjudged_share"] for row in metrics) > 0
    assert all(0 <= row["verdict_cache_hit_rate"] <= 1 for row in metrics)


def disturbed(root: Path, disturb) -> Judge:
    """A judge that is disturbed once, by the first request of the last step."""
    done = threading.Event()

    def on_request(n: int) -> Answer | None:
        path = root / "live" / "status.json"
        step = json.loads(path.read_text())["step"] if path.exists() else 0
        if step < STEPS - 1 or done.is_set():
            return None
        done.set()
        return disturb()

    return Judge(on_request)


def test_a_judge_that_goes_away_and_comes_back_is_waited_for_and_changes_nothing(
    whole, tmp_path, capsys
):
    def bounce() -> Answer:
        server.stop()
        threading.Timer(2.5, server.start).start()
        return Answer()

    with FaultServer(disturbed(tmp_path, lambda: bounce())) as server:
        run = train_run(config(tmp_path, server))
    said = capsys.readouterr().out
    assert re.search(r"does not answer .*; waiting up to 600 s", said)
    assert re.search(r"is back after \d+ s; going on", said)
    assert run.status()["state"] == "finished"
    assert_same_run(whole[0].folder, run.folder)


def test_without_patience_the_run_stops_with_a_message_and_goes_on_bitwise(whole, tmp_path):
    def stop() -> Answer:
        server.stop()
        return Answer()

    with FaultServer(disturbed(tmp_path, lambda: stop())) as server:
        impatient = config(tmp_path, server, patience=0, max_retries=0)
        with pytest.raises(AgentError, match="start it again, and give the same command again"):
            train_run(impatient)
    run = Run.at(tmp_path / "live")
    status = run.status()
    assert (status["state"], status["step"]) == ("failed", STEPS - 1)
    assert server.url in status["reason"] and "has not answered" in status["reason"]

    with FaultServer(judge := Judge()) as server:  # at another address
        again = train_run(config(tmp_path, server))
    assert again.status()["state"] == "finished"
    # verdicts that were received are not asked for again, those of the step that failed included
    assert judge.asked < whole[1][-1] / 2
    rates = [r.read_metrics()[-1]["verdict_cache_hit_rate"] for r in (whole[0], again)]
    assert rates[0] <= rates[1]  # the first request of the step may have been answered, or not
    assert_same_run(whole[0].folder, again.folder)
