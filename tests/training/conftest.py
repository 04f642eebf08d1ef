"""A two-layer model and a task of letters, so that a whole training step takes milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import peft
import pytest
import torch
from transformers import Qwen3ForCausalLM

from rlkit.config import RunConfig
from rlkit.practice.task import Score
from rlkit.run import Run
from rlkit.training import attention
from rlkit.training.models import byte_tokenizer, debug_config
from rlkit.training.ranks import Ranks
from rlkit.training.trainer import GRPOTrainer

# The 16 values of nf4 (QLoRA, arXiv 2305.14314, appendix E).
NF4 = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
]  # fmt: skip


@dataclass(frozen=True)
class LetterState:
    state_id: str
    question_id: str = "q"


class LetterTask:
    """Rewards the share of letters a to m in a completion; `hidden` completions are unscorable."""

    def __init__(self, count: int = 6, reward=None) -> None:
        self._states = [LetterState(f"s{i}") for i in range(count)]
        self._reward = reward or (lambda k, text: round(sum("a" <= c <= "m" for c in text) / 8, 6))

    def states(self, split: str) -> list[LetterState]:
        return {"train": self._states, "dev": self._states[:2], "eval": self._states[2:4]}[split]

    def prompt(self, state: LetterState) -> list[dict[str, str]]:
        return [
            {
                "role": "user",
                "content": f"write letters for {state.state_id}" + "!" * len(state.state_id),
            }
        ]

    def score(self, state: LetterState, completions) -> list[Score]:
        return [
            Score(self._reward(k, text), {"length": len(text)})
            for k, text in enumerate(completions)
        ]


def tiny_base(seed: int = 0, **changes) -> Qwen3ForCausalLM:
    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    config = debug_config(len(tokenizer), attn_implementation=attention.NAME, **changes)
    return Qwen3ForCausalLM(config).eval()


def with_lora(base, seed: int = 1, spread: float = 0.2):
    """A LoRA adapter whose B matrices are not 0, so that gradients reach every tensor."""
    torch.manual_seed(seed)
    lora = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]
    )
    model = peft.get_peft_model(base, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name and spread:
            torch.nn.init.normal_(parameter, std=spread)
    return model.eval()


def in_float64(model):
    """The model in float64 throughout: transformers' RMS norms step down to float32 by default."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            shift = 1.0 if type(module).__name__ == "Gemma3RMSNorm" else 0.0
            epsilon = getattr(module, "variance_epsilon", None) or module.eps
            module.forward = _norm(module, shift, epsilon)
    return model


def _norm(module, shift: float, epsilon: float):
    def forward(x):
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + epsilon) * (shift + module.weight)

    return forward


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads only wait for each other on matrices this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def model():
    return with_lora(tiny_base())


def tiny_config(tmp_path, **grpo) -> RunConfig:
    return RunConfig.from_sections(
        run_name="tiny",
        output_root=str(tmp_path),
        model={"base_model_path": "debug", "load_in_4bit": False},
        lora={"rank": 4, "alpha": 8},
        grpo={"group_size": 4, "max_new_tokens": 8, "learning_rate": 1e-2, "temperature": 1.0}
        | grpo,
        training={"num_epochs": 2, "steps_per_epoch": 3, "gradient_checkpointing": False},
        monitoring={"use_tensorboard": False},
    )


def tiny_trainer(
    config: RunConfig, task=None, model=None, run: bool = True, ranks: Ranks | None = None
) -> GRPOTrainer:
    opened = Run.open(config) if run else None
    model = model or with_lora(tiny_base(), spread=0.0)
    return GRPOTrainer(
        config,
        task or LetterTask(),
        model,
        byte_tokenizer(),
        opened,
        log=lambda _: None,
        ranks=ranks,
    )
