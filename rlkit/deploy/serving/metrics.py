"""What Prometheus is told: one registry a server, so that several can live in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class ServerMetrics:
    """Counters, gauges and histograms, all named `rlkit_...`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {"registry": self.registry}
        self.requests = Counter(
            "rlkit_requests", "Requests answered, by path and status.", ["path", "status"], **made
        )
        self.seconds = Histogram(
            "rlkit_request_seconds", "From a request's head to its answer's end.", ["path"],
            buckets=_SECONDS, **made,
        )  # fmt: skip
        self.first_token = Histogram(
            "rlkit_first_token_seconds", "From arrival to the first token.", buckets=_SECONDS,
            **made,
        )  # fmt: skip
        self.prompt_tokens = Counter("rlkit_prompt_tokens", "Tokens of prompts read.", **made)
        self.answer_tokens = Counter("rlkit_answer_tokens", "Tokens written.", **made)
        self.rows = Histogram(
            "rlkit_batch_rows", "Requests that got a token in one pass of the model.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), **made,
        )  # fmt: skip
        self.ended = Counter(
            "rlkit_answers", "Answers ended, by how: stop, length, gone, or an error.", ["how"],
            **made,
        )  # fmt: skip
        self.running = Gauge("rlkit_requests_running", "Requests being answered.", **made)
        self.waiting = Gauge("rlkit_requests_waiting", "Requests waiting for a place.", **made)
