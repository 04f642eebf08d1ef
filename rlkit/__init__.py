"""rlkit: reinforcement-learning fine-tuning of a search system's Executor, end to end.

The way of the data, file by file:

    rounds/checkpoints.py       recorded rounds -> states (state.py), parted by split.py
    agents/prompt.py            a state -> the Executor's prompt
    training/sampling.py        a prompt -> K actions; agents/parse.py reads the clues in them
    library/orchestrator.py     clues -> one ranking of documents (bm25.py finds them)
    practice/environment.py     ranking -> documents read and judged (agents/checker.py)
    practice/reward.py          documents -> reward; a group's rewards -> advantages
    training/logprobs.py        actions -> log-probabilities, the prompt computed once
    training/grpo.py            advantages and log-probabilities -> loss
    training/trainer.py         the step around it, and loop.py the run around that
    results/evaluate.py         compares what came of it; report.py tells

Questions with checkable answers go the same way; only what stands before the trainer differs:

    answers/datasets.py         questions and worked answers -> rows (quality.py checks them)
    answers/task.py             a row -> a state and its prompt; what SFT learns
    answers/rewards.py          a completion -> its answer (extract.py) -> reward
    answers/pipeline.py         SFT, evaluate, GRPO, evaluate; tool.py is the course's one call

The public names are loaded when they are first used; `import rlkit` loads no torch.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

__version__ = "0.1.0"

# on a CPU with bfloat16 it asks for a package of kernels while it is loaded; nothing here needs it
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_HOME = {
    "RunConfig": "rlkit.config",
    "Run": "rlkit.run",
    "load_run": "rlkit.run",
    "browse": "rlkit.results.browse",
    "rescore": "rlkit.results.rescore",
    "RLCheckpointLoader": "rlkit.rounds.checkpoints",
    "SearchRoundEnv": "rlkit.practice.environment",
    "create_environment": "rlkit.practice.environment",
    "RewardCalculator": "rlkit.practice.reward",
    "GRPOTrainer": "rlkit.training.trainer",
    "load_model_with_lora": "rlkit.training.policy",
    "save_lora_checkpoint": "rlkit.training.adapters",
    "load_lora_checkpoint": "rlkit.training.adapters",
    "get_token_log_probs": "rlkit.training.logprobs",
    "generate_with_log_probs": "rlkit.training.sampling",
    "compute_sequence_log_prob": "rlkit.training.logprobs",
    "merge_lora_to_base": "rlkit.deploy.merge",
    "RLTrainingTool": "rlkit.answers.tool",
    "AgenticRLPipeline": "rlkit.answers.pipeline",
    "check_data_quality": "rlkit.answers.quality",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"rlkit has no {name!r}; it has {', '.join(_HOME)}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
