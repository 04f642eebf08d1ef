"""An answer's text as its tokens come, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "\ufffd"  # what half a character decodes to, until the next token completes it


class AnswerText:
    """Takes token ids one after the other and gives out text that is certain.

    Held back are halves of characters, and a tail that may be the beginning of a stop string. All
    that is given out, joined, is the answer; what follows the earliest stop string, and the stop
    string itself, is no part of it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        # ids are decoded from here on: those that completed the last character stay in view,
        # since whether a token begins with a blank may depend on what stands before it
        self._start = 0
        self._complete = 0  # ids up to where the text ended in whole characters
        self._known = ""  # what is in the text already of what they decode to
        self._text = ""
        self._given = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that has become certain with one more token."""
        self._ids.append(token)
        window = self._decode(self._ids[self._start :])
        whole = window.rstrip(_HALF)
        return self._grown(whole, finished=len(whole) == len(window))

    def end(self) -> str:
        """What was held back, now that no token follows."""
        if self.stopped:
            return ""
        piece = self._grown(self._decode(self._ids[self._start :]), finished=True)
        return piece if self.stopped else piece + self._until(len(self._text))

    def _grown(self, window: str, finished: bool) -> str:
        before = len(self._text)
        self._text += window[len(self._known) :]
        self._known = window
        if finished:
            self._start, self._complete = self._complete, len(self._ids)
            self._known = self._decode(self._ids[self._start :])
        longest = max(map(len, self._stops), default=0)
        found = [self._text.find(stop, max(0, before - longest + 1)) for stop in self._stops]
        if at := [place for place in found if place >= 0]:
            self.stopped = True
            return self._until(min(at))
        return self._until(len(self._text) - self._held(longest))

    def _held(self, longest: int) -> int:
        """The length of the longest tail that a stop string may begin with."""
        lengths = range(min(longest - 1, len(self._text)), 0, -1)
        return next((n for n in lengths if self._may_stop(self._text[-n:])), 0)

    def _may_stop(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)

    def _until(self, end: int) -> str:
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece
