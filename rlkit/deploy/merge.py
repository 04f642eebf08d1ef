"""From checkpoints to model folders that can be served: the adapter is merged into the base.

The base is loaded unquantised in float32 on the CPU, `W + (alpha / r) · B A` is computed in
float32, then cast and saved with tokenizer, chat template and generation config. Each merge proves
itself: on a few prompts the logits of the merged model must equal those of base and adapter to
1e-4 in float32, and those of the model reloaded from disk in its saved dtype are compared and
reported. The figures are printed and stored as `merge.json` in the model's folder.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import peft
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn

from rlkit.config import RunConfig
from rlkit.errors import ModelError, RunError
from rlkit.files import new_folder, write_json
from rlkit.run import Run
from rlkit.training.adapters import check_adapter
from rlkit.training.checkpointing import PREFIX, checkpoint_steps
from rlkit.training.models import resolve_base_model
from rlkit.training.precision import DTYPES

TOLERANCE = 1e-4  # of logits: a right merge moves them by 1e-5, a wrong one by far more
CERTIFICATE = "merge.json"
PROMPTS = (
    "Question: Which river flows through the city where the composer of the opera was born?\n",
    "<search_clues><clue>founder of the harbour company</clue><clue>born in 1872</clue>",
    "问题：这部小说的作者出生在哪座城市？\n",
)


@dataclass(frozen=True)
class MergeReport:
    """What was merged, and how far the merged model's logits are from base and adapter's."""

    base: str
    adapter: str
    output: str
    dtype: str
    rank: int
    alpha: float
    prompts: int
    tokens: int
    float32_max_difference: float  # of logits, merged in memory in float32
    saved_max_difference: float  # of logits, reloaded from disk in `dtype`
    saved_mean_difference: float
    saved_top1_agreement: float  # share of positions with the same most likely next token
    float64_max_difference: float | None = None  # only where float32 cannot tell it from rounding

    def __str__(self) -> str:
        return (
            f"{Path(self.output).name}: logits differ from base and adapter by at most "
            f"{self.float32_max_difference:.1e} in float32{self._exact()} (allowed "
            f"{TOLERANCE:.0e}); reloaded from disk in {self.dtype} by at most "
            f"{self.saved_max_difference:.1e}, on average {self.saved_mean_difference:.1e}, same "
            f"next token at "
            f"{self.saved_top1_agreement:.1%} (n = {self.tokens} tokens of {self.prompts} prompts)"
        )

    def _exact(self) -> str:
        exact = self.float64_max_difference
        return "" if exact is None else f", which is rounding, and by {exact:.1e} in float64"


def merge_run(
    config: RunConfig,
    checkpoints: Sequence[int] | None = None,
    output_dir: str | Path | None = None,
) -> list[Path]:
    """Merge checkpoints of a run: those listed, else those of `merge.checkpoints`, else all.

    Each goes to `<output_dir>/<base>-grpo-step<N>`, by default under `merged/` in the run's
    folder. An output that is there already is named and left as it is. Returns the folders.

    Raises RunError where there is no run or no such checkpoint, ModelError as
    `merge_lora_to_base`.
    """
    run = Run.open(config, create=False)
    folder = run.checkpoints_folder
    there = {step: folder / f"{PREFIX}{step}" for step in checkpoint_steps(folder)}
    steps = list(dict.fromkeys(checkpoints or config.merge.checkpoints or there))
    missing = [step for step in steps if step not in there]
    if missing or not steps:
        listed = ", ".join(str(step) for step in there) or "none"
        asked = f"no checkpoint of step {missing[0]}" if missing else "no checkpoint to merge"
        raise RunError(f"{folder} holds {asked}; there are: {listed}.")
    base = config.model.base_model_path
    root = Path(output_dir or config.merge.output_dir or run.merged_folder)
    outputs = {step: root / f"{_short(base)}-grpo-step{step}" for step in steps}
    for step, output in outputs.items():
        if output.exists():
            print(f"{output} exists already and is left as it is")
            continue
        if not config.lora.enabled:
            print(export_model(there[step], output, config.merge.dtype))
            continue
        print(f"merging step {step} of {', '.join(map(str, steps))} ...")
        merge_lora_to_base(
            base,
            there[step],
            output,
            config.merge.dtype,
            trust_remote_code=config.model.trust_remote_code,
        )
    return list(outputs.values())


def export_model(checkpoint: Path, output: Path, dtype: str) -> str:
    """A checkpoint of all weights is a model already: saved in `dtype` with its tokenizer, and
    without what only training needs. Returns a line that says so."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=DTYPES[dtype])
    with new_folder(output) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / CERTIFICATE, {"checkpoint": str(checkpoint), "dtype": dtype})
    return f"{output.name}: all weights were trained, so nothing was merged; saved in {dtype}"


def merge_lora_to_base(
    base_path: str | Path,
    adapter_path: str | Path,
    output_path: str | Path,
    dtype: str = "bfloat16",
    *,
    trust_remote_code: bool = False,
) -> MergeReport:
    """Merge one adapter into its base and save the whole model as `output_path`.

    `dtype` is float32, bfloat16 or float16. The folder appears whole, or not at all.

    Raises RunError where `output_path` exists, and ModelError where the base is quantised, where
    the adapter was trained on another base, is damaged, or where the merged logits differ.
    """
    output = Path(output_path)
    if output.exists():
        raise RunError(f"{output} exists already and is never overwritten; move it away.")
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
    source = resolve_base_model(base_path)
    _check_base(source, str(base_path), Path(adapter_path), trust_remote_code)
    model, tokenizer = _load_base(source, str(base_path), trust_remote_code)
    prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS]
    adapted = _with_adapter(model, Path(adapter_path))
    lora = adapted.peft_config["default"]
    before = _logits(adapted, prompts)
    merged = _merged(adapted, Path(adapter_path))
    in_float32 = _difference(before, _logits(merged, prompts))[0]
    in_float64 = None
    if not in_float32 <= TOLERANCE:
        again, _ = _load_base(source, str(base_path), trust_remote_code)
        in_float64 = _float64_difference(_with_adapter(again, Path(adapter_path)), merged, prompts)
        del again
    exact = in_float32 if in_float64 is None else in_float64
    if not exact <= TOLERANCE:
        raise ModelError(
            f"merging {adapter_path} into {base_path} changes the logits by {exact:.1e}, more than "
            f"{TOLERANCE:.0e}; the merged model would not be the trained one, so nothing was saved."
        )
    with new_folder(output) as temporary:
        merged.to(DTYPES[dtype]).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        del model, adapted, merged  # so that two copies are never in memory at once
        gc.collect()
        saved = _difference(before, _logits(_reload(temporary, dtype, trust_remote_code), prompts))
        if not math.isfinite(saved[0]):
            raise ModelError(f"{base_path} does not fit into {dtype}; merge it as bfloat16.")
        report = MergeReport(
            base=str(base_path),
            adapter=str(adapter_path),
            output=str(output),
            dtype=dtype,
            rank=lora.r,
            alpha=lora.lora_alpha,
            prompts=len(prompts),
            tokens=sum(prompt.shape[1] for prompt in prompts),
            float32_max_difference=in_float32,
            float64_max_difference=in_float64,
            saved_max_difference=saved[0],
            saved_mean_difference=saved[1],
            saved_top1_agreement=saved[2],
        )
        write_json(temporary / CERTIFICATE, {"schema": 1, **asdict(report)})
    print(report)
    return report


def _short(name: str) -> str:
    """The last part of a hub id or a path, which names what is merged."""
    return str(name).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]


def _check_base(source: str, base: str, adapter: Path, trust_remote_code: bool) -> None:
    """Find an adapter for another base before any weight is loaded.

    Names are compared by their last part, so that a model folder may have been moved; shapes on
    an empty model. Raises ModelError naming both bases.
    """
    config = _pretrained(transformers.AutoConfig, source, base, trust_remote_code=trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            f"{base} is quantised, and merging into it would lose the update; give the unquantised "
            "base, such as the repository that it was quantised from."
        )
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(
            config, trust_remote_code=trust_remote_code
        )
    check_adapter(adapter, empty, base)
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    trained_on = settings.get("base_model_name_or_path")
    if trained_on and not _same_base(trained_on, base, source):
        raise ModelError(
            f"the adapter at {adapter} was trained on {trained_on!r}, not on {base!r}; give the "
            "base that it was trained on."
        )


def _same_base(trained_on: str, base: str, source: str) -> bool:
    if _short(trained_on).casefold() == _short(base).casefold():
        return True
    try:
        other = resolve_base_model(trained_on)
    except ModelError:  # a folder that is gone: its name is all there is to compare
        return False
    return Path(other).resolve() == Path(source).resolve()


def _load_base(
    source: str, base: str, trust_remote_code: bool
) -> tuple[nn.Module, transformers.PreTrainedTokenizerBase]:
    transformers.utils.logging.disable_progress_bar()
    tokenizer = _pretrained(
        transformers.AutoTokenizer, source, base, trust_remote_code=trust_remote_code
    )
    model = _pretrained(
        transformers.AutoModelForCausalLM,
        source,
        base,
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
    )
    return model.eval(), tokenizer


def _pretrained(kind: type, source: str, base: str, **options):
    try:
        return kind.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"the model {base!r} cannot be loaded: {lines[0][:300]}") from error


def _with_adapter(model: nn.Module, adapter: Path) -> peft.PeftModel:
    try:
        return peft.PeftModel.from_pretrained(model, str(adapter)).eval()
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"the adapter at {adapter} cannot be loaded: {lines[0][:300]}") from error


def _merged(adapted: peft.PeftModel, adapter: Path) -> nn.Module:
    try:
        return adapted.merge_and_unload(safe_merge=True)
    except ValueError as error:  # PEFT's own check that every merged weight is finite
        raise ModelError(f"the adapter at {adapter} cannot be merged: {error}") from error


def _reload(folder: Path, dtype: str, trust_remote_code: bool) -> nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], trust_remote_code=trust_remote_code
    )
    return model.eval()


def _float64_difference(adapted: nn.Module, merged: nn.Module, prompts: Sequence[Tensor]) -> float:
    """The largest logit difference when both models compute in float64.

    In float32 thirty layers and logits of 40 round by about 1e-4 by themselves (SmolLM2:
    1.2e-04 in float32, 1.7e-05 in float64); here only the merge itself can differ. `merged` comes
    back in float32, unchanged, since float32 to float64 and back is exact.
    """
    after = _logits(merged.double(), prompts)
    merged.float()
    return _difference(_logits(adapted.double(), prompts), after)[0]


@torch.no_grad()
def _logits(model: nn.Module, prompts: Sequence[Tensor]) -> list[Tensor]:
    """For each prompt (1, P) its logits (P, V) in float32, or float64 where the model is."""
    logits = [model(input_ids=prompt).logits[0] for prompt in prompts]
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in logits]


def _difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float, float, float]:
    """Largest and mean absolute difference of logits, and the share of equal top-1 tokens."""
    a, b = torch.cat(list(before)), torch.cat(list(after))  # (T, V)
    gap = (a - b).abs()
    same = (a.argmax(-1) == b.argmax(-1)).float().mean()
    return float(gap.max()), float(gap.mean()), float(same)
