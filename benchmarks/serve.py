"""Tokens a second of our server: eight clients at once against one, and transformers beside it.

    python benchmarks/serve.py --requests 64

The server is `python -m rlkit serve` in a process of its own. One client sends all requests, one
after the other; then eight send the same ones, each its next as soon as it is answered. The peer
is `transformers.generate`, one prompt at a time in a process of its own, without HTTP. All are
greedy, so that the texts can be compared.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.measure import answer_job, run_child  # noqa: E402
from benchmarks.publish import publish  # noqa: E402

MODEL = "smollm2-135m-instruct"
ASKED = ("What is", "Write three sentences about", "Explain to a child", "Give two facts about")
THINGS = ("a river", "gravity", "honey", "the moon", "a library", "rain", "a bridge", "salt")
TICKS = os.sysconf("SC_CLK_TCK")


def prompts(count: int) -> list[str]:
    pairs = [f"{asked} {thing}." for thing, asked in product(THINGS, ASKED)]
    return [pairs[i % len(pairs)] for i in range(count)]


class Server:
    """`python -m rlkit serve`, for as long as a `with` block lasts."""

    def __init__(self, model: str, threads: int) -> None:
        env = {name: v for name, v in os.environ.items() if not name.startswith("RLKIT_")}
        env |= {"OMP_NUM_THREADS": str(threads), "RLKIT_DTYPE": "float32", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-u", "-m", "rlkit", "serve", "--model", model, "--port", "0"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
        lines = iter(self._process.stdout.readline, "")
        self.url = next(m[0] for line in lines if (m := re.search(r"http://\S+:\d+", line)))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def processor_seconds(self) -> float:
        """Of the server's process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def load(self, texts: list[str], clients: int, tokens: int) -> dict[str, Any]:
        """What so many clients measure that share the texts."""
        with httpx.Client(base_url=self.url, timeout=600, trust_env=False) as client:

            def ask(text: str) -> tuple[str, int, float]:
                start = time.perf_counter()
                body = {"text": text, "max_tokens": tokens, "temperature": 0}
                answer = client.post("/generate", json=body).raise_for_status().json()
                return answer["text"], answer["completion_tokens"], time.perf_counter() - start

            start, cpu = time.perf_counter(), self.processor_seconds()
            with ThreadPoolExecutor(clients) as pool:
                found = list(pool.map(ask, texts))
            seconds, cpu = time.perf_counter() - start, self.processor_seconds() - cpu
        texts, counts, waits = zip(*found, strict=True)
        p50, p99 = np.percentile(waits, [50, 99])
        return _side(sum(counts), seconds, cpu) | {"p50": p50, "p99": p99, "texts": texts}


def _side(tokens: int, seconds: float, cpu: float) -> dict[str, Any]:
    return {
        "tokens": tokens, "seconds": seconds, "processor_seconds": cpu,
        "tokens_a_second": tokens / seconds, "tokens_a_processor_second": tokens / cpu,
    }  # fmt: skip


def peer(job: dict[str, Any]) -> dict[str, Any]:
    """transformers' own `generate` with its own attention, one prompt after the other."""
    import torch
    import transformers

    from rlkit.training.models import resolve_base_model
    from rlkit.training.text import decode, encode_prompt

    folder = resolve_base_model(job["model"])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    ids = [encode_prompt(tokenizer, [{"role": "user", "content": t}]) for t in job["texts"]]

    def write(prompt: list[int], tokens: int) -> list[int]:
        inputs = torch.tensor([prompt])
        new = model.generate(
            input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens,
            do_sample=False,
        )  # fmt: skip
        return new[0, len(prompt) :].tolist()

    write(ids[0], 4)
    start, cpu, waits, answers = time.perf_counter(), time.process_time(), [], []
    for prompt in ids:
        before = time.perf_counter()
        answers.append(write(prompt, job["tokens"]))
        waits.append(time.perf_counter() - before)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    p50, p99 = np.percentile(waits, [50, 99])
    side = _side(sum(map(len, answers)), seconds, cpu)
    return side | {"p50": p50, "p99": p99, "texts": [decode(tokenizer, a) for a in answers]}


def table(sides: dict[str, dict[str, Any]]) -> str:
    lines = ["| | tokens | tokens/s | tokens per processor second | p50 s | p99 s |"]
    lines.append("|---|---|---|---|---|---|")
    return "\n".join(
        lines
        + [
            f"| {name} | {s['tokens']} | {s['tokens_a_second']:.1f} | "
            f"{s['tokens_a_processor_second']:.1f} | {s['p50']:.2f} | {s['p99']:.2f} |"
            for name, s in sides.items()
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of the model, on every side")
    parser.add_argument("--note", default="", help="kept with the result, such as: busy machine")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/serve.json")
    options = parser.parse_args()
    texts = prompts(options.requests)
    with Server(options.model, options.threads) as server:
        server.load(texts[: options.clients], options.clients, 4)  # not counted
        many = server.load(texts, options.clients, options.tokens)
        one = server.load(texts, 1, options.tokens)
    job = {"model": options.model, "texts": texts, "tokens": options.tokens}
    alone = run_child("benchmarks.serve", job, options.threads)
    sides = {f"{options.clients} clients": many, "1 client": one, "transformers.generate": alone}
    same = {name: [*side.pop("texts")] for name, side in sides.items()}
    first, *others = same.values()
    equal = {n: sum(a == b for a, b in zip(first, o, strict=True))
             for n, o in zip(list(same)[1:], others, strict=True)}  # fmt: skip
    ratios = {
        f"{clock} to {other}": many[f"tokens_a_{clock}"] / sides[other][f"tokens_a_{clock}"]
        for other in list(sides)[1:]
        for clock in ("second", "processor_second")
    }
    result = {
        "command": " ".join(["python", "benchmarks/serve.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "model": options.model,
        "dtype": "float32", "threads": options.threads, "requests": options.requests, "n": 1,
        "note": options.note, "sides": sides, "ratios": ratios,
        "texts_equal_to_those_of_the_clients": equal, "machine": machine(), "versions": versions(),
        "load_average": os.getloadavg(),
    }  # fmt: skip
    lines = [f"{name}: {ratio:.2f}" for name, ratio in ratios.items()]
    lines.append(f"texts equal, of {options.requests}: {equal}")
    publish(result, "\n".join([table(sides), *lines]), options.output)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        answer_job(peer)
    else:
        main()
