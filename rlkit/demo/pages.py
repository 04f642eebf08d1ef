"""Writes the pages of the demo library, in plain English, from an entity's facts and links."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

from rlkit.demo.world import Entity
from rlkit.yaml_text import read_yaml

SENTENCES = read_yaml(Path(__file__).with_name("sentences.yaml"))
MIN_WORDS, USUAL_WORDS = 25, 38


def page_text(entity: Entity, rng: Random) -> str:
    """The text of an entity's page: a lead sentence, then its facts and links in some order."""
    values = {**entity.facts, **{name: other.title for name, other in entity.links.items()}}
    if entity.kind == "town":
        values["charter"] = str(entity.year)
    names = [name for name in values if _bank(entity, name)]
    rng.shuffle(names)
    leads = SENTENCES["leads"].get(entity.what) or SENTENCES["leads"][entity.kind]
    sentences = [_fill(rng.choice(leads), entity), *_paired(entity, names, values, rng)]
    sentences += [_fill(rng.choice(_bank(entity, n)), entity, {"x": values[n]}) for n in names]
    fillers = list(SENTENCES["fillers"][entity.kind])
    rng.shuffle(fillers)
    while _words(sentences) < MIN_WORDS or (_words(sentences) < USUAL_WORDS and rng.random() < 0.5):
        sentences.insert(rng.randrange(1, len(sentences) + 1), _fill(fillers.pop(), entity))
    if entity.kind == "town" or rng.random() < 0.8:
        _name_again(entity, sentences)
    return " ".join(sentences)


def near_miss(entity: Entity, town: str, rng: Random) -> tuple[str, str]:
    """Title and text of a page that has the entity's name and a question's words, and answers
    nothing."""
    title, text = rng.choice(SENTENCES["near_misses"])
    values = {
        "name": entity.name,
        "short": entity.name.removeprefix("The "),
        "what": entity.what,
        "town": town,
        "year": rng.randrange(1860, 1990),
        "noise": rng.choice(SENTENCES["noise"]),
    }
    return title.format(**values), _mend(text.format(**values))


def _paired(entity: Entity, names: list[str], values: dict[str, str], rng: Random) -> list[str]:
    """At most one sentence that tells two of the facts; these are taken out of `names`."""
    for first, second, what, sentence in SENTENCES["pairs"]:
        if first in names and second in names and what in ("", entity.what) and rng.random() < 0.4:
            names.remove(first)
            names.remove(second)
            return [_fill(sentence, entity, values)]
    return []


def _name_again(entity: Entity, sentences: list[str]) -> None:
    """Begin the last sentence that begins with a pronoun with the name instead."""
    for place in range(len(sentences) - 1, 0, -1):
        pronoun, _, rest = sentences[place].partition(" ")
        if pronoun in ("It", "He", "She"):
            sentences[place] = f"{entity.name} {rest}"
            return


def _bank(entity: Entity, name: str) -> list[str]:
    facts = SENTENCES["facts"]
    return facts.get(f"{name}.{entity.what}") or facts.get(name, [])


def _fill(sentence: str, entity: Entity, values: dict[str, str] | None = None) -> str:
    he, him, his = ("she", "her", "her") if entity.woman else ("he", "him", "his")
    return _mend(
        sentence.format_map(
            {
                "name": entity.name,
                "what": entity.what,
                "year": entity.year,
                "he": he,
                "him": him,
                "his": his,
                "He": he.capitalize(),
                "His": his.capitalize(),
                **entity.facts,
                **(values or {}),
            }
        )
    )


def _mend(text: str) -> str:
    """`an` before a vowel, and no article twice."""
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", re.sub(r"\b[Tt]he The ", "The ", text))


def _words(sentences: list[str]) -> int:
    return sum(len(sentence.split()) for sentence in sentences)
