"""One real step on two states, taken in a temporary folder: the run is left as it is."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlkit.agents.clues import format_clues
from rlkit.config import RunConfig
from rlkit.doctor.look import Finding, Look, finding, plugin_fault, refused
from rlkit.doctor.needs import judge_peak, memory_needed
from rlkit.doctor.setup import adapters_of
from rlkit.doctor.step import judge_prompts, judge_step, judge_time
from rlkit.errors import RlkitError
from rlkit.practice.source import sample_of
from rlkit.run import Run

STATES = 2  # of the step
QUESTIONS, ASKED = 24, 4  # played where no rounds are recorded yet; where a server plays, too
PROMPTS = 200  # measured
NEEDED = {"packages", "device", "model", "memory", "disk", "plug-ins", "data", "live agents"}


def practice(look: Look) -> Iterator[Finding]:
    """What the step shows, or why none was taken: that is a failure, whatever the cause, since
    nothing was then seen of training."""
    from rlkit.training.estimate import weights_are_here
    from rlkit.training.trial import OUT_OF_MEMORY

    if missing := sorted(look.failed & NEEDED):
        text = f"no step was tried: {', '.join(missing)} must be there first"
        yield Finding("fail", "step", text, "mend that, and check again")
    elif look.away:
        text = f"no step was tried: {'; '.join(look.away.values())}"
        yield Finding("fail", "step", text, "start it, and check again (until then: --quick)")
    elif not weights_are_here(look.config.model.base_model_path):
        text = "no step was tried: the model's weights are not on this machine yet"
        todo = "fetch the model, and check again (until then: --quick)"
        yield Finding("fail", "step", text, todo)
    else:
        try:
            with tempfile.TemporaryDirectory(prefix="rlkit-check-") as place:
                yield from _practice(look, Path(place))
        except (RlkitError, OSError, MemoryError, OUT_OF_MEMORY) as error:
            yield finding("step", refused(error))
        except Exception as error:
            said = plugin_fault(look.config, error)
            if said is None:
                raise
            yield finding("step", said)


def _practice(look: Look, place: Path) -> Iterator[Finding]:
    from rlkit.training.prefix import longest_text
    from rlkit.training.schedule import state_order
    from rlkit.training.stages import prepare_data, prepare_model
    from rlkit.training.text import encode_prompt
    from rlkit.training.trainer import GRPOTrainer
    from rlkit.training.trial import try_step

    config = _aside(look, place)
    run = Run.open(config)
    for name in ("splits.json", "augmented.json"):
        if (look.folder / name).exists():
            shutil.copyfile(look.folder / name, run.folder / name)
    task = prepare_data(config, run, _unsaid)
    model, tokenizer = prepare_model(config, run, task, _unsaid)
    thinking, action = config.model.enable_thinking, config.grpo.max_new_tokens

    def length(state: Any) -> int:
        return len(encode_prompt(tokenizer, task.prompt(state), thinking))

    train, limit = task.states("train"), longest_text(model.config)
    lengths = [length(state) for state in sample_of(train, PROMPTS)]
    least = len(tokenizer(_shortest(look), add_special_tokens=False)["input_ids"]) + 1
    yield finding("prompts", judge_prompts(lengths, action, limit, least))
    if not train:
        return
    first = state_order(train, config.seed, 0, min(len(train), PROMPTS))  # as the run begins
    fitting = [state for state in first if limit is None or length(state) + action <= limit]
    states = list({state.state_id: state for state in fitting}.values())[:STATES]
    if not states:
        text = f"no step was tried: none of {len(first)} train states fits what the model reads"
        yield Finding("fail", "step", text, "see what is said of the prompts")
        return
    trainer = GRPOTrainer(config, task, model, tokenizer, run, log=_unsaid)
    trial = try_step(trainer, states)
    warmed = look.config.model.init_adapter != "auto" or _is_warm(look)
    yield from judge_step(trial, warmed=warmed, temperature=config.grpo.temperature)
    if trial.peak is not None:
        yield finding("memory peak", judge_peak(trial.peak, memory_needed(look)))
    steps = look.config.training.total_steps(_train_states(look, config, train))
    yield finding("time", judge_time(trial.seconds, steps, config.training.batch_size))


def _shortest(look: Look) -> str:
    """The shortest action that can be read: one clue of one sign; of other tasks, one sign."""
    layout = look.config.executor.layout
    return format_clues(["x"], layout) if look.searches else "x"


def _aside(look: Look, place: Path) -> RunConfig:
    """The parameters of the run, for a step of it in a folder of its own: rounds, split and
    adapter that are there are taken, and few questions are played where no round is recorded. A
    warm start is not made."""
    config, start = look.config, adapters_of(look)
    if config.model.init_adapter is None or (
        config.model.init_adapter == "auto" and not _is_warm(look)
    ):
        start = []
    changes = [
        f"output_root={_quoted(place)}",
        f"model.init_adapter={_quoted(start[0]) if start else 'null'}",
        "checker.patience=5",
        "training.resume=true",
    ]
    if config.training.gradient_accumulation_steps < 2:  # so that the gradients can be looked at
        changes.append("training.gradient_accumulation_steps=2")
    if look.searches and look.rounds is not None:
        changes.append(f"data.rounds_path={_quoted(look.rounds)}")
    elif look.searches:
        changes.append(f"data.max_questions={_played(config)}")
    elif not (look.folder / "augmented.json").exists():
        changes.append("answers.augment=[]")
    index = Path(config.output_root, ".index").absolute()
    if index.is_dir():
        (place / ".index").symlink_to(index)
    return config.with_overrides(*changes)


def _quoted(path: Path) -> str:
    """A path as YAML reads it back, with ` #` or a colon in it."""
    return json.dumps(str(path.absolute()), ensure_ascii=False)


def _played(config: RunConfig) -> int:
    kinds = (config.checker.kind, config.data.planner, config.data.entities)
    served = "llm" in kinds or "served" in config.data.collectors
    return min(config.data.max_questions or math.inf, ASKED if served else QUESTIONS)


def _is_warm(look: Look) -> bool:
    """Whether the run has its warm start already."""
    kind = "adapter" if look.config.lora.enabled else "model"
    return (look.folder / "reference_adapter").is_dir() or (look.folder / "sft" / kind).is_dir()


def _train_states(look: Look, config: RunConfig, train: Sequence[Any]) -> int:
    """How many training states the run will have; where few questions were played, so many more
    as there are more questions."""
    if not look.searches or look.rounds is not None:
        return len(train)
    asked = len(look.library.questions)
    asked = min(asked, look.config.data.max_questions or asked)
    return round(len(train) * asked / min(asked, config.data.max_questions))


def _unsaid(line: str) -> None:
    """The findings say it."""
