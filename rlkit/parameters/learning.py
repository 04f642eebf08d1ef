"""What learns and how: the model, its adapter, GRPO, sampling in training, steps, and SFT."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from rlkit.errors import ConfigError
from rlkit.section import Section, key


class ModelSection(Section):
    title: ClassVar[str] = "model"
    base_model_path: str = key(
        "Qwen/Qwen3-8B",
        "model that the Executor runs on: a local folder, a hub id, smollm2-135m-instruct (comes "
        "with the installation), or debug (two random layers)",
        min_length=1,
    )
    vllm_base_url: str = key(
        "http://127.0.0.1:8000/v1",
        "address of an OpenAI-compatible server",
        pattern=r"^https?://\S+$",
        allowed="an address that starts with http:// or https://",
    )
    checker_model: str | None = key(None, "name of the server's model that judges documents")
    load_in_4bit: bool = key(True, "load the base in 4 bits where bitsandbytes works")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key("auto", "precision of the base")
    device: Literal["auto", "cpu", "cuda"] = key("auto", "where the model is computed")
    init_adapter: str | None = key(
        None,
        "adapter to start from: null for none, auto for a warm start made first, or a folder",
        allowed="auto, or the path of an adapter's folder",
        min_length=1,
    )
    enable_thinking: bool = key(False, "let a thinking model think before it writes clues")
    trust_remote_code: bool = key(False, "run code that comes with a model")


class LoraSection(Section):
    title: ClassVar[str] = "lora"
    enabled: bool = key(
        True, "train an adapter; false trains all weights, and wants ten times lower rates"
    )
    rank: int = key(16, "rank of the adapter", "dimensions", ge=1, le=1024)
    alpha: int = key(32, "scale; the adapter acts with alpha / rank", ge=1, le=4096)
    dropout: float = key(0.1, "dropout on the adapter's input, in SFT only", "share", ge=0, lt=1)
    target_modules: list[str] = key(
        ["q_proj", "v_proj", "k_proj", "o_proj"], "layers that get an adapter", min_length=1
    )


class GrpoSection(Section):
    title: ClassVar[str] = "grpo"
    group_size: int = key(4, "actions sampled for one state (K)", "actions", ge=2, le=1024)
    clip_epsilon: float = key(
        0.2, "the ratio is clipped below at 1 - this (gspo's paper: 3e-4)", "ratio", gt=0, lt=1
    )
    clip_epsilon_high: float | None = key(
        None,
        "the ratio is clipped above at 1 + this (gspo's paper: 4e-4); null: clip_epsilon",
        "ratio",
        gt=0,
        le=100,
    )
    kl_penalty: float = key(0.01, "weight of the KL to the reference (beta)", ge=0, le=100)
    learning_rate: float = key(
        5e-5,
        "AdamW's peak learning rate; safe: 1e-5 to 2e-4 for an adapter, 1e-6 to 5e-6 for all "
        "weights (5e-5 took a 0.6B model's accuracy on GSM8K from 57 % to 2 %, by a public report)",
        "per update",
        gt=0,
        le=1,
    )
    temperature: float = key(0.7, "divides the logits, everywhere alike", gt=0, le=10)
    loss_type: Literal["grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo"] = key(
        "grpo",
        "how token losses are clipped and averaged (Dr. GRPO's paper also has scale_rewards none)",
    )
    kl_estimator: Literal["squared", "k2", "k3"] = key(
        "squared", "the KL in the loss: squared log-ratio (twice k2), k2 or k3"
    )
    importance_level: Literal["token", "sequence"] = key(
        "token", "one ratio a token, or one an action (gspo: always sequence)"
    )
    scale_rewards: Literal["group", "batch", "none"] = key(
        "group", "whose standard deviation divides the advantages, those of clues included"
    )
    credit: Literal["action", "clue"] = key("action", "what a token is credited with")
    advantage: Literal["group", "best"] = key(
        "group",
        "group: the reward against the group's; best: 1 for the group's best action if its reward "
        "is above 0, 0 for all others (rejection sampling, RAFT; wants kl_penalty 0)",
    )
    num_iterations: int = key(1, "passes over each group", "passes", ge=1, le=64)
    mask_truncated: bool = key(False, "leave out actions cut off at max_new_tokens")
    top_p: float = key(1.0, "nucleus sampling; 1 is off", "probability", allowed="1 (off)")
    top_k: int = key(0, "top-k sampling of tokens; 0 is off", "tokens", allowed="0 (off)")
    reuse_prompt_graph: Literal["auto", "never"] = key(
        "auto",
        "auto: the policy's first pass takes up the prompt that sampling read (but not with "
        "gradient checkpointing, nor several states a step with scale_rewards batch)",
    )
    max_new_tokens: int = key(128, "longest action", "tokens", ge=1, le=32768)
    max_grad_norm: float = key(1.0, "the gradient is clipped to this norm", gt=0, le=1e6)
    lr_schedule: Literal["constant", "linear", "cosine"] = key(
        "constant", "learning rate after the warm-up"
    )
    warmup_steps: int = key(0, "updates over which the learning rate rises", "updates", ge=0)
    weight_decay: float = key(0.0, "AdamW's weight decay", ge=0, le=1)

    @classmethod
    def refusal(cls, name: str, given: object) -> str:
        if name == "kl_estimator" and given == "k1":
            return (
                "grpo.kl_estimator is 'k1', which has no gradient on-policy and cannot be a loss; "
                "take squared, k2 or k3 (the metric kl is k3 in any case)."
            )
        return super().refusal(name, given)

    def check(self) -> None:
        for name, off in (("top_p", 1.0), ("top_k", 0)):
            if getattr(self, name) != off:
                raise ConfigError(
                    f"grpo.{name} is {getattr(self, name)}; training allows only {off} (off), "
                    "since the support of the log-probabilities would differ from what was sampled."
                )
        if self.advantage == "best" and self.credit == "clue":
            raise ConfigError(
                "grpo.advantage best credits whole actions and does not go with grpo.credit clue; "
                "leave one of them at its default."
            )
        if self.loss_type == "gspo" and self.importance_level == "token":
            if "importance_level" in self.model_fields_set:
                raise ConfigError(
                    "grpo.loss_type gspo has one ratio for a whole action and does not go with "
                    "grpo.importance_level token; leave importance_level out or take sequence."
                )
            object.__setattr__(self, "importance_level", "sequence")


class RolloutSection(Section):
    title: ClassVar[str] = "rollout"
    engine: Literal["transformers", "vllm", "vllm_server"] = key(
        "transformers",
        "who samples actions in training: the trainer's own model, vLLM in this process, or a vLLM "
        "server (docs/rollouts.md)",
    )
    base_url: str | None = key(
        None,
        "vllm_server: its address; null: model.vllm_base_url",
        pattern=r"^https?://\S+$",
        allowed="an address that starts with http:// or https://",
    )
    adapters_path: str | None = key(
        None,
        "vllm_server, vllm: folder that adapters are handed over in, which the server sees under "
        "the same path; null: rollout_adapters/ in the run's folder",
        min_length=1,
    )
    timeout: float = key(600.0, "vllm_server: a group may take", "seconds", gt=0, le=86400)
    gpu_memory_utilization: float = key(
        0.3, "vllm: its share of the device's memory", "share", gt=0, lt=1
    )
    importance_cap: float = key(
        2.0,
        "actions sampled by another program than the trainer, or under older weights, have their "
        "policy term weighted by the ratio of their probabilities, at most this (TRL: "
        "vllm_importance_sampling_clip_max)",
        "ratio",
        gt=0,
        le=1000,
    )
    overlap: Literal["none", "update", "ahead"] = key(
        "none",
        "what is sampled while the environment judges: none; update, the next groups for as long "
        "as the weights stay, which changes nothing but the time; ahead, across an update, too, "
        "whose first group is then sampled under the weights before it",
    )
    groups_at_once: int = key(
        1,
        "transformers: groups of a step that are sampled in one batch; more is faster on a CPU, "
        "but an action then depends, in its last digits, on what was sampled beside it",
        "groups",
        ge=1,
        le=4096,
    )


class TrainingSection(Section):
    title: ClassVar[str] = "training"
    num_epochs: int = key(5, "epochs; each ends with an evaluation", "epochs", ge=1)
    batch_size: int = key(1, "groups a step on every process", "states", ge=1)
    steps_per_epoch: int | None = key(
        10, "steps an epoch; null: one pass over the training states", "steps", ge=1
    )
    gradient_accumulation_steps: int = key(2, "the optimiser moves once in so many", "steps", ge=1)
    max_steps: int | None = key(
        1000, "training stops here at the latest; null: after num_epochs", "steps", ge=1
    )
    save_every_n_steps: int = key(1, "a checkpoint every so many steps", "steps", ge=1)
    keep_last: int = key(3, "checkpoints kept (and the best one)", "checkpoints", ge=1)
    best: str = key(
        "reward",
        "the best checkpoint is the highest on dev in this: reward, or a metric of the task, such "
        "as discovery_rate",
        pattern=r"^\w+$",
        allowed="the name of a metric",
    )
    patience: int | None = key(
        None,
        "training ends after so many epochs in a row without a better one on dev; null: never",
        "epochs",
        ge=1,
    )
    stop_on: list[str] = key(
        [],
        "training ends where one of these alarms begins; empty: it goes on",
        choices=(
            "flat",
            "cut",
            "still",
            "kl",
            "entropy",
            "repeats",
            "leaves",
            "invalid",
            "unjudged",
        ),
    )
    cpu_minutes: float | None = key(
        None,
        "no step begins after so much processor time (of all processes) spent in steps, "
        "evaluations apart; null: no limit",
        "minutes",
        gt=0,
    )
    flat_share: float = key(
        1.0,
        "how often a state comes up, compared with others, whose last group was flat (all "
        "advantages 0)",
        "share",
        ge=0,
        le=1,
    )
    resume: bool = key(True, "go on where the run's folder stands")
    gradient_checkpointing: bool = key(True, "recompute activations to save memory")

    def epoch_steps(self, states: int, processes: int = 1) -> int:
        """Steps of an epoch where there are so many training states."""
        return self.steps_per_epoch or math.ceil(states / (self.batch_size * processes))

    def total_steps(self, states: int, processes: int = 1, ahead: int = 0) -> int:
        """Steps of the whole run; `ahead` of its epochs by the steps of fewer processes."""
        steps = self.num_epochs * self.epoch_steps(states, processes) + ahead
        return min(steps, self.max_steps or steps)


class SftSection(Section):
    title: ClassVar[str] = "sft"
    learning_rate: float = key(
        2e-4,
        "AdamW's learning rate; safe: 1e-5 to 2e-4 for an adapter, 1e-6 to 5e-6 for all weights",
        "per update",
        gt=0,
        le=1,
    )
    num_epochs: int = key(1, "passes over the samples", "epochs", ge=1)
    batch_size: int = key(4, "samples an update", "samples", ge=1)
    max_samples: int | None = key(None, "samples used; null: all", "samples", ge=1)
    max_grad_norm: float = key(1.0, "the gradient is clipped to this norm", gt=0, le=1e6)
    warmup_steps: int = key(0, "updates over which the learning rate rises", "updates", ge=0)
    packing: Literal["auto", "never"] = key(
        "auto", "auto: the samples of an update pass the model together"
    )
    start_from: str | None = key(
        None,
        "adapter's folder that SFT goes on from, such as another run's warm start; null: none",
        min_length=1,
    )
    evaluate_every_n_updates: int | None = key(
        None,
        "greedy evaluation on evaluation.epoch_states dev states every so many updates; the best "
        "adapter (training.best) is kept; null: the last one is, without evaluation",
        "updates",
        ge=1,
    )
    patience: int | None = key(
        3,
        "SFT ends after so many evaluations in a row without a better one; null: never",
        "evaluations",
        ge=1,
    )
    cpu_minutes: float | None = key(
        None,
        "no update begins after so much processor time spent in updates; null: no limit",
        "minutes",
        gt=0,
    )
    save_every_n_updates: int = key(
        50, "how often the state is saved, to go on from after a stop", "updates", ge=1
    )
