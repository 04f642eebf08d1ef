"""The policies of a comparison: those that a model plays share one base model, which is loaded
when the first of them must write, and not at all where every answer is kept already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.agents.executor import build_policy
from rlkit.agents.parse import completeness
from rlkit.agents.prompt import build_messages
from rlkit.library.corpus import Corpus
from rlkit.results.answer_cache import DECODING, Answers, CachedSampler
from rlkit.results.chosen import warm_start_of
from rlkit.results.model_content import adapter_content, is_model_folder, model_content, weights_sum
from rlkit.run import Run
from rlkit.training.adapters import REFERENCE, add_adapter, using_adapter
from rlkit.training.models import resolve_base_model
from rlkit.training.policy import ModelPolicy, load_base_model, prompt_counter
from rlkit.training.precision import Precision, choose_precision
from rlkit.training.sampling import sample_actions, uniform_numbers
from rlkit.training.stages import load_model
from rlkit.training.text import decode, end_ids

Log = Callable[[str], None]
VERSIONS = ("torch", "transformers", "peft")  # whose arithmetic answers come from
VISIT = -1  # of the uniform numbers: training, which counts visits from 0, never draws these


class Loaded:
    """A model with its tokenizer, loaded when it is first asked for."""

    def __init__(self, load: Callable[[], tuple[Any, Any]]) -> None:
        self._load, self._pair = load, None

    def __call__(self) -> tuple[Any, Any]:
        if self._pair is None:
            self._pair = self._load()
        return self._pair

    def forget(self) -> None:
        """Free its memory; it can be loaded again."""
        self._pair = None


class Player:
    """An Executor that a model plays, see `ModelPolicy`; it can also be sampled from, at the
    temperature of training. `label` tells it from others in the records of what it plays."""

    def __init__(
        self,
        config: Any,
        loaded: Loaded,
        prompt: Callable[[Any], Any],
        adapter: str | None,
        alone: bool = False,
        label: str | None = None,
        precision: str = "",
        complete: Callable[[str], bool] | None = None,
    ) -> None:
        """`alone`: nobody else plays this model, so that it is freed once all is written.
        `precision` says in which one it computes; `complete` is the task's (`Task.complete`)."""
        self.config, self.loaded, self.prompt = config, loaded, prompt
        self.adapter, self.alone, self.label = adapter, alone, label
        self.precision, self.complete = precision, complete

    def write(self, state: Any) -> str:
        """The greedy completion for one state."""
        return self.write_batch([state])[0]

    def write_batch(self, states: Sequence[Any]) -> list[str]:
        """Greedy completions, `evaluation.batch_size` prompts at a time."""
        return self._policy().write_batch(states)

    def sample_batch(self, states: Sequence[Any], count: int, first: int = 0) -> list[list[str]]:
        """Samples `first` to `count` of each state; sample i is the same whatever `count` is."""
        policy, grpo, drawn = self._policy(), self.config.grpo, []
        rows = count - first
        together = max(1, self.config.evaluation.batch_size // rows)
        for start in range(0, len(states), together):
            drawn += self._sampled(policy, states[start : start + together], count, first, grpo)
        return drawn

    def _sampled(
        self, policy: ModelPolicy, states: Sequence[Any], count: int, first: int, grpo: Any
    ) -> list[list[str]]:
        seed, length, rows = self.config.seed, grpo.max_new_tokens, count - first
        numbers = [uniform_numbers(seed, s.state_id, VISIT, count, length)[first:] for s in states]
        with using_adapter(policy.model, self.adapter):
            sampled = sample_actions(
                policy.model,
                [policy.prompt_ids(state) for state in states],
                rows,
                length,
                end_ids=end_ids(policy.model, policy.tokenizer),
                temperature=grpo.temperature,
                uniforms=np.concatenate(numbers),
                complete=policy.complete,
            )
        texts = [decode(policy.tokenizer, ids) for ids in sampled.rows()]
        return [texts[i : i + rows] for i in range(0, len(texts), rows)]

    def release(self) -> None:
        """See `evaluate_policies`."""
        if self.alone:
            self.loaded.forget()

    def _policy(self) -> ModelPolicy:
        model, tokenizer = self.loaded()
        return ModelPolicy(
            model,
            tokenizer,
            self.prompt,
            max_new_tokens=self.config.grpo.max_new_tokens,
            adapter=self.adapter,
            batch_size=self.config.evaluation.batch_size,
            enable_thinking=self.config.model.enable_thinking,
            complete=self.complete,
        )


def build_policies(
    config: Any,
    run: Run,
    names: Sequence[str],
    folders: Mapping[str, Path],
    corpus: Corpus | None,
    task: Any = None,
    log: Log = print,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Policies by name, in order. `folders` are the checkpoints, or whole models, of names other
    than `untouched` and `warm_start`.

    Prompts are those of `task`; without one, the Executor's prompt of `config`. With `cache`, a
    folder, what models answer is kept there; never of `served`, whose weights nobody can tell.
    """
    return _Builder(config, run, folders, corpus, task, log, cache).build(names)


class _Builder:
    """What the policies of one comparison have in common."""

    def __init__(
        self,
        config: Any,
        run: Run,
        folders: Mapping[str, Path],
        corpus: Corpus | None,
        task: Any,
        log: Log,
        cache: Path | None,
    ) -> None:
        self.config, self.corpus, self.task = config, corpus, task
        self.log, self.cache = log, cache
        self.warm_start = warm_start_of(run)
        self.models = {name: f for name, f in folders.items() if is_model_folder(f)}
        self.adapters = {name: f for name, f in folders.items() if name not in self.models}
        self.count_tokens = prompt_counter(config)
        self.base = Loaded(self._load_base)

    def build(self, names: Sequence[str]) -> dict[str, Any]:
        """See `build_policies`."""
        played = {"untouched", "warm_start", *self.adapters, *self.models}
        if self.task is not None and played & {*names}:
            self.task.count_tokens = self.count_tokens  # as training measures
        return {name: self._policy(name, name in played) for name in names}

    def _policy(self, name: str, played: bool) -> Any:
        if not played:
            return build_policy(name, self.config, self.corpus, self.count_tokens)
        precision = self._precision(name in self.models)
        said = str(precision.dtype).removeprefix("torch.")
        said += ", 4-bit weights" if precision.four_bit else ""
        if name in self.models:
            folder = self.models[name]
            loaded = Loaded(lambda: self._load_whole(folder))
            player = self._player(loaded, None, True, _label(folder), said)
            return self._kept(player, folder, None, precision)
        own = {"untouched": (None, None), "warm_start": (REFERENCE, self.warm_start)}
        adapter, folder = own.get(name) or (name, self.adapters[name])
        label = None if name in own else _label(folder)
        player = self._player(self.base, adapter, False, label, said)
        base = resolve_base_model(self.config.model.base_model_path)
        return self._kept(player, base, folder, precision)

    def _player(
        self, loaded: Loaded, adapter: str | None, alone: bool, label: str | None, said: str
    ) -> Player:
        complete = self._complete
        return Player(self.config, loaded, self._prompt, adapter, alone, label, said, complete)

    @property
    def _complete(self) -> Callable[[str], bool] | None:
        if self.task is None:
            return completeness(self.config)
        return getattr(self.task, "complete", None)

    def _precision(self, whole: bool) -> Precision:
        """Where and how it computes. A whole model is what is shipped: it is not quantised."""
        model = self.config.model
        exact = model.dtype == "auto" and not self.config.lora.enabled and not whole
        dtype, four_bit = "float32" if exact else model.dtype, model.load_in_4bit and not whole
        return choose_precision(model.device, dtype, four_bit)

    def _prompt(self, state: Any) -> Any:
        if self.task is not None:
            return self.task.prompt(state)
        return build_messages(state, self.config.executor, self.config.search, self.count_tokens)

    def _kept(
        self, player: Player, base: str | Path, folder: Path | None, precision: Precision
    ) -> Any:
        """The player, its answers kept where they are to be kept."""
        if self.cache is None:
            return player
        config, packages = self.config, (*VERSIONS, *["bitsandbytes"] * precision.four_bit)
        author = {
            "model": self._content_of_base(base, player.loaded),
            "adapter": None if folder is None else _content(folder),
            "computed": [precision.device, str(precision.dtype), precision.four_bit],
            "versions": {name: metadata.version(name) for name in packages},
            "decoding": DECODING,
        }
        answers = Answers(self.cache, author, self.log)
        decoding = {"max": config.grpo.max_new_tokens, "thinking": config.model.enable_thinking}
        if self._complete is not None:
            decoding |= {"complete": config.search.max_clues}
        sampling = {"temperature": config.grpo.temperature, "seed": config.seed}
        return CachedSampler(player, answers, self._prompt, decoding, sampling)

    def _content_of_base(self, base: str | Path, loaded: Loaded) -> str:
        if (folder := _local_folder(base)) is None:  # of the hub: loading fetches it
            loaded()
            folder = _local_folder(base)
        return model_content(folder or base)

    def _load_base(self) -> tuple[Any, Any]:
        """The base model with its warm start, as the reference, and the checkpoints beside it."""
        config, warm_start = self.config, self.warm_start
        kept = warm_start if config.lora.enabled else None
        model, tokenizer = load_model(config, kept, self.log)
        if warm_start != kept:  # of all weights: the model itself stays the untouched one
            add_adapter(model, warm_start, REFERENCE)
        for name, folder in self.adapters.items():
            add_adapter(model, folder, name)
        return model, tokenizer

    def _load_whole(self, folder: Path) -> tuple[Any, Any]:
        model = self.config.model
        precision = self._precision(whole=True)
        self.log(f"model: {folder} on {precision.reason}")
        return load_base_model(folder, precision, trust_remote_code=model.trust_remote_code)


def identity(name: str, policy: Any, checkpoint: Path | None) -> str:
    """Who plays, as the records call it: a policy of that name with another checkpoint, or with
    another served model, is another one and plays anew."""
    if checkpoint is not None:
        return f"{name} {checkpoint.name} {weights_sum(checkpoint)[:12]}"
    label = getattr(policy, "label", None)
    return f"{name} {label}" if isinstance(label, str) else name


def _content(folder: Path) -> str:
    adapter = (folder / "adapter_config.json").is_file() or not (folder / "config.json").is_file()
    return adapter_content(folder) if adapter else model_content(folder)


def _label(folder: Path) -> str:
    """A folder's name and content, for the records of what was played."""
    return f"{folder.name} {_content(folder)[:12]}"


def _local_folder(base: str | Path) -> Path | None:
    """The folder of a model; of one from the hub, where it was downloaded to, if it was."""
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(base), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
