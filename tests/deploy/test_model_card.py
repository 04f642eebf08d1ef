"""The model card: lineage and evaluation as text, in which nothing becomes markup."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from rlkit.config import RunConfig
from rlkit.deploy.certificate import Certificate, GreedyText
from rlkit.deploy.model_card import as_text, model_card, run_evaluation, run_lineage
from rlkit.deploy.probe import Difference
from rlkit.files import write_json
from rlkit.run import Run

SPITEFUL = (
    "<script>alert(1)</script> [a](http://x.y) ![i](z) **b** _c_ `d` | e\n# f\n- g\n1. h "
    "www.evil.org https://evil.org a@b.cd <img src=x onerror=y> &lt; $x$ ~~k~~ --- \\ end"
)


def certificate(name: str = "tiny-grpo-step5", base: str = "Qwen/Qwen3-8B") -> Certificate:
    same = Difference(1e-6, 1e-7, 1.0, 1e-9, 40)
    return Certificate(
        name=name,
        dtype="bfloat16",
        base={"name": base, "config": "c" * 64, "weights": "w" * 64, "checked": True},
        adapters=({"name": "checkpoint-5", "folder": "f", "sha256": "a" * 64, "rank": 4,
                   "alpha": 8},),
        float32=same, allowed=1e-4, in_memory=same, reloaded=same, reloaded_from_float32=same,
        own_rounding=same,
        greedy=(GreedyText("q", "yes", "yes", 3, 3, "7", "1 2 3", "1 2 3"),),
        held_out=True,
        rounding={"all": {"kept": 0.99, "changed": 0.5, "norm_ratio": 1.0, "weights": 8},
                  "tensors": []},
        untied=False,
        environment={"created": "2026-11-30T00:00:00Z"},
    )  # fmt: skip


def kinds(text: str) -> set[str]:
    """What a Markdown parser finds in a text, besides paragraphs and words."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    inner = [child for token in tokens for child in token.children or []]
    return {t.type for t in [*tokens, *inner]} - {
        "paragraph_open", "paragraph_close", "inline", "text", "text_special"
    }  # fmt: skip


def test_what_is_spiteful_becomes_plain_words() -> None:
    assert {"html_inline", "link_open", "code_inline", "em_open"} <= kinds(f"a {SPITEFUL}")
    assert kinds(f"a {as_text(SPITEFUL)}") == set()
    shown = MarkdownIt("commonmark").parse(as_text(SPITEFUL))[1].children
    words = "".join(token.content for token in shown)
    assert words == " ".join(SPITEFUL.split())  # and exactly those


def test_words_that_github_links_by_itself_are_broken_up() -> None:
    for word in ("www.evil.org", "https://evil.org", "a@b.cd"):
        assert word not in as_text(f"see {word}")


def test_a_spiteful_name_stays_in_its_cell(tmp_path: Path) -> None:
    found = {"split": SPITEFUL, "which": "w",
             "rows": [{"policy": SPITEFUL, "metric": "m", "mean": "1", "interval": "0 to 2",
                       "n": "3"}]}  # fmt: skip
    card = model_card(certificate(SPITEFUL, SPITEFUL), {"run": SPITEFUL}, found)
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["base_model"] == SPITEFUL
    plain = model_card(certificate(), {"run": "r"}, found | {"split": "eval"})
    assert kinds(body) == kinds(plain.split("---\n", 2)[2])
    assert body.count("\n") == plain.split("---\n", 2)[2].count("\n")
    assert "<script" not in body and "<img" not in body


@pytest.fixture()
def run(tmp_path: Path) -> Run:
    return Run.open(RunConfig.from_sections(run_name="tiny", output_root=str(tmp_path)))


def summary(step: int) -> dict:
    row = {"policy": "tuned", "metric": "reward", "mean": 1.5, "low": 1.25, "high": None,
           "n_questions": 30}  # fmt: skip
    played = {"tuned": {"folder": f"lora_checkpoints/checkpoint-{step}", "step": step}}
    return {"schema": 1, "split": "eval", "summary": [row], "adapters": played}


def test_the_card_says_which_checkpoint_was_evaluated_with_n_and_interval(run: Run) -> None:
    write_json(run.evaluation_path, summary(5))
    card = model_card(certificate(), run_lineage(run, 5), run_evaluation(run, 5))
    assert "| tuned | reward | 1.500 | 1.250 to unknown | 30 |" in card
    assert "step 5, before it was merged" in card
    assert "| run | tiny |" in card and "| checkpoint | step 5 |" in card
    assert f"| adapter, sha256 | {'a' * 64} |" in card and "99.0% survived rounding" in card
    other = run_evaluation(run, 7)
    assert "evaluated step 5, not this checkpoint" in other["which"]


def test_an_evaluation_of_another_runs_step_5_is_not_this_ones(run: Run) -> None:
    """Which weights were evaluated counts: a step's number is that of any run."""
    own, theirs = (folder / "lora_checkpoints" / "checkpoint-5" for folder in
                   (run.folder, run.folder.with_name("other")))  # fmt: skip
    for folder, content in ((own, b"ours"), (theirs, b"theirs")):
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(content)

    def which(folder: str, content: bytes | None) -> str:
        played = {"folder": folder, "step": 5}
        if content is not None:
            played["sha256"] = hashlib.sha256(content).hexdigest()
        write_json(run.evaluation_path, summary(5) | {"adapters": {"tuned": played}})
        return run_evaluation(run, 5)["which"]

    ours, other = "lora_checkpoints/checkpoint-5", "../other/lora_checkpoints/checkpoint-5"
    assert "is among the policies" in which(ours, b"ours")
    assert "is among the policies" in which("../copied/checkpoint-5", b"ours")
    assert which(other, b"theirs") == f"It evaluated {other}, not this checkpoint."
    assert which(other, None) == f"It evaluated {other}, not this checkpoint."  # a file of before
    assert "evaluated step 5 with other weights, not this" in which(ours, b"of before")


def test_a_run_without_an_evaluation_or_with_a_damaged_one_has_a_card(run: Run) -> None:
    assert run_evaluation(run, 5) is None
    run.evaluation_path.write_text("{half")
    assert run_evaluation(run, 5) is None
    assert "holds no evaluation" in model_card(certificate(), run_lineage(run, 5), None)
