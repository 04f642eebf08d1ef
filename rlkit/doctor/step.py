"""What one real step showed, judged: pure functions of a `rlkit.training.trial.Trial`.

`warmed` is false where the run makes a warm start first and the step was taken without it: what
the untouched model does wrong may then still be put right, so that it is no failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlkit.doctor.look import Finding, Said

MOST = 0.5  # more than half
NEAR = 1e-3  # of a ratio that should be 1: the next pass computes a little differently
GOALS = ("discovery_rate", "accuracy")  # components of a score that are 1 where all is reached
LONG = 24.0  # hours
COLD = 0.1  # of a temperature: below it a softmax may be saturated
_LATER = "the run makes a warm start first: check again when it is there (python -m rlkit sft)"


def judge_step(trial: Any, *, warmed: bool = True, temperature: float = 1.0) -> Iterator[Finding]:
    """One finding a subject; `temperature` is that of the sampling."""
    for subject, judge in JUDGES.items():
        level, text, *rest = judge(trial)
        if subject == "gradients" and temperature < COLD and "zero" in trial.gradients.values():
            rest[0] = (
                f"raise grpo.temperature: at {temperature:g} all probability is on one token, "
                "which has no gradient"
            )
        if not warmed and subject in ("ends", "groups", "reward") and level != "ok":
            level, text, rest = "warn", f"{text}, without the warm start", [_LATER, *rest[1:]]
        yield Finding(level, subject, text, *rest)


def judge_ratio(trial: Any) -> Said:
    if trial.off_ratio == 0:
        return "ok", "exactly 1 before the optimiser moves"
    text = f"a second pass over the same actions has ratios up to {trial.off_ratio:.2g} from 1"
    if trial.off_ratio < NEAR:
        return "warn", f"{text}: the arithmetic does not repeat itself to the last bit"
    todo = "look for dropout in the model, or another source of chance; set model.dtype to float32"
    return "fail", text, todo


def judge_kl(trial: Any) -> Said:
    if trial.off_reference is None:
        return "ok", "no reference (grpo.kl_penalty is 0)"
    if trial.off_reference == 0:
        return "ok", "exactly 0 to the reference"
    text = f"policy and reference differ by up to {trial.off_reference:.2g} nat before any training"
    return "fail", text, "start from the adapter that is the reference; take a new run_name"


def judge_gradients(trial: Any) -> Said:
    kinds = Counter(trial.gradients.values())
    facts = dict(kinds)
    for kind, said in (
        ("missing", "have no gradient"),
        ("frozen", "are frozen"),
        ("not finite", "have a gradient that is not finite"),
        ("zero", "have a gradient of exactly 0"),
    ):
        names = [name for name, found in trial.gradients.items() if found == kind]
        if names:
            text = f"{len(names)} of {len(trial.gradients)} tensors {said}, first {names[0]}"
            return "fail", f"{text}; they would learn nothing", _MENDS[kind], facts
    if not kinds["ok"]:
        return "fail", "no tensor of the adapter has a gradient", _MENDS["missing"], facts
    text = f"{kinds['ok']} of {len(trial.gradients)} tensors have a gradient"
    if kinds["waits"]:
        text += f"; {kinds['waits']} (A of LoRA) have none as long as their B is 0, as it must be"
    if not trial.moved:
        return "fail", f"{text}; but the optimiser moved nothing", "raise the learning rate", facts
    return "ok", text, "", facts


_MENDS = {
    "missing": "set model.load_in_4bit to false, and see that lora.target_modules are layers that "
    "the model uses",
    "frozen": "let them require gradients before the trainer is made",
    "not finite": "set model.dtype to float32 or bfloat16",
    "zero": "see that lora.target_modules are layers that the model uses",
}


def judge_ends(trial: Any) -> Said:
    """An end token must stand in most actions; the others are cut."""
    ended = sum(row["ended"] for row in trial.rows)
    text = f"{ended} of {len(trial.rows)} actions end with an end token"
    if ended > MOST * len(trial.rows):
        return "ok", text
    todo = (
        "make a warm start (model.init_adapter: auto), or raise grpo.max_new_tokens; see that the "
        "tokenizer's end token is the one that its chat template writes"
    )
    return "fail" if ended == 0 else "warn", f"no end token in most actions: {text}", todo


def judge_groups(trial: Any) -> Said:
    """A group whose rewards are all equal teaches nothing; and what would help."""
    groups = _groups(trial.rows)
    varied = sum(len(set(_rewards(rows))) > 1 for rows in groups)
    text = f"{varied} of {len(groups)} groups have any variance of reward"
    facts = {"groups": len(groups), "varied": varied}
    if varied:
        return "ok", text, "", facts
    return "warn", f"no variance: {text}, so this step taught nothing", _help(trial.rows), facts


def _help(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why all rewards of every group are equal, as far as the actions tell, and what to do."""
    if sum(row["reward"] is None for row in rows) > MOST * len(rows):
        return "most actions could not be judged: python -m rlkit check-judge shows what is wrong"
    if sum(bool(row.get("invalid")) for row in rows) > MOST * len(rows):
        return "most actions are invalid: make a warm start (model.init_adapter: auto)"
    if _saturated(rows):
        return "all is reached already: take harder questions"
    if all(len({row["text"] for row in group}) == 1 for group in _groups(rows)):
        return "all actions of a group are the same: raise grpo.temperature"
    return (
        f"raise grpo.group_size (it is {len(_groups(rows)[0])}) or grpo.temperature; where nothing "
        "is ever found, make a warm start (model.init_adapter: auto)"
    )


def judge_reward(trial: Any) -> Said:
    """Rewards that all stand at the maximum leave nothing to learn."""
    rewards = _rewards(trial.rows)
    if not rewards:
        todo = "python -m rlkit check-judge shows what is wrong"
        return "fail", "no action could be scored: every reward is missing", todo
    text = f"{min(rewards):g} to {max(rewards):g}, mean {sum(rewards) / len(rewards):.3g}"
    if _saturated(trial.rows):
        text = f"the reward saturates: all {len(rewards)} actions are at the maximum ({text})"
        return "warn", text, "take harder questions, or a reward that tells good from better"
    invalid = sum(bool(row.get("invalid")) for row in trial.rows)
    if invalid > MOST * len(trial.rows):
        text = f"{invalid} of {len(trial.rows)} actions are invalid (no clue that brings anything)"
        todo = "make a warm start (model.init_adapter: auto), or look at executor.layout"
        return "warn", text, todo
    if len(set(rewards)) == 1 and len(rewards) > 1:
        todo = "see whether that is the highest or the lowest reward that the task can give"
        return "warn", f"every action has the reward {rewards[0]:g}", todo
    return "ok", text


def _saturated(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all scored actions reached all that there was to reach, as their components say."""
    scored = [row for row in rows if row["reward"] is not None]
    for goal in GOALS:
        if any(row.get(goal) is not None for row in scored):
            return all(row.get(goal) in (None, 1.0) for row in scored)
    return False


JUDGES: dict[str, Callable[[Any], Said]] = {
    "ratio": judge_ratio,
    "KL": judge_kl,
    "gradients": judge_gradients,
    "ends": judge_ends,
    "groups": judge_groups,
    "reward": judge_reward,
}


def judge_prompts(lengths: Sequence[int], action: int, limit: int | None, least: int = 0) -> Said:
    """Prompts of these lengths (tokens), each with an action of at most `action`, in a model that
    reads `limit`; `least` is that of the shortest action with its end token."""
    if not lengths:
        return "fail", "the train split holds no state, so there is no prompt", "give more data"
    if action < least:
        text = f"grpo.max_new_tokens is {action}, and the shortest action with its end token has "
        todo = "raise grpo.max_new_tokens: no warm start can mend that"
        return "fail", f"{text}{least} tokens: every one is cut", todo
    longest = max(lengths)
    text = f"{min(lengths)} to {longest} tokens in {len(lengths)} prompts, actions up to {action}"
    if limit is None:
        return "ok", f"{text}; the model names no limit"
    over = sum(length + action > limit for length in lengths)
    if over:
        text = f"{over} of {len(lengths)} prompts are longer than the model can read"
        return (
            "fail",
            f"{text}: the longest has {longest} tokens, with {action} for the action, and the "
            f"model reads {limit}",
            "lower executor.max_prompt_tokens or grpo.max_new_tokens, or take another model",
        )
    return "ok", f"{text}; the model reads {limit}"


def judge_time(seconds: float, steps: int, batch_size: int) -> Said:
    """`seconds` a group of the first step; for the whole run, evaluations and saving apart."""
    step = seconds * batch_size
    hours = step * steps / 3600
    said = f"{hours:.1f} hours" if hours >= 1 else f"{max(hours * 60, 0.1):.1f} minutes"
    text = f"{step:.3g} s a step, so about {said} for {steps} steps, evaluations and saving apart"
    text += "; a first step is a cold one, so that later ones may be faster"
    facts = {"seconds_per_step": step, "steps": steps, "hours": hours}
    if hours <= LONG:
        return "ok", text, "", facts
    return "warn", text, "lower training.num_epochs or training.max_steps, or take a GPU", facts


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    groups: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["state_id"]].append(row)
    return list(groups.values())


def _rewards(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["reward"] for row in rows if row["reward"] is not None]
