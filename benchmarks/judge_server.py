"""A judge that takes so many milliseconds an answer, in a process of its own, and counts.

    python -m benchmarks.judge_server 0.05

prints its address. `GET /v1/models` and `POST /v1/chat/completions` are answered as an
OpenAI-compatible server does; `GET /counts` says how many requests for verdicts came, how many of
their documents had come before, and how many requests were under way at once, at most.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from typing import Any

_DOCUMENT = re.compile(r'<document id="(d\d+)">\n(.*?)\n</document>', re.DOTALL)
_PROBE = re.compile(r'"enum": \["(\w+)"\]')


class Judge:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.requests = self.under_way = self.peak = 0
        self.documents: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        repeated = sum(self.documents.values()) - len(self.documents)
        return {"requests": self.requests, "documents": len(self.documents),
                "repeated": repeated, "peak": self.peak}  # fmt: skip

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                answer = json.dumps(await self.answer(head.split()[1], body)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def answer(self, path: str, body: bytes) -> Any:
        if path == "/counts":
            return self.counts()
        if path.startswith("/v1/models"):
            return {"object": "list", "data": [{"id": "judge", "object": "model"}]}
        asked = json.loads(body)
        documents = _DOCUMENT.findall(asked["messages"][-1]["content"])
        if documents:
            self.requests += 1
            self.documents.update(text for _, text in documents)
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        await asyncio.sleep(self.seconds)
        self.under_way -= 1
        probe = _PROBE.search(json.dumps(asked.get("response_format")))
        text = json.dumps({name: "LOCAL" for name, _ in documents})
        if probe and not documents:
            text = json.dumps({"rlkit_probe": probe[1]})
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
        }


async def serve(seconds: float) -> None:
    server = await asyncio.start_server(Judge(seconds).connection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
