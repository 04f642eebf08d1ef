"""Decoding on CUDA, recorded once and replayed for every token.

One token of a few rows is a thousand small kernels, each shorter than the time that Python takes to
launch it. A CUDA graph launches all of them in one call. The call that is recorded has to have the
same shapes for every token, which `DecodingCache.whole` gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from rlkit.training.decoding import PlainDecoder


def can_record(plain: PlainDecoder | None, device: torch.device) -> bool:
    """On CUDA, where layers are plain code without sliding windows, unless an attempt failed."""
    return (
        device.type == "cuda"
        and not _refused
        and plain is not None
        and all(layer.window is None for layer in plain.layers)
    )


class Recorded:
    """A function of one tensor of fixed shape: called once as it is, to be warm; then recorded,
    and replayed from there on. What it returns is overwritten by the next call.

    Where recording fails, that is said once in this process, and the function is called as it is.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function, self._warm = function, False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, given: Tensor) -> Tensor:
        if self._graph is None and self._warm and not _refused:
            self._record(given)
        self._warm = True
        if self._graph is None:
            return self._function(given)
        self._given.copy_(given)
        self._graph.replay()
        return self._returned

    def _record(self, given: Tensor) -> None:
        self._given = given.clone()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        pool = {"pool": _last[0].pool()} if _last else {}
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(**pool, capture_error_mode="thread_local")
                try:
                    self._returned = self._function(self._given)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            _refused.append(str(error))
            first = str(error).strip().splitlines()[0]
            warnings.warn(f"decoding goes on without a CUDA graph: {first}", stacklevel=2)
            return
        torch.cuda.current_stream().wait_stream(stream)
        self._graph, _last[:] = graph, [graph]


_refused: list[str] = []  # why recording failed in this process
# The newest graph. Its memory serves the next one, which takes its place: one is in use at a time,
# and a pool lives as long as a graph that was recorded in it.
_last: list[torch.cuda.CUDAGraph] = []
