"""Questions of two to four hops over the made-up world.

A question names one entity and asks for a fact about another one that is reached over links,
`the founder of the publishing house that brought out the novel The Glass Orchard`. Its gold
documents are the pages along the way, in order; the answer stands on the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rlkit.demo.world import Entity, World

COUNTS = {2: 180, 3: 120, 4: 60}  # questions by number of hops

# How to name what a link leads to, `{}` being where it starts.
PHRASES = {
    "creator.novel": ["the author of {}", "the person who wrote {}"],
    "creator.opera": ["the composer of {}", "the person who composed {}"],
    "creator.film": ["the director of {}", "the person who directed {}"],
    "creator.painting": ["the painter of {}", "the person who painted {}"],
    "creator.play": ["the playwright who wrote {}", "the author of {}"],
    "creator.atlas": ["the cartographer who drew {}", "the person who drew the maps of {}"],
    "house.novel": ["the publishing house that brought out {}", "the publisher of {}"],
    "house.opera": ["the opera house where {} was first staged"],
    "house.film": ["the studio that made {}", "the film studio behind {}"],
    "house.painting": ["the museum that owns {}", "the museum where {} hangs"],
    "house.play": ["the theatre where {} was first performed"],
    "house.atlas": ["the publishing house that printed {}", "the publisher of {}"],
    "dedicatee": ["the person to whom {} is dedicated"],
    "setting": ["the town in which {} is set", "the town where {} takes place"],
    "birthplace": ["the birthplace of {}", "the town where {} was born"],
    "teacher": ["the teacher of {}", "the person who taught {}"],
    "workplace": ["the employer of {}", "the institution where {} worked"],
    "spouse": ["the wife or husband of {}"],
    "founder": ["the founder of {}", "the person who founded {}"],
    "seat": ["the home town of {}", "the town where {} has its seat"],
    "architect": ["the architect of the building of {}"],
    "hall": ["the architect of the town hall of {}"],
    "twin": ["the twin town of {}"],
    "designer": ["the designer of {}", "the person who designed {}"],
    "place": ["the town that has {}", "the town where {} is"],
    "builder": ["the company that built {}", "the builder of {}"],
}

# What is asked of the last page, by its kind: a fact, `year`, or a link whose title is the answer.
ASKED = {
    "person": {
        "year": ["In what year was {} born?", "Name the year of birth of {}."],
        "died": ["In what year did {} die?", "When did {} die?"],
        "birthplace": ["In which town was {} born?", "Where was {} born?"],
        "instrument": ["Which instrument did {} play?", "What instrument was played by {}?"],
        "teacher": ["Who was the teacher of {}?", "Who taught {}?"],
    },
    "house": {
        "year": ["Since what year has {} existed?", "In what year did {} open?"],
        "founder": ["Who founded {}?", "Who was the founder of {}?"],
        "seat": ["In which town does {} have its seat?", "In which town is {}?"],
        "architect": ["Who designed the building of {}?"],
    },
    "town": {
        "river": ["On which river does {} lie?", "Name the river of {}."],
        "product": ["What is {} known for?", "For which product is {} famous?"],
        "year": ["In what year did {} receive its charter?"],
        "hall": ["Who designed the town hall of {}?"],
    },
}


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
            name, shapes = rng.choice(list(ASKED[entities[-1].kind].items()))
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
    return PHRASES.get(f"{relation}.{entity.what}") or PHRASES[relation]


def _value(entity: Entity, name: str) -> str | None:
    if name == "year":
        return str(entity.year)
    if name in entity.links:
        return entity.links[name].name
    return entity.facts.get(name)
