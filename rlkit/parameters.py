"""The sections of parameters: every key with its default, range, unit and help. Nothing else in
the project holds a default of its own; `docs/parameters.md` is this file as a table."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

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


class RewardSection(Section):
    title: ClassVar[str] = "reward"
    important_new: float = key(2.5, "a new IMPORTANT document", "reward", ge=-1000, le=1000)
    important_seen: float = key(0.3, "a seen IMPORTANT document", "reward", ge=-1000, le=1000)
    local_new: float = key(0.3, "a new LOCAL document", "reward", ge=-1000, le=1000)
    local_seen: float = key(0.1, "a seen LOCAL document", "reward", ge=-1000, le=1000)
    discard_new: float = key(0.0, "a new DISCARD document", "reward", ge=-1000, le=1000)
    discard_seen: float = key(-0.1, "a seen DISCARD document", "reward", ge=-1000, le=1000)
    invalid: float | None = key(
        None,
        "an action without clues or without hits; null: worked out as max_clues * top_k * "
        "min(0, all values) - 0.1, and never more than that",
        "reward",
        ge=-1e6,
        le=0,
    )

    function: str | None = key(
        None,
        "a reward of your own in the place of the six values, from an action's documents; wants "
        "`invalid` to be given, too",
        dotted=True,
    )

    def check(self) -> None:
        if self.function is not None and self.invalid is None:
            raise ConfigError(
                "reward.function is set, and reward.invalid is not; give it a number below every "
                "reward that the function can give, since it cannot be worked out."
            )

    def lowest(self) -> float:
        """The lowest of 0 and the six values of a document."""
        names = set(type(self).model_fields) - {"invalid", "function"}
        return min(0.0, *(getattr(self, name) for name in names))

    def resolve_invalid(self, max_clues: int, top_k: int) -> None:
        """Fill in `invalid`, or refuse one that a valid action could fall below."""
        if self.function is not None:
            return  # every reward is compared with `invalid` as it comes
        limit = round(max_clues * top_k * self.lowest() - 0.1, 6)
        if self.invalid is None or self.invalid == limit:
            object.__setattr__(self, "invalid", limit)
            self.model_fields_set.discard("invalid")  # a changed copy works it out anew
        elif self.invalid > limit + 1e-9:
            raise ConfigError(
                f"reward.invalid is {self.invalid}; allowed is at most {limit} (max_clues * "
                "top_k * lowest value - 0.1), so that no valid action scores less; lower it or "
                "leave it out."
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
        "how often a state comes up, compared with others, whose last group was flat (all rewards "
        "equal)",
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


class DataSection(Section):
    title: ClassVar[str] = "data"
    source: Literal["demo", "rounds", "library"] = key(
        "demo", "made-up library, recorded rounds, or a corpus and questions"
    )
    rounds_path: str | None = key(None, "folder of recorded rounds", min_length=1)
    corpus_path: str | None = key(None, "documents: a file or folder", min_length=1)
    questions_path: str | None = key(None, "questions: a file or folder", min_length=1)
    max_questions: int | None = key(None, "questions used; null: all", "questions", ge=1)
    min_clues_per_round: int = key(2, "rounds with fewer are no samples", "clues", ge=1)
    first_round: int = key(
        1, "earlier rounds are no samples; 2: states that show what a round found", "rounds", ge=1
    )
    max_samples_per_question: int = key(10, "states a question gives", "states", ge=1)
    train_ratio: float = key(0.8, "share that trains, by question", "share", gt=0, lt=1)
    dev_ratio: float = key(0.1, "share of those kept for epoch evaluations", "share", ge=0, lt=1)
    split: Literal["hard_first", "random", "stratified"] = key(
        "hard_first", "who goes into evaluation: the hardest, any, or the same mix of hops"
    )
    split_seed: int | None = key(
        None, "draws the split; null: seed. The runs of a study, one a seed, have one split", ge=0
    )
    collectors: list[str] = key(
        ["scripted"],
        "policies that play the questions when rounds are collected",
        choices=("raw_question", "scripted", "served"),
        dotted=True,
        min_length=1,
    )
    max_rounds: int = key(3, "rounds a question is played when collecting", "rounds", ge=1, le=100)
    planner: str = key(
        "rules", "who plans each round when collecting", choices=("rules", "llm"), dotted=True
    )
    entities: str = key(
        "rules", "who keeps the tables when collecting", choices=("rules", "llm"), dotted=True
    )
    agent_prompt_tokens: int = key(
        2048,
        "about how long the prompts of a live planner and entity manager are, the documents that "
        "the round read apart; rows that do not fit are left out, and counted in the prompt",
        "tokens",
        ge=512,
        le=131072,
    )

    def check(self) -> None:
        needed = {"library": ("corpus_path", "questions_path"), "rounds": ("rounds_path",)}
        missing = [name for name in needed.get(self.source, ()) if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"data.source is {self.source!r}, which needs "
                f"{' and '.join('data.' + name for name in missing)}; set it, or take source demo."
            )


class AnswersSection(Section):
    title: ClassVar[str] = "answers"
    dataset: str = key(
        "arithmetic",
        "questions with checkable answers: arithmetic (made up here), gsm8k (from the hub), a "
        "JSONL file or a folder with train.jsonl and test.jsonl, or module:object",
        min_length=1,
    )
    max_samples: int | None = key(None, "training rows used; null: all", "rows", ge=1)
    language: Literal["auto", "en", "zh"] = key("auto", "the prompt's; auto: the question's")
    augment: list[str] = key(
        [],
        "rows made of the training rows and added to them: by rule where they are generated, else "
        "(and back_translation) by the model behind model.vllm_base_url; empty: none",
        choices=("paraphrase", "similar", "back_translation"),
    )
    prompt: str | None = key(None, "a prompt of your own, from a row to messages", dotted=True)
    rewards: list[str] = key(
        ["accuracy"],
        "parts of the reward, added up",
        choices=("accuracy", "length", "steps"),
        dotted=True,
        min_length=1,
    )
    reward_weights: list[Annotated[float, Field(ge=-1000, le=1000)]] = key(
        [],
        "weights of these parts; empty: all 1",
        "reward",
        allowed="a list of numbers from -1000 to 1000",
    )
    length_limit: int = key(256, "length: tokens beyond it cost", "tokens", ge=1, le=32768)
    length_penalty: float = key(0.001, "length: cost of one such token", "reward", ge=0, le=1)
    step_bonus: float = key(0.1, "steps: a right answer's bonus a step", "reward", ge=0, le=1)
    max_steps_rewarded: int = key(5, "steps: further ones earn nothing", "steps", ge=1, le=100)
    sft_accuracy_threshold: float = key(
        0.4, "pipeline: GRPO begins from this accuracy after SFT", "share", ge=0, le=1
    )
    below_threshold: Literal["stop", "continue"] = key(
        "stop", "pipeline: what to do below sft_accuracy_threshold"
    )

    def check(self) -> None:
        if self.reward_weights and len(self.reward_weights) != len(self.rewards):
            raise ConfigError(
                f"answers.reward_weights has {len(self.reward_weights)} values and answers.rewards "
                f"{len(self.rewards)}; give one weight a part, or none."
            )


class SearchSection(Section):
    title: ClassVar[str] = "search"
    backend: str = key(
        "bm25s", "search engine", choices=("bm25s", "rank-bm25", "opensearch"), dotted=True
    )
    k1: float = key(0.9, "BM25: how soon repeated words stop counting", ge=0, le=100)
    b: float = key(0.4, "BM25: how much long documents are held back", ge=0, le=1)
    top_k: int = key(5, "hits taken of each clue", "documents", ge=1, le=10000)
    max_clues: int = key(4, "clues of one action that count", "clues", ge=1, le=1000)
    max_documents: int = key(8, "new documents read an action", "documents", ge=1, le=10000)
    stem: bool = key(False, "stem English words")
    stop_words: bool = key(True, "leave out English stop words")
    url: str = key(
        "http://127.0.0.1:9200",
        "opensearch: the cluster's address; user and password come from the environment",
        pattern=r"^https?://[^\s@]+$",
        allowed="an address that starts with http:// or https://, without a user",
    )
    index: str = key(
        "rlkit",
        "opensearch: the index, filled by python -m rlkit.library.opensearch",
        pattern=r"^[a-z0-9][a-z0-9._-]{0,199}$",
        allowed="small letters, digits, '.', '_' and '-', at most 200, the first a letter or digit",
    )
    timeout: float = key(30.0, "opensearch: a request is given up then", "seconds", gt=0, le=3600)


class ExecutorSection(Section):
    title: ClassVar[str] = "executor"
    prompt: str | None = key(None, "a prompt of your own in place of the layout's", dotted=True)
    layout: Literal["two_phase", "legacy", "bare"] = key("two_phase", "how clues are asked for")
    language: Literal["auto", "en", "zh"] = key("auto", "the prompt's; auto: the question's")
    max_prompt_tokens: int = key(
        2048, "longer prompts lose their oldest context", "tokens", ge=32, le=1_000_000
    )
    plain_lines: bool = key(True, "untagged lines count as clues")
    stop_at_max_clues: bool = key(
        False, "an action ends with the tag that closes its last counted clue (search.max_clues)"
    )
    served_model: str | None = key(
        None, "name of the server's model that plays the Executor as policy served", min_length=1
    )
    served_url: str | None = key(
        None,
        "its server's address; null: model.vllm_base_url",
        pattern=r"^https?://\S+$",
        allowed="an address that starts with http:// or https://",
    )


class CheckerSection(Section):
    title: ClassVar[str] = "checker"
    kind: str = key(
        "gold",
        "who judges documents: gold, by the gold documents; llm, the model behind "
        "model.vllm_base_url",
        choices=("gold", "llm"),
        dotted=True,
    )
    language: Literal["auto", "en", "zh"] = key("auto", "the prompts'; auto: the question's")
    batch_size: int = key(4, "documents a request", "documents", ge=1, le=64)
    max_document_chars: int = key(
        2000, "longer documents are cut there for the judge", "characters", ge=100, le=100_000
    )
    flip_share: float = key(
        0.0,
        "documents whose verdict is replaced by another one, drawn by question and document: what "
        "a noisy judge does to training",
        "share",
        ge=0,
        le=1,
    )
    cache_path: str | None = key(
        None, "file that keeps every verdict; null: verdicts.sqlite beside the runs", min_length=1
    )
    concurrency: int = key(16, "requests under way at once", "requests", ge=1, le=1024)
    timeout: float = key(120.0, "a request may take", "seconds", gt=0, le=3600)
    max_retries: int = key(5, "a request that failed is sent again", "times", ge=0, le=100)
    patience: float = key(
        600.0,
        "a server that does not answer at all is waited for; a request that gets no answer fails "
        "after about (max_retries + 1) * timeout + patience",
        "seconds",
        ge=0,
        le=86400,
    )


class EvaluationSection(Section):
    title: ClassVar[str] = "evaluation"
    policies: list[str] = key(
        ["raw_question", "untouched", "warm_start", "tuned", "oracle"],
        "what is compared",
        choices=(
            "raw_question",
            "scripted",
            "untouched",
            "warm_start",
            "tuned",
            "oracle",
            "served",
        ),
        dotted=True,
        min_length=1,
    )
    max_states: int | None = key(None, "states evaluated; null: all", "states", ge=1)
    max_questions: int | None = key(
        None, "whole questions that each team plays; null: all", "questions", ge=1
    )
    question_first: bool = key(
        False,
        "teams: until something was found every team's clue is the question itself, and then its "
        "policy writes; for Executors that learnt from states of later rounds (data.first_round)",
    )
    batch_size: int = key(8, "states written for at once", "states", ge=1)
    epoch_states: int = key(16, "dev states at the end of each epoch; 0: none", "states", ge=0)
    epoch_kl: bool = key(
        True, "the KL to the reference on those states, too, for which their prompts are read twice"
    )
    split: Literal["eval", "dev", "train"] = key("eval", "whose states are evaluated")
    checkpoint: Literal["newest", "best"] = key(
        "newest", "which one is `tuned`; best: the highest reward on dev"
    )
    models: list[str] = key(
        [],
        "further ones that are compared: folders of checkpoints or whole (merged) models, or "
        "newest, best, all of the run's checkpoints",
        allowed="a list of folders | newest | best | all",
    )
    samples: int = key(
        0,
        "actions sampled for each state beside the greedy one, at grpo.temperature; 0: none",
        "actions",
        ge=0,
        le=256,
    )
    cache: bool = key(
        True,
        "keep what models answer, so that it is not written a second time; never of served, whose "
        "weights nobody can tell",
    )


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


class MergeSection(Section):
    title: ClassVar[str] = "merge"
    checkpoints: list[int] = key([], "steps whose checkpoints are merged; empty: all", "steps")
    output_dir: str | None = key(None, "where to; null: merged/ in the run's folder", min_length=1)
    dtype: Literal["float32", "bfloat16", "float16"] = key("bfloat16", "precision saved")


class TuneSection(Section):
    title: ClassVar[str] = "tune"
    method: Literal["grid", "random", "bayesian"] = key("bayesian", "how trials are chosen")
    space: dict[str, Any] = key(
        {},
        "what is searched; empty: learning rate, rank and KL penalty, as docs/tuning.md lists them",
        allowed="a mapping of section.key to {values: [...]} or {low, high, step or log}",
    )
    trials: int | None = key(
        None, "trials of the study; null: grid all, random 10, bayesian 20", "trials", ge=1
    )
    minutes: float | None = key(
        None, "no trial begins after so much trial time; null: no limit", "minutes", gt=0
    )
    objective: str = key(
        "eval/reward",
        "what is compared, as measured on dev at a trial's end",
        pattern=r"^eval/\S+$",
        allowed="a metric that begins with eval/",
    )
    direction: Literal["maximize", "minimize"] = key("maximize", "which objective is better")
    pruning: bool = key(
        True, "end a trial early whose objective is below the median of the others' at that epoch"
    )
    startup_trials: int = key(
        6, "bayesian: drawn at random before results guide the choice", "trials", ge=1
    )


class MonitoringSection(Section):
    title: ClassVar[str] = "monitoring"
    use_tensorboard: bool = key(True, "write TensorBoard events into the run's folder")
    use_wandb: bool = key(False, "log to Weights & Biases (its key comes from the environment)")
    wandb_project: str = key("rlkit", "project there", min_length=1)
    price_in: float = key(
        0.0, "what a server takes for a million tokens of prompts", "per million tokens", ge=0
    )
    price_out: float = key(
        0.0, "what a server takes for a million tokens of replies", "per million tokens", ge=0
    )
