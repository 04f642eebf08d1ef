"""RunConfig: every key has default, unit and range; every mistake is one sentence."""

from __future__ import annotations

import pytest

from rlkit import parameters as p
from rlkit.config import RunConfig, load_object, parameter_table
from rlkit.errors import ConfigError


def refused(**values) -> str:
    with pytest.raises(ConfigError) as error:
        RunConfig.from_sections(**values)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- defaults


def test_the_defaults_are_those_of_the_design():
    config = RunConfig.load()
    fixed = {
        "grpo": dict(
            group_size=4, clip_epsilon=0.2, kl_penalty=0.01, learning_rate=5e-5, temperature=0.7,
            loss_type="grpo", kl_estimator="squared", importance_level="token",
            scale_rewards="group", credit="action", num_iterations=1, clip_epsilon_high=None,
            mask_truncated=False, top_p=1, top_k=0, reuse_prompt_graph="auto",
        ),
        "lora": dict(
            rank=16, alpha=32, dropout=0.1, target_modules=["q_proj", "v_proj", "k_proj", "o_proj"]
        ),
        "reward": dict(
            important_new=2.5, important_seen=0.3, local_new=0.3, local_seen=0.1,
            discard_new=0.0, discard_seen=-0.1,
        ),
        "training": dict(
            num_epochs=5, batch_size=1, steps_per_epoch=10, gradient_accumulation_steps=2,
            max_steps=1000, save_every_n_steps=1, keep_last=3, resume=True,
            gradient_checkpointing=True,
        ),
        "data": dict(
            min_clues_per_round=2, max_samples_per_question=10, train_ratio=0.8, split="hard_first"
        ),
        "search": dict(backend="bm25s", top_k=5, max_clues=4, max_documents=8),
        "model": dict(
            base_model_path="Qwen/Qwen3-8B", vllm_base_url="http://127.0.0.1:8000/v1",
            load_in_4bit=True, init_adapter=None, enable_thinking=False,
        ),
        "monitoring": dict(use_tensorboard=True, use_wandb=False),
        "executor": dict(plain_lines=True),
    }  # fmt: skip
    resolved = config.as_dict()
    for section, keys in fixed.items():
        assert {name: resolved[section][name] for name in keys} == keys
    assert (config.seed, config.task, config.overrides) == (7, "search", [])


def test_every_key_has_a_unit_a_range_and_a_help():
    rows = RunConfig.describe()
    flat = {f"{s}.{k}" for s, keys in RunConfig().as_dict().items() if isinstance(keys, dict)
            for k in keys}  # fmt: skip
    assert {row.key for row in rows} == flat | {
        "run_name", "seed", "task", "output_root", "overrides"
    }  # fmt: skip
    assert all(row.unit and row.range and row.help for row in rows)
    assert "range: a whole number from 2" in (
        type(RunConfig().grpo).model_fields["group_size"].description
    )


def test_every_default_passes_its_own_checks():
    defaults = RunConfig().as_dict()
    assert RunConfig.from_sections(**defaults).as_dict() == defaults


def test_the_table_in_the_docs_is_the_table_of_the_code(root):
    written = (root / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert written == parameter_table(), "run: python -m rlkit.config > docs/parameters.md"


# ---- merging, coercion, overrides


def test_a_section_merges_onto_the_defaults_and_empty_ones_change_nothing():
    config = RunConfig.from_sections(grpo={"group_size": 8}, search={}, lora=None)
    assert (config.grpo.group_size, config.grpo.temperature) == (8, 0.7)
    assert config.with_overrides("grpo.group_size=4") == RunConfig()


def test_overrides_change_single_values_in_order_and_are_then_gone():
    config = RunConfig.from_sections(
        grpo={"group_size": 8},
        overrides=["grpo.temperature=1", "seed=3", "grpo.learning_rate=1e-5", "seed=4"],
    )
    assert (config.grpo.group_size, config.grpo.temperature) == (8, 1.0)
    assert (config.grpo.learning_rate, config.seed, config.overrides) == (1e-5, 4, [])


def test_overrides_take_yaml_values_and_leave_text_as_text():
    config = RunConfig().with_overrides(
        "lora.target_modules=[q_proj, v_proj]", "run_name=007", "model.init_adapter=null",
        "training.resume=false", "data.corpus_path=a=b#c",
    )  # fmt: skip
    assert config.lora.target_modules == ["q_proj", "v_proj"]
    assert (config.run_name, config.model.init_adapter) == ("007", None)
    assert (config.training.resume, config.data.corpus_path) == (False, "a=b#c")


def test_a_single_override_may_be_text_since_papermill_passes_text():
    assert RunConfig.from_sections(overrides="seed=3").seed == 3


@pytest.mark.parametrize("given", ["seed=3", ["seed=3"], ("seed=3",)])
def test_overrides_count_however_they_are_given_and_are_never_left_for_later(given, tmp_path):
    made = [
        RunConfig(overrides=given),
        RunConfig.model_validate({"overrides": given}),
        RunConfig.from_sections(overrides=given),
        RunConfig.load(None, given),
        RunConfig().with_overrides(*([given] if isinstance(given, str) else given)),
    ]
    for config in made:
        assert (config.seed, config.overrides) == (3, [])
        assert RunConfig.load(config.save(tmp_path / "config.yaml")) == config


def test_a_section_given_as_an_object_is_overridden_like_a_mapping():
    given = RunConfig.from_sections(grpo={"group_size": 8, "loss_type": "gspo"}).grpo
    config = RunConfig(grpo=given, overrides=["grpo.temperature=1"])
    assert (config.grpo.group_size, config.grpo.temperature) == (8, 1.0)
    assert "grpo must be a mapping of keys to values, not LoraSection" in refused(
        grpo=p.LoraSection()
    )
    back = config.with_overrides("grpo.loss_type=grpo")  # what was worked out is so anew
    assert back.grpo.importance_level == "token"
    assert (given.temperature, given.group_size) == (0.7, 8)


def test_a_file_comes_first_then_its_overrides_then_the_callers(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("seed: 1\ngrpo:\n  learning_rate: 1e-5\noverrides: [seed=2]\n")
    assert RunConfig.load(path).seed == 2
    assert RunConfig.load(path, ["seed=3"]).seed == 3
    assert RunConfig.load(path).grpo.learning_rate == 1e-5


@pytest.mark.parametrize("given", ["1e-5", " 0.00001 ", 1e-5, "1E-05"])
def test_numbers_that_came_as_text_are_numbers(given):
    assert RunConfig.from_sections(grpo={"learning_rate": given}).grpo.learning_rate == 1e-5


def test_whole_numbers_may_be_text_or_whole_floats_but_not_broken_ones():
    assert RunConfig.from_sections(grpo={"group_size": "8"}).grpo.group_size == 8
    assert RunConfig.from_sections(training={"max_steps": "1e3"}).training.max_steps == 1000
    weights = RunConfig.from_sections(answers={"reward_weights": ["1e-3"]}).answers.reward_weights
    assert weights == [0.001]
    assert RunConfig.from_sections(grpo={"group_size": 8.0}).grpo.group_size == 8
    assert "grpo.group_size is 2.5" in refused(grpo={"group_size": 2.5})


@pytest.mark.parametrize("given", [float("nan"), float("inf"), ".inf", "nan", "1e999", True, None])
def test_what_is_no_finite_number_is_refused(given):
    assert "grpo.kl_penalty is" in refused(grpo={"kl_penalty": given})


def test_a_saved_config_reads_back_equal(tmp_path):
    config = RunConfig.from_sections(
        grpo={"loss_type": "gspo", "learning_rate": 1e-7}, run_name="r1"
    )
    assert RunConfig.load(config.save(tmp_path / "config.yaml")) == config


# ---- mistakes


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"grop": {}}, "grop is neither a section nor a parameter; did you mean grpo?"),
        ({"grpo": {"group_sise": 4}},
         "grpo.group_sise is not a parameter; did you mean grpo.group_size?"),
        ({"group_size": 4}, "group_size is a key of grpo; write grpo.group_size."),
        ({"merge": {"x": 1}},
         "merge.x is not a parameter; its keys are checkpoints, output_dir, dtype."),
        ({"grpo": {"group_size": "four"}},
         "grpo.group_size is 'four'; allowed is a whole number from 2 to 1024."),
        ({"grpo": {"clip_epsilon": 1.5}},
         "grpo.clip_epsilon is 1.5; allowed is a number above 0 and below 1."),
        ({"search": {"b": -0.1}}, "search.b is -0.1; allowed is a number from 0 to 1."),
        ({"training": {"num_epochs": 0}},
         "training.num_epochs is 0; allowed is a whole number of at least 1."),
        ({"data": {"split": "hard-first"}}, "data.split is 'hard-first'; allowed is "
         "hard_first | random | stratified; did you mean hard_first?"),
        ({"search": {"backend": "bm25"}}, "search.backend is 'bm25'; allowed is "
         "bm25s | rank-bm25 | opensearch | module:object; did you mean bm25s?"),
        ({"training": {"resume": "perhaps"}},
         "training.resume is 'perhaps'; allowed is true | false."),
        ({"grpo": [1]}, "grpo must be a mapping of keys to values, not [1]."),
        ({"lora": {"target_modules": [1]}},
         "lora.target_modules is [1]; allowed is a list of names."),
        ({"overrides": ["seed"]}, "the override 'seed' must look like section.key=value."),
        ({"overrides": ["grpo=1"]}, "grpo is a section; write grpo.key=value."),
        ({"overrides": ["gppo.kl_penalty=1"]},
         "gppo is neither a section nor a parameter; did you mean grpo?"),
        ({"overrides": {"a": 1}}, "overrides is {'a': 1}; allowed is a list of section.key=value."),
        ({"overrides": {"seed=3"}},
         "overrides is {'seed=3'}; allowed is a list of section.key=value."),
        ({"overrides": [["seed=3"]]},
         "overrides is [['seed=3']]; allowed is a list of section.key=value."),
        ({"overrides": 3}, "overrides is 3; allowed is a list of section.key=value."),
        ({"lora": {"target_modules": {"q_proj"}}},
         "lora.target_modules is {'q_proj'}; allowed is a list of names."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_that_says_what_is_allowed(values, sentence):
    assert refused(**values) == sentence


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "-x", "", "a b", "x\n", "x" * 101])
def test_a_run_name_cannot_leave_the_outputs(name):
    assert "run_name is" in refused(run_name=name)


def test_a_value_set_later_is_no_way_around_the_checks():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().grpo.group_size = 0


# ---- combinations


def test_gspo_means_sequence_and_refuses_token():
    assert RunConfig.from_sections(grpo={"loss_type": "gspo"}).grpo.importance_level == "sequence"
    assert "does not go with grpo.importance_level token" in refused(
        grpo={"loss_type": "gspo", "importance_level": "token"}
    )
    back = RunConfig.from_sections(grpo={"loss_type": "gspo"}).with_overrides("grpo.loss_type=grpo")
    assert back.grpo.importance_level == "token"


def test_k1_and_truncated_sampling_are_refused_with_the_reason():
    assert "no gradient on-policy" in refused(grpo={"kl_estimator": "k1"})
    assert "support of the log-probabilities" in refused(grpo={"top_p": 0.9})
    assert "support of the log-probabilities" in refused(grpo={"top_k": 50})


def test_a_source_names_the_paths_that_it_needs():
    said = refused(data={"source": "library", "corpus_path": "c.jsonl"})
    assert said.startswith("data.source is 'library', which needs data.questions_path;")
    assert "data.rounds_path" in refused(data={"source": "rounds"})


def test_credit_by_clue_needs_clues():
    assert "grpo.credit" in refused(task="answers", grpo={"credit": "clue"})


def test_invalid_is_worked_out_below_the_worst_valid_action():
    # 4 clues, 5 hits each, -0.1 for a seen DISCARD: 4 * 5 * -0.1 - 0.1
    assert RunConfig().reward.invalid == -2.1
    # 3 * 3 * -0.5 - 0.1
    config = RunConfig.from_sections(
        reward={"discard_new": -0.5}, search={"max_clues": 3, "top_k": 3}
    )
    assert config.reward.invalid == -4.6
    # nothing is negative: 0 - 0.1
    assert RunConfig.from_sections(reward={"discard_seen": 0}).reward.invalid == -0.1
    assert RunConfig.from_sections(reward={"invalid": -5}).reward.invalid == -5
    assert "reward.invalid is -2.0; allowed is at most -2.1" in refused(reward={"invalid": -2})


def test_invalid_follows_when_a_saved_config_is_changed(tmp_path):
    saved = RunConfig.load(RunConfig().save(tmp_path / "c.yaml"))
    assert saved.with_overrides("search.max_clues=8").reward.invalid == -4.1


# ---- secrets


@pytest.mark.parametrize(
    "values",
    [
        {"api_key": "x"},
        {"model": {"hf_token": "x"}},
        {"model": {"apiKey": "x"}},
        {"monitoring": {"wandb-api-key": "x"}},
        {"monitoring": {"deep": {"password": "x"}}},
        {"overrides": ["model.api_key=x"]},
        {"overrides": ["monitoring.wandb_project=sk-abcdefgh12345678"]},
        {"model": {"base_model_path": "hf_abcdefghijklmnop"}},
        {"monitoring": {"wandb_project": "ghp_abcdefghijklmnop"}},
        {"monitoring": {"wandb_project": "AKIAABCDEFGHIJKLMNOP"}},
        {"model": {"checker_model": "Bearer abc"}},
        {"model": {"vllm_base_url": "http://me:secret@host/v1"}},
        {"lora": {"target_modules": ["q_proj", "sk-abcdefgh12345678"]}},
        {"lora": {"target_modules": {"sk-abcdefgh12345678"}}},
        {"overrides": "monitoring.wandb_project=sk-abcdefgh12345678"},
        {"overrides": ("monitoring.wandb_project=sk-abcdefgh12345678",)},
        {"overrides": {"a": "sk-abcdefgh12345678"}},
        {"monitoring": p.MonitoringSection(wandb_project="sk-abcdefgh12345678")},
        {"model": {"vllm_base_url": "https://abcdefgh@host/v1"}},
        {"model": {"vllm_base_url": "https://host/v1?api-key=abcdefgh"}},
        {"model": {"vllm_base_url": "https://host/v1?v=1&apikey=abcdefgh"}},
        {"model": {"vllm_base_url": "https://host/v1?access_token=abcdefgh"}},
        {"model": {"vllm_base_url": "https://host/v1#accessToken=abcdefgh"}},
        {"model": {"vllm_base_url": "https://host/v1?Subscription-Key=abcdefgh"}},
        {"data": {"corpus_path": "https://host/c.jsonl?se=2030&sig=abcdefgh"}},
        {"data": {"corpus_path": "https://host/c?X-Amz-Signature=abcdefgh"}},
        {"data": {"corpus_path": "https://host/c?X-Amz-Credential=abcdefgh"}},
        {"data": {"corpus_path": "https://host/c?api%5Fkey=abcdefgh"}},
    ],
)
def test_a_secret_is_refused_and_never_shown(values):
    said = refused(**values)
    assert "set it in the environment" in said
    for value in ("abcdefgh", "ABCDEFGH", "me:secret", "Bearer abc"):
        assert value not in said


def test_what_only_resembles_a_secret_is_allowed():
    config = RunConfig.from_sections(
        grpo={"max_new_tokens": 64},
        model={
            "base_model_path": "models/hf_checkpoints/risk-assessment",
            "vllm_base_url": "http://host:8000/v1?keyboard=us&tokens=5&version=2",
        },
        data={"corpus_path": "hf://datasets/owner/name@main/corpus.jsonl"},
    )
    assert config.grpo.max_new_tokens == 64
    assert "did you mean grpo.max_new_tokens?" in refused(grpo={"max_new_token": 64})


# ---- files


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 1\nseed: 2\n", r"p\.yaml, line 2: the key 'seed' stands twice"),
        ("grpo:\n  group_size: 8\n  group_size: 4\n", r"p\.yaml, line 3: the key 'group_size'"),
        ("grpo:\n  group_size: [8\n", r"p\.yaml, line \d"),
        ("- seed\n", r"p\.yaml holds \['seed'\]"),
        ("seed: !!python/object/apply:os.getcwd []\n", r"p\.yaml, line 1"),
        ("grop:\n  group_size: 8\n", r"p\.yaml: grop is neither .* did you mean grpo\?"),
        ("grpo:\n  kl_penalty: .nan\n", r"grpo\.kl_penalty is nan"),
        ("grpo: &a {group_size: *a}\n", r"p\.yaml has .* one that holds itself"),
        ("overrides: &a [*a]\n", r"p\.yaml has .* one that holds itself"),
        ("1: 2\n", r"p\.yaml: 1 is neither a section nor a parameter"),
        ("~: 2\n", r"p\.yaml: None is neither a section nor a parameter"),
        ("run_name: !!timestamp foo\n", r"p\.yaml: not readable as YAML"),
        ('output_root: "a\\0b"\n', r"output_root is .* neither NUL nor half"),
        ('data: {collectors: ["\\ud800"]}\n', r"data\.collectors is .* neither NUL nor half"),
    ],
)
def test_a_damaged_params_file_is_named(tmp_path, text, sentence):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.load(tmp_path / "p.yaml")


def test_anchors_that_multiply_beyond_measure_are_refused_at_once(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"p\.yaml has more than 100000 values"):
        RunConfig.load(tmp_path / "p.yaml")


def test_a_missing_params_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        RunConfig.load(tmp_path / "none.yaml")


def test_a_syntax_error_never_quotes_the_file(tmp_path):
    (tmp_path / "p.yaml").write_text("api_key: sk-abcdefgh12345678: x\n")
    with pytest.raises(ConfigError) as error:
        RunConfig.load(tmp_path / "p.yaml")
    assert "sk-abc" not in str(error.value)


def test_an_empty_params_file_and_an_empty_section_are_the_defaults(tmp_path):
    (tmp_path / "p.yaml").write_text("")
    assert RunConfig.load(tmp_path / "p.yaml") == RunConfig()
    (tmp_path / "p.yaml").write_text("grpo:\n")
    assert RunConfig.load(tmp_path / "p.yaml") == RunConfig()


# ---- debug, dotted paths


def test_debug_shrinks_any_config_and_keeps_its_data():
    config = RunConfig.from_sections(
        run_name="big",
        model={"init_adapter": "some/adapter"},
        data={"source": "rounds", "rounds_path": "r"},
        reward={"local_new": 0.1},
        grpo={"group_size": 16, "max_new_tokens": 8},
    )
    small = config.debug()
    assert small.run_name == "big-debug" and small.debug() == small
    assert small.model.base_model_path == "debug" and small.model.init_adapter == "auto"
    assert (small.grpo.group_size, small.grpo.max_new_tokens) == (4, 8)
    assert small.training.num_epochs * small.training.steps_per_epoch == 4
    assert (small.data.rounds_path, small.reward.local_new) == ("r", 0.1)


def test_a_dotted_path_loads_and_its_mistakes_are_named():
    assert load_object("rlkit.config:RunConfig.load") == RunConfig.load
    for path, said in [
        ("rlkit.config", "no dotted path"),
        ("rlkit.confg:RunConfig", "there is no module rlkit.confg"),
        ("rlkit.config:RunConfg", "did you mean RunConfig?"),
    ]:
        with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
            load_object(path)


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), "inf", "nan", True, None, 1001, "a"])
def test_numbers_in_a_list_are_checked_like_single_ones(bad):
    with pytest.raises(ConfigError, match="allowed is a list of numbers from -1000 to 1000"):
        RunConfig.from_sections(answers={"reward_weights": [bad]})
    with pytest.raises(ConfigError, match="merge.checkpoints is .*; allowed is a list of whole"):
        RunConfig.from_sections(merge={"checkpoints": [0.5 if bad == 1001 else bad]})


def test_null_steps_an_epoch_are_one_pass_and_null_max_steps_no_limit():
    def steps(states, **training):
        found = RunConfig.from_sections(training=training).training
        return found.epoch_steps(states), found.total_steps(states)

    one_pass = {"steps_per_epoch": None, "num_epochs": 3, "batch_size": 4}
    assert steps(10, **one_pass) == (3, 9)
    assert steps(4000, **one_pass) == (1000, 1000)
    assert steps(4000, **one_pass, max_steps=None) == (1000, 3000)
    assert steps(10, num_epochs=2) == (10, 20)
