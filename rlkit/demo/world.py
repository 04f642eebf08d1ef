"""The made-up world behind the demo library: people, places, works and organisations, and who
made, taught, founded or built what.

Links run one way only, from the thing to the one who stands behind it: a novel names its author,
the author's page does not name the novel. So the second hop of a question cannot be searched for
before the first is read. Years fit together: nobody is taught by a child, no house publishes
before it was founded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from rlkit.demo.names import NameMaker

WORKS = ["novel", "opera", "film", "painting", "play", "atlas"]
CREATORS = {
    "novel": "novelist",
    "opera": "composer",
    "film": "film director",
    "painting": "painter",
    "play": "playwright",
    "atlas": "cartographer",
}
HOUSES = {
    "novel": "publishing house",
    "opera": "opera house",
    "film": "film studio",
    "painting": "museum",
    "play": "theatre",
    "atlas": "publishing house",
}
HOUSE_NAMES = {
    "publishing house": "Press",
    "opera house": "Opera",
    "film studio": "Studio",
    "museum": "Museum",
    "theatre": "Theatre",
    "observatory": "Observatory",
    "music school": "Conservatory",
    "shipyard": "Shipyard",
    "foundry": "Foundry",
}
PROFESSIONS = [
    *CREATORS.values(),
    "architect",
    "engineer",
    "botanist",
    "astronomer",
    "physician",
    "geologist",
]
STRUCTURES = ["bridge", "lighthouse", "canal", "aqueduct"]
INSTRUMENTS = ["cello", "flute", "harp", "oboe", "viola", "trumpet", "zither", "bassoon"]
_PRODUCTS = "cheese rope glass tiles paper cider lace pottery candles barrels linen salt"

N_TOWNS, N_FAMILIES, N_PEOPLE, N_HOUSES, N_WORKS, N_STRUCTURES = 230, 260, 720, 270, 640, 140


@dataclass(slots=True, eq=False)
class Entity:
    """One page of the world. `what` is the noun for it (`novel`, `painter`, `town`), `facts` its
    own properties, `links` the entities that its page names, by relation."""

    kind: str
    name: str
    what: str
    year: int
    title: str = ""
    woman: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    links: dict[str, Entity] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    """All entities by kind, in the order in which they were made."""

    towns: list[Entity]
    people: list[Entity]
    houses: list[Entity]
    works: list[Entity]
    structures: list[Entity]

    def all(self) -> list[Entity]:
        """Every entity, kind after kind."""
        return [*self.towns, *self.people, *self.houses, *self.works, *self.structures]


def make_world(rng: Random) -> World:
    """Draw a world; the same generator state gives the same world."""
    return _Maker(rng).world()


class _Maker:
    """Makes one kind of entity after the other, each linked to those that are there already."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.names = rng, NameMaker(rng)
        self.rivers = [self.names.river() for _ in range(60)]
        self.families = [self.names.surname() for _ in range(N_FAMILIES)]
        self.people: list[Entity] = []
        self.houses: list[Entity] = []
        self.married: list[Entity] = []

    def world(self) -> World:
        self.towns = [self._town() for _ in range(N_TOWNS)]
        while len(self.people) < N_PEOPLE:
            self._add_person()
        for number in range(N_HOUSES):
            self._add_house(list(HOUSE_NAMES)[number % len(HOUSE_NAMES)])
        for person in self.people:
            self._link_person(person)
        for town in self.towns:
            self._link_town(town)
        works: list[Entity] = []
        while len(works) < N_WORKS:
            works += self._works_of_one_name()
        kinds = [STRUCTURES[number % len(STRUCTURES)] for number in range(N_STRUCTURES)]
        structures = [self._structure(what) for what in kinds]
        world = World(self.towns, self.people, self.houses, works, structures)
        _give_titles(world)
        return world

    def _town(self) -> Entity:
        rng = self.rng
        town = Entity("town", self.names.town(), "town", rng.randrange(1050, 1500))
        town.facts = {
            "river": rng.choice(self.rivers),
            "product": rng.choice(_PRODUCTS.split()),
            "people": f"{rng.randrange(12, 900) * 100:,}",
        }
        return town

    def _add_person(self) -> None:
        woman = self.rng.random() < 0.5
        given, surname = self.names.given(woman), self.rng.choice(self.families)
        if not self.names.new_person(given, surname):
            return
        person = self._person(f"{given} {surname}", woman)
        self.people.append(person)
        if self.rng.random() < 0.12:  # a namesake with another calling
            other = self._person(person.name, woman)
            if other.what != person.what:
                self.people.append(other)

    def _person(self, name: str, woman: bool) -> Entity:
        what = self.rng.choice(PROFESSIONS)
        born = self.rng.randrange(1875 if what == "film director" else 1780, 1930)
        person = Entity("person", name, what, born, woman=woman)
        person.facts = {
            "instrument": self.rng.choice(INSTRUMENTS),
            "died": str(born + self.rng.randrange(48, 90)),
        }
        person.links["birthplace"] = self.rng.choice(self.towns)
        return person

    def _add_house(self, what: str) -> None:
        seat = self.rng.choice(self.towns)
        # Some are called after their town, as institutions are; the name then says the town.
        first = seat.name if self.rng.random() < 0.12 else self.names.coined()
        name = f"{first} {HOUSE_NAMES[what]}"
        founder = self._pick(self.people, lambda p: p.year > 1870 or what != "film studio")
        house = Entity("house", name, what, founder.year + self.rng.randrange(26, 55))
        house.links = {"founder": founder, "seat": seat}
        self._link(house, "architect", 0.5, self.people, lambda p: p.what == "architect")
        if all(name != other.name for other in self.houses):
            self.houses.append(house)

    def _link_person(self, person: Entity) -> None:
        born = person.year
        self._link(person, "teacher", 0.6, self.people, lambda q: 18 < born - q.year < 55)
        self._link(person, "workplace", 0.4, self.houses, lambda h: 0 < h.year - born < 50)
        if person in self.married:
            return

        def suits(q: Entity) -> bool:
            return q.woman != person.woman and abs(q.year - born) < 12 and q not in self.married

        self._link(person, "spouse", 0.3, self.people, suits)
        if "spouse" in person.links:  # only one of the two pages names the other
            self.married += [person, person.links["spouse"]]

    def _link_town(self, town: Entity) -> None:
        self._link(town, "hall", 0.6, self.people, lambda p: p.what == "architect")
        self._link(town, "twin", 0.5, self.towns, lambda other: other is not town)

    def _works_of_one_name(self) -> list[Entity]:
        name = self.names.phrase()
        kinds = self.rng.sample(WORKS, self.rng.choice([1, 1, 1, 2, 2, 3]))
        return [self._work(name, what) for what in kinds]

    def _work(self, name: str, what: str) -> Entity:
        creator = self._pick(self.people, lambda p: p.what == CREATORS[what])
        year = creator.year + self.rng.randrange(24, 48)
        work = Entity("work", name, what, year, links={"creator": creator})

        def shows_it(house: Entity) -> bool:
            return house.what == HOUSES[what] and house.year <= year

        def is_friend(p: Entity) -> bool:
            return p is not creator and abs(p.year - creator.year) < 40

        self._link(work, "house", 0.75, self.houses, shows_it)
        self._link(work, "dedicatee", 0.4, self.people, is_friend)
        self._link(work, "setting", 0.5, self.towns, lambda town: True)
        return work

    def _structure(self, what: str) -> Entity:
        designer = self._pick(self.people, lambda p: p.what in ("engineer", "architect"))
        name, year = self.names.coined(), designer.year + self.rng.randrange(25, 50)
        structure = Entity("structure", f"{name} {what.capitalize()}", what, year)
        structure.links = {"designer": designer, "place": self.rng.choice(self.towns)}

        def can_build(house: Entity) -> bool:
            return house.what in ("shipyard", "foundry") and house.year <= year

        self._link(structure, "builder", 0.7, self.houses, can_build)
        return structure

    def _link(
        self,
        entity: Entity,
        relation: str,
        share: float,
        others: list[Entity],
        fits: Callable[[Entity], bool],
    ) -> None:
        """Link `share` of the entities to one that fits, where there is one."""
        if self.rng.random() < share:
            other = self._pick(others, fits)
            if other is not None:
                entity.links[relation] = other

    def _pick(self, others: list[Entity], fits: Callable[[Entity], bool]) -> Entity | None:
        for _ in range(20):  # by trial, since listing all that fit takes longer than drawing a few
            other = self.rng.choice(others)
            if fits(other):
                return other
        fitting = [other for other in others if fits(other)]
        return self.rng.choice(fitting) if fitting else None


def _give_titles(world: World) -> None:
    """A name that two pages share gets the kind of thing in brackets, as encyclopedias do."""
    count = Counter(entity.name for entity in world.all())
    for entity in world.all():
        entity.title = entity.name if count[entity.name] == 1 else f"{entity.name} ({entity.what})"
