"""What is learnt: data, search, Executor, judge, reward; and the question-answering task."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlkit.errors import ConfigError
from rlkit.section import Section, key


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
