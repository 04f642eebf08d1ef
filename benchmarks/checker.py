"""How fast the live checker judges, beside a plain loop over the same requests, and whether it ever
asks twice.

    python benchmarks/checker.py

against a server, in a process of its own, that takes 50 ms an answer: 400 requests of one document
at concurrency 16, whose ideal is 400 / 16 * 0.05 = 1.25 s; then a second pass, which asks the
server nothing; then a pass that is killed in the middle and continued. Prints a table and one JSON
line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # so that it runs from anywhere, as a script
    sys.path.insert(0, str(ROOT))

from benchmarks.checker_report import as_text, header  # noqa: E402
from benchmarks.measure import Stopwatch  # noqa: E402
from benchmarks.publish import parse_to_keep, publish  # noqa: E402
from rlkit.agents.judge import LLMChecker  # noqa: E402
from rlkit.agents.judge_prompts import judge_messages, shown, verdict_schema  # noqa: E402
from rlkit.agents.llm import ChatClient  # noqa: E402
from rlkit.agents.verdict_cache import VerdictCache  # noqa: E402
from rlkit.agents.verdicts import parse_verdicts  # noqa: E402
from rlkit.library.corpus import Document  # noqa: E402
from rlkit.rounds.state import State  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "checker.json"
STATE = State("q/run/1", "q", "Who built Elm Row?", 1, "SEARCH", "Find the builder")
KILL_AT = 0.4  # of the requests


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    if options.child:
        judge_all(*options.child, options)
        return {}
    with judge_server(options.seconds) as url, tempfile.TemporaryDirectory() as folder:
        result = {**header(options), **measure(url, Path(folder), options)}
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--documents", type=int, default=400, metavar="N")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.05, help="the server takes an answer")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each side, in turn")
    parser.add_argument("--child", nargs=2, metavar=("URL", "CACHE"), help=argparse.SUPPRESS)
    return parse_to_keep(parser, arguments, RESULT)


def measure(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turn, then a second pass, then one that is killed and continued."""
    ours, peer = [], []
    for number in range(options.rounds):
        ours.append(judge_all(url, folder / f"round-{number}.sqlite", options))
        peer.append(asyncio.run(plain_loop(url, options)))
    before = counts(url)["requests"]
    second = judge_all(url, folder / "round-0.sqlite", options)
    asked = counts(url)["requests"] - before
    return {
        "ideal_s": options.documents / options.concurrency * options.seconds,
        "ours": summary(ours),
        "probe_s": statistics.median(timed["probe"] for timed in ours),
        "peer": summary(peer),
        "second_pass": {"seconds": second["steps"], "requests": asked},
        "killed_pass": killed_pass(options, folder / "killed.sqlite"),
        "peak": counts(url)["peak"],
    }


def judge_all(url: str, cache: str | Path, options: argparse.Namespace) -> dict[str, float]:
    """Let the checker judge all documents; seconds of the judging, on the clock and on the
    processor, and of the probe before it."""
    client = ChatClient(f"{url}/v1", "judge", concurrency=options.concurrency, log=_quiet)
    checker = LLMChecker(client, VerdictCache(cache), model="judge", batch_size=1, log=_quiet)
    probing = time.perf_counter()
    if len(checker.cache) < options.documents:
        checker.look_at_server()
    probed, watch = time.perf_counter() - probing, Stopwatch()
    verdicts = checker.check(STATE, documents(options.documents))
    taken = watch.read()
    assert set(verdicts.values()) == {"LOCAL"}, "the server says LOCAL of every document"
    checker.close()
    return {**taken, "probe": probed}


async def plain_loop(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds that the same requests take with asyncio, a semaphore and the openai client, whose
    connections are opened beforehand, as the checker's probe opens its own."""
    import openai

    slots = asyncio.Semaphore(options.concurrency)
    schema = {"name": "answer", "schema": verdict_schema(1, 1, "en"), "strict": True}

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def ask(messages: list[dict[str, str]]) -> str | None:
            async with slots:
                answer = await client.chat.completions.create(
                    model="judge",
                    messages=messages,
                    max_tokens=88,
                    temperature=0.0,
                    response_format={"type": "json_schema", "json_schema": schema},
                    extra_body={"chat_template_kwargs": {"enable_thinking": False}},
                )
            return parse_verdicts(answer.choices[0].message.content or "", ["d1"]).get("d1")

        await asyncio.gather(*(ask([{"role": "user", "content": "Say hello."}]) for _ in range(4)))
        watch = Stopwatch()
        requests = [
            judge_messages(
                STATE.question, STATE.subgoal, [shown(d.title, d.text, "en", 2000)], "en"
            )
            for d in documents(options.documents)
        ]
        verdicts = await asyncio.gather(*map(ask, requests))
        taken = watch.read()
    assert set(verdicts) == {"LOCAL"}
    return taken


def killed_pass(options: argparse.Namespace, cache: Path) -> dict[str, int]:
    """What a server counts when a pass is killed (SIGKILL) in the middle and then continued."""
    with judge_server(options.seconds) as url:
        flags = ["--documents", str(options.documents), "--concurrency", str(options.concurrency)]
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.checker", "--child", url, str(cache), *flags],
            cwd=ROOT,
        )
        while counts(url)["requests"] < KILL_AT * options.documents and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        time.sleep(4 * options.seconds)
        asked, kept = counts(url), len(VerdictCache(cache))
        judge_all(url, cache, options)
        told = counts(url)
    return {
        "asked_before": asked["requests"],
        "kept": kept,
        "asked_in_all": told["requests"],
        "asked_twice": told["repeated"],
    }


def documents(count: int) -> list[Document]:
    text = "The house was built for the harbour master of Port Alden, and sold twice since. " * 6
    return [Document(f"doc-{n}", f"House {n}", f"{n}: {text}") for n in range(count)]


def summary(timed: list[dict[str, float]]) -> dict[str, Any]:
    """Every pass and the medians, in seconds on the clock and on this process's processor."""
    seconds, cpu = [t["steps"] for t in timed], [t["steps_cpu"] for t in timed]
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "median_cpu_s": statistics.median(cpu),
    }


def counts(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/counts", timeout=10) as answer:
        return json.load(answer)


@contextmanager
def judge_server(seconds: float) -> Iterator[str]:
    """The address of a judge in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.judge_server", str(seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def _quiet(line: str) -> None:
    """The benchmark prints its own."""


if __name__ == "__main__":
    main()
