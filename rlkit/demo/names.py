"""Invented names for the demo library, put together from syllables, none used twice.

Only `random.Random` is drawn from, and only through lists, so that a seed gives the same names
in every process and on every platform.
"""

from __future__ import annotations

from random import Random

_SYLLABLES = {
    "given": "Al Be Ca Da El Fa Gi Ha Il Jo Ka Lu Ma Ne Or Pe Ra So Ti Ul Va We Yo Za",
    "given middle": "lb rn nd m dr v ss t lm rt",
    "woman": "a ia ene is ora",
    "man": "o in an ric us",
    "onset": "B Br D Dr F G Gr H K Kl L M N P R S St T Tr V W Z",
    "vowel": "a e i o u ei au oe",
    "middle": "l nn r rk st m sk d lv ndr",
    "family": "ock ell ing ar ow een it",
    "town": "mark holm wick stad mere dal burg fell strand garth",
    "river": "a eth ur iss o",
    "coined": "aria ion elle ova antis umbra icon essa",
    "adjective": "Glass Silent Crooked Paper Winter Hollow Salt Amber Blind Second Burning Copper "
    "Distant Drowned Early Forgotten Grey Honest Iron Lame Long Narrow Painted Quiet Red Sleeping "
    "Stolen Tall Velvet Wandering White Yellow",
    "noun": "Orchard Harbour Lantern Miller Staircase Garden Heron Bell Letter Mirror Market Ferry "
    "Window Shepherd Clock Bridge Island Feast Gate Violin Tower Road Sailor Well Crown Chapel "
    "Anchor Summer Widow Cellar",
}
_CHOICES = {kind: syllables.split() for kind, syllables in _SYLLABLES.items()}


class NameMaker:
    """Draws names of each kind; the same name never comes twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def given(self, woman: bool) -> str:
        """A given name; these do repeat, as they do among people."""
        return self._join("given", "given middle", "woman" if woman else "man")

    def surname(self) -> str:
        """A family name that no other family has."""
        return self._new("onset", "vowel", "middle", "family")

    def town(self) -> str:
        """A town's name."""
        return self._new("onset", "vowel", "middle", "town")

    def river(self) -> str:
        """A river's name."""
        return self._new("onset", "vowel", "middle", "river")

    def coined(self) -> str:
        """A made-up proper name, for houses, theatres, ships."""
        return self._new("onset", "vowel", "middle", "coined")

    def phrase(self) -> str:
        """A title such as `The Glass Orchard`."""
        return self._new("adjective", "noun", before="The ", between=" ")

    def new_person(self, given: str, surname: str) -> bool:
        """Reserve a full name; False where somebody bears it already."""
        full = f"{given} {surname}"
        fresh = full not in self._used
        self._used.add(full)
        return fresh

    def _join(self, *kinds: str, between: str = "") -> str:
        return between.join(self._rng.choice(_CHOICES[kind]) for kind in kinds)

    def _new(self, *kinds: str, before: str = "", between: str = "") -> str:
        while True:
            name = before + self._join(*kinds, between=between)
            if name not in self._used:
                self._used.add(name)
                return name
