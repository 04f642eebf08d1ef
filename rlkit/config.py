"""`RunConfig`: all parameters of a run, resolved from defaults, a params file or a notebook's
sections, and overrides. `python -m rlkit.config` prints the table of all keys."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import Field

from rlkit import parameters as p
from rlkit.errors import ConfigError, nearest
from rlkit.section import DOTTED, Parameter, Section, key, shown
from rlkit.yaml_text import parse_yaml, read_yaml, write_yaml

_SECRET_KEY = re.compile(
    r"(^|_)(api_?keys?|access_?key(_?id)?|private_?key|secrets?|password|passwd|passphrase|"
    r"credentials?|bearer|authorization)(_|$)|(^|_)token$"
)
_SECRET_VALUE = re.compile(
    r"(?<![\w/.-])(sk-[\w-]{8,}|hf_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|xox[abpr]-[\w-]{8,}|"
    r"glpat-[\w-]{8,}|AKIA[0-9A-Z]{8,}|AIza[\w-]{20,})(?![\w/.-])"
    r"|(?i:\bbearer\s+\S)|-----BEGIN|\beyJ[\w-]{8,}\.[\w-]+\."
    r"|://[^/\s@]+@"  # a user of an address, with or without a password
)
_QUERY_KEY = re.compile(r"[?&#;]([\w.%-]+)=")
_SECRET_IN_QUERY = re.compile(r"(^|_)(api)?(key|token|sig|signature|auth|pass|pwd)$")


FULL_RATE = 5e-6  # where all weights are trained


class RunConfig(Section):
    """Every parameter of one run. Frozen: `with_overrides` gives a changed copy.

    Raises ConfigError, one sentence, for anything that is unknown, out of range, contradictory,
    or looks like a secret.
    """

    run_name: str = key(
        "run",
        "name of the run and of its folder",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$",
        allowed="letters, digits, '.', '_' and '-', at most 100, not starting with '.' or '-'",
    )
    seed: int = key(7, "seed of everything that is drawn", ge=0, le=2**32 - 1)
    task: str = key(
        "search", "what is learnt; module:object builds a task of your own",
        choices=("search", "answers"), dotted=True,
    )  # fmt: skip
    output_root: str = key("outputs", "folder that holds the runs' folders", min_length=1)
    overrides: list[str] = key(
        [],
        "changes of single values, section.key=value; taken over and then emptied",
        allowed="a list of section.key=value",
    )
    model: p.ModelSection = Field(default_factory=p.ModelSection)
    lora: p.LoraSection = Field(default_factory=p.LoraSection)
    grpo: p.GrpoSection = Field(default_factory=p.GrpoSection)
    rollout: p.RolloutSection = Field(default_factory=p.RolloutSection)
    reward: p.RewardSection = Field(default_factory=p.RewardSection)
    training: p.TrainingSection = Field(default_factory=p.TrainingSection)
    data: p.DataSection = Field(default_factory=p.DataSection)
    answers: p.AnswersSection = Field(default_factory=p.AnswersSection)
    search: p.SearchSection = Field(default_factory=p.SearchSection)
    executor: p.ExecutorSection = Field(default_factory=p.ExecutorSection)
    checker: p.CheckerSection = Field(default_factory=p.CheckerSection)
    evaluation: p.EvaluationSection = Field(default_factory=p.EvaluationSection)
    sft: p.SftSection = Field(default_factory=p.SftSection)
    merge: p.MergeSection = Field(default_factory=p.MergeSection)
    tune: p.TuneSection = Field(default_factory=p.TuneSection)
    monitoring: p.MonitoringSection = Field(default_factory=p.MonitoringSection)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: str | Iterable[str] = ()) -> RunConfig:
        """The parameters of a params file (none: the defaults), changed by `overrides`."""
        values = {} if path is None else read_yaml(path)
        if values is not None and not isinstance(values, dict):
            raise ConfigError(
                f"{path} holds {shown(values)}; wanted are sections, such as `grpo:`."
            )
        try:
            return cls._resolve(values or {}, overrides)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}" if path else str(error)) from None

    @classmethod
    def from_sections(cls, **sections: Any) -> RunConfig:
        """What notebooks call: each section a dict (`{}` or None: the defaults), top keys as they
        are."""
        return cls._resolve(sections, ())

    @classmethod
    def _resolve(cls, values: dict[str, Any], overrides: Iterable[str]) -> RunConfig:
        values = {name: value for name, value in values.items() if value is not None}
        given = [*listed_changes(values.get("overrides")), *listed_changes(overrides)]
        return cls.model_validate({**values, "overrides": given})

    @classmethod
    def prepared(cls, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            value = {name: as_mapping(name, given) for name, given in value.items()}
        _refuse_secrets(value)
        value = super().prepared(value)
        if "overrides" in value:
            for change in listed_changes(value["overrides"]):
                _apply(value, change)
            value["overrides"] = []
        return value

    @classmethod
    def unknown(cls, name: str) -> str:
        homes = [s for s, keys in _sections().items() if name in keys.model_fields]
        if homes:
            return f"{name} is a key of {' and of '.join(homes)}; write {homes[0]}.{name}."
        near = nearest(name, cls.model_fields)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(cls.model_fields)}."
        return f"{name[:60]} is neither a section nor a parameter; {hint}"

    def check(self) -> None:
        self.reward.resolve_invalid(self.search.max_clues, self.search.top_k)
        if not self.lora.enabled:
            self._train_all_weights()
            if self.rollout.engine != "transformers":
                raise ConfigError(
                    f"rollout.engine is {self.rollout.engine!r}, which is handed adapters, and "
                    "lora.enabled is false; take engine transformers, or train an adapter."
                )
        if self.rollout.groups_at_once > 1:
            self._check_groups_at_once()
        if self.task == "answers" and self.grpo.credit == "clue":
            raise ConfigError(
                "grpo.credit is 'clue', which task answers has none of; take credit action."
            )

    def _check_groups_at_once(self) -> None:
        for name, wanted in (("engine", "transformers"), ("overlap", "none")):
            given = getattr(self.rollout, name)
            if given != wanted:
                raise ConfigError(
                    f"rollout.groups_at_once is {self.rollout.groups_at_once}, which is for "
                    f"rollout.{name} {wanted}, and that is {given!r}; set groups_at_once to 1."
                )

    def _train_all_weights(self) -> None:
        """Without an adapter: no 4-bit weights, and rates at which a model keeps what it knows,
        unless others are given."""
        for section, name, value in (
            (self.model, "load_in_4bit", False),
            (self.grpo, "learning_rate", FULL_RATE),
            (self.sft, "learning_rate", FULL_RATE),
        ):
            if name not in section.model_fields_set:
                object.__setattr__(section, name, value)

    def as_dict(self) -> dict[str, Any]:
        """All keys, resolved, as plain values: section -> key -> value."""
        return self.model_dump()

    def save(self, path: str | Path) -> Path:
        """Write the resolved parameters as YAML; `RunConfig.load` reads them back equal."""
        return write_yaml(path, self.as_dict(), "all parameters of this run, resolved")

    def with_overrides(self, *overrides: str) -> RunConfig:
        """A copy with `section.key=value` changes; what was worked out is worked out anew."""
        return self._resolve(self.model_dump(exclude_unset=True), overrides)

    def debug(self) -> RunConfig:
        """A copy that runs in seconds, named `<run_name>-debug`: a random two-layer model, and
        everything that costs time made small. Data and search stay what they are."""
        name = self.run_name if self.run_name.endswith("-debug") else f"{self.run_name}-debug"
        values = self.model_dump(exclude_unset=True)
        for section, changes in _DEBUG.items():
            kept = values.setdefault(section, {})
            for k, limit in changes.items():
                now = getattr(getattr(self, section), k)
                small = isinstance(limit, int) and not isinstance(limit, bool)
                kept[k] = min(now, limit) if small and now is not None else limit
        if self.model.init_adapter not in (None, "auto"):
            values["model"]["init_adapter"] = "auto"  # an adapter for another base does not fit
        return self._resolve({**values, "run_name": name[-100:].lstrip(".-")}, ())

    def plugins(self) -> list[str]:
        """The dotted paths (`module:object`) of the user's own parts that the parameters name."""
        named = super().plugins() + [p for s in _sections() for p in getattr(self, s).plugins()]
        return list(dict.fromkeys(named))

    @classmethod
    def describe(cls) -> list[Parameter]:
        """Every key: (section.key, default, unit, range, help)."""
        return cls.parameters() + [row for s in _sections().values() for row in s.parameters()]


# What --debug makes small: whole numbers are upper limits, other values are set.
_DEBUG: dict[str, dict[str, Any]] = {
    "model": {"base_model_path": "debug", "load_in_4bit": False, "dtype": "float32"},
    "lora": {"rank": 4},
    "grpo": {"group_size": 4, "max_new_tokens": 16},
    "training": {"num_epochs": 2, "steps_per_epoch": 2, "max_steps": 4, "batch_size": 1},
    "data": {"max_questions": 24},
    "executor": {"max_prompt_tokens": 1024},
    "rollout": {"engine": "transformers"},
    "evaluation": {"max_states": 4, "max_questions": 4, "epoch_states": 2},
    "sft": {"num_epochs": 1, "max_samples": 8, "batch_size": 4},
}


def load_object(path: str) -> Any:
    """What a dotted path `module:object` names; raises ConfigError where it is not there."""
    if not DOTTED.fullmatch(path):
        raise ConfigError(f"{path!r} is no dotted path; write it as module:object.")
    module_name, _, attributes = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ConfigError(
                f"{path!r}: there is no module {error.name}; check the name, and that it is "
                "installed or stands in the working directory."
            ) from None
        raise
    for name in attributes.split("."):
        if not hasattr(found, name):
            near = nearest(name, dir(found))
            hint = f"did you mean {near}?" if near else "check the name."
            raise ConfigError(f"{path!r}: {module_name} has no {name}; {hint}")
        found = getattr(found, name)
    return found


def named_object(name: str, built_in: Mapping[str, Any], parameter: str) -> Any:
    """What `parameter` names: one of `built_in`, or a user's own object by its dotted path."""
    if name in built_in:
        return built_in[name]
    if ":" in name:
        return load_object(name)
    near = nearest(name, built_in)
    hint = f"; did you mean {near}?" if near else "."
    raise ConfigError(
        f"{parameter} is {name!r}; allowed are {', '.join(built_in)}, or module:object{hint}"
    )


def _sections() -> dict[str, type[Section]]:
    fields = RunConfig.model_fields.items()
    return {name: field.annotation for name, field in fields if field.json_schema_extra is None}


def listed_changes(given: Any) -> list[str]:
    """Overrides as they were given, one text or several, as a list; None is none.

    Raises ConfigError for what is no section.key=value, or has no order (a set).
    """
    if given is None or isinstance(given, str):
        return [given] if given else []
    ordered = isinstance(given, Iterable) and not isinstance(given, (bytes, Mapping, Set))
    changes = list(given) if ordered else [given]
    if not all(isinstance(change, str) for change in changes):
        _refuse_secrets(changes, "overrides")
        raise ConfigError(RunConfig.refusal("overrides", given))
    return changes


def as_mapping(name: Any, given: Any) -> Any:
    """A section that is given as an object, as the keys that it sets; others as they are."""
    section = _sections().get(name)
    if section is not None and isinstance(given, section):
        return given.model_dump(exclude_unset=True)
    return given


def _apply(values: dict[str, Any], change: str) -> None:
    """Set one `section.key=value` in `values`."""
    name, equals, text = change.partition("=")
    section, _, inner = name.strip().rpartition(".")
    if not equals or not inner:
        raise ConfigError(f"the override {change[:60]!r} must look like section.key=value.")
    owner: type[Section] = RunConfig if not section else _sections().get(section)
    if owner is None:
        raise ConfigError(RunConfig.unknown(section))
    if inner not in owner.model_fields or inner == "overrides":
        raise ConfigError(owner.unknown(inner))
    if not section and inner in _sections():
        raise ConfigError(f"{inner} is a section; write {inner}.key=value.")
    value = _override_value(text.strip(), owner, inner)
    if not section:
        values[inner] = value
        return
    kept = values.get(section)
    if kept is None or isinstance(kept, dict):
        values[section] = {**(kept or {}), inner: value}


def _override_value(text: str, owner: type[Section], name: str) -> Any:
    """The text as YAML, but as it stands where the key wants text."""
    value = parse_yaml(text, f"the override of {owner.full(name)}")
    _refuse_secrets({name: value})
    wants_text = owner.model_fields[name].annotation in (str, str | None)
    return text if wants_text and not isinstance(value, (str, type(None))) else value


def _refuse_secrets(value: Any, path: str = "") -> None:
    """Raise ConfigError where a key or a value looks like a secret; the value is never shown."""
    if isinstance(value, dict):
        for name, inner in value.items():
            full = f"{path}.{name}" if path else str(name)
            if _is_secret_key(str(name)):
                raise _secret(full)
            _refuse_secrets(inner, full)
    elif isinstance(value, (list, tuple, Set)):
        for inner in value:
            _refuse_secrets(inner, path)
    elif isinstance(value, str) and _is_secret_text(value):
        raise _secret(path)


def _secret(path: str) -> ConfigError:
    return ConfigError(
        f"{path[:60]} looks like a secret, and papermill writes parameters into its output; "
        "set it in the environment and leave it out here."
    )


def _is_secret_text(text: str) -> bool:
    return bool(_SECRET_VALUE.search(text)) or _has_secret_query(text) or _is_secret_change(text)


def _has_secret_query(text: str) -> bool:
    """Whether an address carries a key: `https://host/v1?api-key=...`."""
    names = (_words(unquote(name)) for name in _QUERY_KEY.findall(text))
    return any(_SECRET_KEY.search(name) or _SECRET_IN_QUERY.search(name) for name in names)


def _is_secret_change(text: str) -> bool:
    name, equals, _ = text.partition("=")
    return bool(equals) and _is_secret_key(name.strip().rpartition(".")[2])


def _is_secret_key(name: str) -> bool:
    known = {k for section in _sections().values() for k in section.model_fields}
    if name in known or name in RunConfig.model_fields:
        return False
    words = _words(name)
    # max_new_token is a slip of the pen, hf_token is not
    return bool(_SECRET_KEY.search(words)) and words + "s" not in known


def _words(name: str) -> str:
    """A name with `_` between its words: apiKey and api-key are api_key."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[-\s.]+", "_", name).lower()


def parameter_table() -> str:
    """All keys as a Markdown table; `docs/parameters.md` is this text."""
    lines = [
        "# Parameters",
        "",
        "Made by `python -m rlkit.config > docs/parameters.md`. A params file holds sections; "
        "`--set section.key=value` changes one value.",
        "",
        "| key | default | unit | range | what it is |",
        "|---|---|---|---|---|",
    ]
    for row in RunConfig.describe():
        default = "null" if row.default is None else shown(row.default).strip("'")
        cells = (f"`{row.key}`", f"`{default}`", row.unit, row.range, row.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(parameter_table(), end="")
