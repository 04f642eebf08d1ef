"""Questions of two to four hops over the made-up world.

A question names one entity and asks for a fact about another one that is reached over links,
`the founder of the publishing house that brought out the novel The Glass Orchard`. Its gold
documents are the pages along the way, in order; the answer stands on the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rlkit.demo.pages import SENTENCES
from rlkit.demo.world import Entity, World

COUNTS = {2: 180, 3: 120, 4: 60}  # questions by number of hops


@dataclass(frozen=True, slots=True)
class Chain:
    """A question's text and answer, and the entities whose pages must be read, in order."""

    text: str
    answer: str
    entities: tuple[Entity, ...]


def make_chains(world: World, rng: Random) -> list[Chain]:
    """The questions of COUNTS, each starting from an entity of its own, in mixed order."""
    starts = [*world.works, *world.people, *world.houses, *world.structures, *world.towns]
    rng.shuffle(starts)
    # Works first: most questions about a library start from one.
    starts.sort(key=lambda entity: entity.kind != "work" and rng.random() < 0.5)
    hops = [h for h, count in COUNTS.items() for _ in range(count)]
    rng.shuffle(hops)
    chains: list[Chain] = []
    for start in starts:
        if len(chains) == len(hops):
            break
        chain = _draw(start, hops[len(chains)], rng)
        if chain is not None:
            chains.append(chain)
    return chains


def _draw(start: Entity, hops: int, rng: Random) -> Chain | None:
    """A chain from this start, or None where a few tries find no sound one."""
    for _ in range(8):
        entities, relations, phrase = [start], [], _named(start)
        while len(entities) < hops and entities[-1].links:
            here = entities[-1]
            relations.append(rng.choice(list(here.links)))
            phrase = rng.choice(_phrases(here, relations[-1])).format(phrase)
            entities.append(here.links[relations[-1]])
        if len(set(relations)) < len(relations):
            continue  # `the teacher of the teacher of` reads like a riddle
        if len(entities) == hops:
            name, shapes = rng.choice(list(SENTENCES["asked"][entities[-1].kind].items()))
            answer = _value(entities[-1], name)
            if answer is not None:
                chain = Chain(rng.choice(shapes).format(phrase), answer, tuple(entities))
                if _is_sound(chain):
                    return chain
    return None


def _is_sound(chain: Chain) -> bool:
    """Later pages can only be searched for after the earlier ones are read: neither the question
    nor a later page gives a name away, and no page comes twice."""
    first, *later = chain.entities
    if len({id(entity) for entity in chain.entities}) < len(chain.entities):
        return False
    if any(entity.name in chain.text for entity in later) or chain.answer in chain.text:
        return False
    return all(first is not other for entity in later for other in entity.links.values())


def _named(start: Entity) -> str:
    """How a question calls its start: `the novel The Glass Orchard`, `the Gelvumbra Foundry`."""
    if start.kind in ("house", "structure"):
        return f"the {start.name}"
    return f"the town of {start.name}" if start.kind == "town" else f"the {start.what} {start.name}"


def _phrases(entity: Entity, relation: str) -> list[str]:
    phrases = SENTENCES["phrases"]
    return phrases.get(f"{relation}.{entity.what}") or phrases[relation]


def _value(entity: Entity, name: str) -> str | None:
    if name == "year":
        return str(entity.year)
    if name in entity.links:
        return entity.links[name].name
    return entity.facts.get(name)
