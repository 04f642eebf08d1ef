"""Browsing a run's stored actions: as a table, as HTML with hostile texts, and with widgets."""

from __future__ import annotations

import re

import nbclient
import nbformat
import numpy as np
import pyarrow.parquet
import pytest

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.practice.task import build_task
from rlkit.results import actions as stored_actions
from rlkit.results import browse as browsing
from rlkit.results.browse import Key, browse
from rlkit.results.browse_widgets import widget_view
from rlkit.results.state_text import recorded_state
from rlkit.run import Run, load_run
from tests.results.conftest import BROKEN_CELL, SCRIPT
from tests.results.stored_run import QUESTIONS, make_stored_run

STEPS = [
    {"q1": ["gold", "locals", "nobody", ""]},
    {"q12": ["gold", "chaff", "gold", "gold"]},
    {"q1": ["locals", "locals", "chaff", "known"], "q12": ["gold", "gold", "gold", "gold"]},
]
FIRST, SECOND = Key(1, "q1/run_001/1", 0), Key(2, "q12/run_001/1", 0)
THIRD, FOURTH = Key(3, "q1/run_001/1", 1), Key(3, "q12/run_001/1", 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_stored_run(tmp_path_factory.mktemp("outputs"), STEPS)


def words(html: str) -> str:
    """The text of a page, tags gone, blanks collapsed."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# ---- which groups


def test_it_opens_at_the_first_step(run):
    assert browse(run).keys == [FIRST]
    assert browse("stored", output_root=run.folder.parent).shown == FIRST
    assert browse(run.folder, step=3).keys == [THIRD, FOURTH]


def test_a_question_is_found_by_its_id_or_by_a_part_of_its_text(run):
    assert browse(run, question="q1").keys == [FIRST, THIRD]  # not q12
    assert browse(run, question="Q12").keys == [SECOND, FOURTH]
    assert browse(run, question="who BUILT").keys == [FIRST, THIRD]
    assert browse(run, question="灯塔", step=2).keys == [SECOND]


def test_rewards_select_the_groups_that_have_one_between_the_bounds(run):
    assert browse(run, reward=(2, None)).keys == [FIRST, SECOND, FOURTH]
    assert browse(run, reward=(None, -1)).keys == [FIRST]
    assert browse(run, reward=(0.1, 0.1)).keys == [THIRD]
    assert browse(run, reward=(None, None)).keys == [FIRST, SECOND, THIRD, FOURTH]


def test_two_steps_of_a_question_are_compared(run):
    browser = browse(run, step=1, compare=3)
    assert (browser.shown, browser.beside) == (FIRST, THIRD)
    assert words(browser.page()).count("Who built it?") >= 2
    assert browse(run, question="q12", compare=2).shown == FOURTH
    with pytest.raises(RunError, match=r"not sampled at step 2; other steps that have it: 3\."):
        browse(run, step=1, compare=2)


def test_what_is_not_there_is_one_sentence(run, tmp_path):
    with pytest.raises(RunError, match="no actions of step 7; it has 3 steps, 1 to 3"):
        browse(run, step=7)
    with pytest.raises(RunError, match="no group fits step None, question 'Atlantis'"):
        browse(run, question="Atlantis")
    empty = Run.open(RunConfig.from_sections(output_root=str(tmp_path)))
    with pytest.raises(RunError, match="holds no actions yet; train first"):
        browse(empty)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step": "12"}, "step is '12'; give the number of a step, such as step=12."),
        ({"step": True}, "step is True; give the number of a step, such as step=12."),
        ({"step": 1.5}, "step is 1.5; give the number of a step, such as step=12."),
        ({"compare": "3"}, "compare is '3'; give the number of a step, such as compare=12."),
        (
            {"question": 3},
            "question is 3; give a question's id, or a part of its id or text, in quotes.",
        ),
        (
            {"reward": (5, 1)},
            "reward is (5, 1), whose lowest is above its highest; give (1, 5).",
        ),
        *(
            (
                {"reward": reward},
                f"reward is {reward!r}; give two numbers, (lowest, highest), either of them None: "
                "reward=(2.5, None) is 2.5 or more.",
            )
            for reward in (2.5, "25", (1,), (1, 2, 3), (float("nan"), 1), ("1", None), (True, 2))
        ),
    ],
)
def test_a_value_of_another_kind_is_one_sentence(run, given, said):
    with pytest.raises(ConfigError) as told:
        browse(run, **given)
    assert str(told.value) == said


def test_numbers_of_numpy_and_lists_of_bounds_are_as_good(run):
    assert browse(run, step=np.int64(3)).keys == [THIRD, FOURTH]
    assert browse(run, reward=[np.float64(2), None]).keys == [FIRST, SECOND, FOURTH]


# ---- only what is shown is read


def test_opening_a_run_reads_one_step_and_no_token(tmp_path, monkeypatch):
    run = make_stored_run(tmp_path, [STEPS[0]] * 12)
    read = []

    class Watched(pyarrow.parquet.ParquetFile):
        def read(self, columns=None, **options):
            read.append(columns)
            return super().read(columns=columns, **options)

    monkeypatch.setattr(stored_actions.pq, "ParquetFile", Watched)
    browse(run, step=5).page()
    assert len(read) == 2  # once for the list of groups, once for the one shown
    assert not {"token_ids", "sampled_logp", "policy_logp"} & {c for cs in read for c in cs}


def test_a_damaged_step_harms_itself_alone(tmp_path):
    run = make_stored_run(tmp_path, STEPS)
    (run.rollouts_folder / "step-2.parquet").write_bytes(b"half a fi")
    assert browse(run, step=3).keys == [THIRD, FOURTH]
    with pytest.raises(DataError, match=r"step-2\.parquet cannot be read .* restore it"):
        browse(run, step=2)
    whole = (run.rollouts_folder / "step-3.parquet").read_bytes()
    middle = len(whole) // 2  # its end, and so its list of columns, is whole
    (run.rollouts_folder / "step-3.parquet").write_bytes(bytes(middle) + whole[middle:])
    with pytest.raises(DataError, match=r"step-3\.parquet cannot be read .* restore it"):
        browse(run, step=3)


# ---- what is shown


def test_the_table_has_clues_verdicts_rewards_and_advantages(run):
    table = browse(run).table()
    assert table["reward"].tolist()[:2] == [2.5, 0.9]
    assert table["reward"].isna().tolist() == [False, False, True, False]
    assert table.loc[0, "documents"] == "Title a (IMPORTANT)"
    assert table.loc[2, "documents"] == "Title g (unjudged); Title h (unjudged)"
    assert browse(run, step=3).table().loc[3, "documents"] == "Title c (LOCAL, seen)"
    assert table.loc[3, "clues"] == "" and table["advantage"].sum() == pytest.approx(0)


def test_the_page_explains_each_reward(run):
    page = words(browse(run).page())
    assert "action 0 · reward 2.5 · advantage" in page and "1 important_new × 2.5" in page
    assert "3 local_new × 0.3" in page and "invalid: no clue, or nothing found" in page
    assert "reward – · advantage 0 nothing judged; 2 unjudged" in page
    assert "Gold documents still missing: 2 of 2: a, b" in page
    assert "LOCAL Title b b, by clue 1" in page


def test_with_credit_clue_the_action_has_its_own_advantage_and_each_clue_its_worth(tmp_path):
    run = make_stored_run(tmp_path, [{"q1": ["gold", "locals", "nobody", ""]}], credit="clue")
    rows = run.read_rollouts(1).drop(columns="step")
    rows["advantage"] = 9.0  # as a first token's, which is its clue's
    rows["clues"] = [["one", "two"], ["one"], ["one"], []]
    rows["clue_values"] = [[2.5, 0.75], [0.9], [0.0], []]
    run.write_rollouts(1, rows)
    browser = browse(run)
    # rewards 2.5, .9, none, -2.1: mean 1.3 / 3, deviations 6.2, 1.4, -7.6 thirds, their squares
    # 38.44 + 1.96 + 57.76 = 98.16, σ = √(98.16 / 3) / 3 = 5.72014 thirds
    expected = [6.2 / 5.720140, 1.4 / 5.720140, 0.0, -7.6 / 5.720140]
    assert browser.table()["advantage"].tolist() == pytest.approx(expected, abs=1e-5)
    page = words(browser.page())
    assert "advantage 1.08389" in page and "advantage 9" not in page
    assert "one credited 2.5 two credited 0.75" in page and "credited 0.9" in page
    assert page.count("credited") == 3  # an action without a reward credits nothing


def test_hostile_texts_are_text(tmp_path):
    run = make_stored_run(tmp_path, STEPS[:1])
    rows = run.read_rollouts(1).drop(columns="step")
    for documents in rows["documents"]:
        for document in documents:
            document["title"] = f"{SCRIPT}{BROKEN_CELL}"
    rows["text"] = f"</div>{SCRIPT}\x1b[2J"
    rows["clues"] = [[BROKEN_CELL]] * len(rows)
    run.write_rollouts(1, rows)
    browser = browse(run)
    page = browser.page()
    assert "<script" not in page and "<img" not in page
    assert page.count("&lt;script&gt;alert(1)") > 8 and "&lt;/td&gt;&lt;img" in page
    assert page.count("<div") == page.count("</div>")
    assert "\x1b" not in repr(browser)
    assert repr(browser).startswith("stored: groups selected: 1\n\nstep 1 · q1/run_001/1 · visit 0")


def test_the_prompt_is_what_the_task_gives(run):
    state = browse(run).texts.of(FIRST.state_id)
    assert [m["role"] for m in state.messages] == ["system", "user"]
    assert "Who built it?" in state.messages[1]["content"]
    assert state.question == QUESTIONS["q1"]


def test_a_state_that_is_gone_leaves_the_actions_to_see(tmp_path):
    run = make_stored_run(tmp_path, STEPS[:1])
    run.rounds_folder.rename(tmp_path / "elsewhere")
    page = words(browse(run).page())
    assert "The state cannot be shown" in page and "the run lists it" in page
    assert "1 important_new × 2.5" in page


@pytest.mark.parametrize("state_id", ["../../etc/1", "q1/../1", "q1/run_001", "q1/run_001/x"])
def test_no_path_is_made_of_an_unchecked_id(run, state_id):
    with pytest.raises(DataError):
        recorded_state(run.rounds_folder, state_id)


def test_a_round_that_was_never_played_is_said(run):
    with pytest.raises(DataError, match="lists no round 4"):
        recorded_state(run.rounds_folder, "q1/run_001/4")


# ---- answers, and tasks of one's own


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    config = RunConfig.from_sections(
        task="answers", output_root=str(tmp_path_factory.mktemp("outputs")),
        answers={"dataset": "arithmetic", "max_samples": 4},
    )  # fmt: skip
    run = Run.open(config)
    task = build_task(config, run)
    state = task.states("train")[0]
    texts = [state.completion, "Final Answer: -12345 <b>bold</b>"]
    rows = [
        {"state_id": state.state_id, "question_id": state.question_id, "visit": 0, "action": k,
         "text": text, "ended": True, "reward": score.reward, "advantage": 1.0 - 2 * k,
         "prompt_tokens": 9, "token_ids": [1]} | score.components
        for k, (text, score) in enumerate(zip(texts, task.score(state, texts), strict=True))
    ]  # fmt: skip
    run.write_rollouts(1, browsing.pd.DataFrame(rows))
    return run, task, state


def test_answers_show_prompt_completion_and_reward_parts(answers):
    run, _, state = answers
    browser = browse(run)
    page = browser.page()
    assert f"Right answer: {state.ground_truth}" in words(page)
    assert "accuracy 1" in words(page) and "accuracy 0" in words(page)
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page
    assert browser.table()["text"].tolist()[0] == state.completion
    assert browser.texts.of(state.state_id).messages[-1]["content"].count(state.question) == 1


def test_a_task_of_ones_own_is_asked_for_its_states(answers):
    run, task, state = answers
    own = Run(run.config.with_overrides("task=my_task:build"), run.folder)
    assert "pass it, as in browse(run, task=task)" in browse(own).page()
    assert browse(own, task=task).texts.of(state.state_id).question == state.question


def test_no_split_is_made_by_looking(answers, tmp_path):
    run, *_ = answers
    moved = Run(run.config, tmp_path)
    moved.write_rollouts(1, run.read_rollouts(1))
    assert "splits.json is not there" in browse(moved).page()
    assert not (tmp_path / "splits.json").exists()


# ---- widgets


@pytest.fixture
def view(run):
    return widget_view(browse(run)).view


def test_next_goes_through_a_step_and_on_to_the_next(view):
    shown = [view.group.value]
    for _ in range(4):
        view.on.click()
        shown.append(view.browser.shown)
    assert shown == [FIRST, SECOND, THIRD, FOURTH, FOURTH]
    assert "谁建造了灯塔" in view.page.value and view.said.value == "2 of 2 groups"
    for _ in range(4):
        view.back.click()
    assert view.browser.shown == FIRST and view.step.value == 1


def test_controls_filter(view):
    view.step.value = None
    assert len(view.browser.keys) == 4
    view.question.value = "q1"
    assert view.browser.keys == [FIRST, THIRD]
    view.low.value, view.high.value = "2", "3"
    assert view.browser.keys == [FIRST]
    view.high.value = "much"
    assert "much" in view.said.value and view.browser.keys == [FIRST]
    view.high.value, view.question.value = "", "Atlantis"
    assert view.said.value == "no group fits" and view.page.value == ""
    view.question.value = ""
    assert view.browser.keys == [FIRST, SECOND, FOURTH]


def test_a_box_puts_another_step_of_the_question_beside(view):
    view.compare.value = True
    assert view.browser.beside == THIRD and view.page.value.count("<section>") == 2
    view.on.click()
    assert view.browser.shown == SECOND and view.browser.beside == FOURTH
    view.beside.value = None
    assert view.page.value.count("<section>") == 1


def test_widgets_open_with_what_was_asked_for(run):
    view = widget_view(browse(run, question="q1", reward=(0, 1), compare=1)).view
    assert (view.question.value, view.low.value, view.high.value) == ("q1", "0", "1")
    assert view.browser.shown == THIRD and view.beside.value == FIRST
    assert view.page.value.count("<section>") == 2


def test_without_ipywidgets_there_is_the_table(run, monkeypatch):
    monkeypatch.setattr(browsing.importlib.util, "find_spec", lambda name: None)
    shown = []
    monkeypatch.setattr(browsing, "display", lambda bundle, raw: shown.append(bundle))
    browse(run)._ipython_display_()
    assert set(shown[0]) == {"text/plain", "text/html"}


@pytest.mark.parametrize("somebody", [False, True])
def test_a_notebook_has_widgets_only_where_somebody_sits(run, root, monkeypatch, somebody):
    """papermill lets no cell ask anything; a person's notebook does."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    source = f"from rlkit import browse\nbrowse({str(run.folder)!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120)
    with client.setup_kernel():
        client.kc.allow_stdin = somebody
        client.execute_cell(notebook.cells[0], 0)
    (output,) = notebook.cells[0].outputs
    assert "1 important_new" in words(output.data["text/html"])
    assert ("application/vnd.jupyter.widget-view+json" in output.data) == somebody


def test_a_run_that_was_loaded_is_browsed_as_its_name_is(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"run_name: mine\noutput_root: {tmp_path}\n")
    assert stored_actions.named_run(load_run("mine", tmp_path)).folder == folder
