"""The sentences that the demo library's pages are made of: for every fact several to choose from.

`{x}` is the fact, or the title of the page that is named, word for word.
"""

from __future__ import annotations

LEADS = {
    "novel": [
        "{name} is a novel that appeared in {year}.",
        "{name}, a novel of {year}, tells the story of two sisters.",
    ],
    "opera": [
        "{name} is an opera in three acts, finished in {year}.",
        "The opera {name} dates from {year}.",
    ],
    "film": [
        "{name} is a film from {year}.",
        "{name}, released in {year}, is a black-and-white film.",
    ],
    "painting": [
        "{name} is a painting in oil on canvas, signed and dated {year}.",
        "The painting {name} was finished in {year}.",
    ],
    "play": [
        "{name} is a play in five scenes, written in {year}.",
        "The play {name} dates from {year}.",
    ],
    "atlas": [
        "{name} is an atlas of {year}, with forty coloured maps.",
        "The atlas called {name} appeared in {year}.",
    ],
    "person": [
        "{name} ({year}-{died}) was a {what}.",
        "{name} was a {what} who lived from {year} to {died}.",
        "The {what} {name}, born in {year}, died in {died}.",
    ],
    "town": [
        "{name} is a town of {people} people.",
        "{name}, a market town, counts {people} people.",
    ],
    "house": [
        "{name} is a {what} that opened in {year}.",
        "The {what} {name} has existed since {year}.",
    ],
    "structure": [
        "The {name} was opened in {year}.",
        "{name}, completed in {year}, is still in use.",
    ],
}

FACTS = {
    "creator.novel": [
        "It was written by {x}.",
        "Its author is {x}.",
        "{x} wrote it in a single winter.",
    ],
    "creator.opera": [
        "The music is by {x}.",
        "{x} composed it.",
        "It is the last stage work of the composer {x}.",
    ],
    "creator.film": [
        "It was directed by {x}.",
        "{x} directed it and wrote the script.",
        "The director was {x}.",
    ],
    "creator.painting": [
        "It was painted by {x}.",
        "{x} painted it from memory.",
        "It is a late work of {x}.",
    ],
    "creator.play": [
        "It was written for the stage by {x}.",
        "The playwright was {x}.",
        "{x} wrote it in prison.",
    ],
    "creator.atlas": [
        "Its maps were drawn by {x}.",
        "{x} drew the maps.",
        "The cartographer was {x}.",
    ],
    "house.novel": ["It was published by the {x}.", "The {x} brought it out in two volumes."],
    "house.opera": ["It was first staged at the {x}.", "The first performance was at the {x}."],
    "house.film": ["It was made by {x}.", "{x} produced it at low cost."],
    "house.painting": ["It belongs to the {x}.", "Today it hangs in the {x}."],
    "house.play": ["It was first performed at the {x}.", "The {x} put it on the stage first."],
    "house.atlas": ["It was printed by the {x}.", "The {x} published it by subscription."],
    "dedicatee": ["It is dedicated to {x}.", "The dedication names {x}."],
    "setting": ["It is set in {x}.", "Most of it takes place in {x}.", "The scene is {x}."],
    "birthplace": [
        "{He} was born in {x}.",
        "{x} was the town of {his} birth.",
        "{He} came from {x}.",
    ],
    "teacher": [
        "{He} was a pupil of {x}.",
        "{x} was {his} teacher.",
        "{He} learned the craft from {x}.",
    ],
    "workplace": [
        "{He} worked at the {x} for many years.",
        "For a long time {he} was employed by the {x}.",
    ],
    "spouse": ["{He} was married to {x}.", "{He} married {x} late in life."],
    "instrument": [
        "In the evenings {he} played the {x}.",
        "{He} played the {x} well.",
        "{His} instrument was the {x}.",
    ],
    "founder": [
        "It was founded by {x}.",
        "Its founder was {x}.",
        "{x} founded it with borrowed money.",
    ],
    "seat": ["It has its seat in {x}.", "It stands in {x}.", "Its home is the town of {x}."],
    "architect": ["The building was designed by {x}.", "Its architect was {x}."],
    "river": [
        "It lies on the river {x}.",
        "The river {x} flows past its walls.",
        "The town stands on the river {x}.",
    ],
    "product": [
        "It is known for its {x}.",
        "The place is famous for {x}.",
        "Traders carried its {x} far away.",
    ],
    "charter": ["It received its charter in {x}.", "It became a town in {x}, by charter."],
    "hall": ["The town hall was designed by {x}.", "{x} built the town hall."],
    "twin": ["Its twin town is {x}.", "It has a partnership with {x}."],
    "designer": ["It was designed by {x}.", "{x} drew the plans.", "The designer was {x}."],
    "place": ["It is in {x}.", "It can be found in {x}.", "The town of {x} looks after it."],
    "builder": [
        "The {x} built it.",
        "The iron parts came from the {x}, the company that built it.",
    ],
}

FILLERS = {
    "work": [
        "Critics found it too long at first.",
        "A second version differs in its ending.",
        "It was forgotten for decades and then found again.",
        "Students still argue about its meaning.",
        "It is often mentioned together with works of the same years.",
        "An early sketch for it was lost in a fire.",
    ],
    "person": [
        "{His} letters fill eleven volumes.",
        "{He} kept bees and disliked travelling.",
        "A street in the old quarter bears {his} name.",
        "Little is known about {his} childhood.",
        "{He} left {his} papers to a cousin, who burned them.",
        "{He} spoke four languages and wrote in two.",
        "In old age {he} gave up work and grew roses.",
        "{He} refused every prize that was offered to {him}.",
    ],
    "town": [
        "A market is held there twice a week.",
        "Its walls were pulled down to make room for a railway.",
        "The church has a leaning tower.",
        "A flood destroyed the lower streets, which were built again in brick.",
        "Visitors come in summer for the rowing races.",
        "The old school is now a library.",
    ],
    "house": [
        "It closed for three years during a strike and opened again.",
        "Its archive is kept in a cellar.",
        "It employs about sixty people.",
        "A fire damaged the roof, but nobody was hurt.",
        "It celebrates its anniversary with an open day.",
        "It has changed owners four times.",
    ],
    "structure": [
        "It had to be repaired after a storm.",
        "It is lit at night and can be visited on Sundays.",
        "Its cost was twice what had been planned.",
        "A small exhibition shows how it was made.",
        "It was painted green until the war and grey after it.",
    ],
}

# Two facts in one sentence, used now and then where a page has both.
PAIRS = {
    ("creator", "house", "novel"): "Written by {creator}, it was published by the {house}.",
    (
        "creator",
        "house",
        "opera",
    ): "{creator} composed it for the {house}, where it was first staged.",
    ("creator", "house", "film"): "{creator} directed it for {house}, which nearly went bankrupt.",
    (
        "creator",
        "house",
        "painting",
    ): "{creator} painted it, and the {house} bought it ten years later.",
    ("creator", "house", "play"): "Written by {creator}, it was first performed at the {house}.",
    ("creator", "house", "atlas"): "{creator} drew the maps, and the {house} printed them.",
    ("birthplace", "teacher", ""): "Born in {birthplace}, {he} learned the craft from {teacher}.",
    (
        "birthplace",
        "workplace",
        "",
    ): "{He} left {birthplace}, where {he} was born, to work at the {workplace}.",
    ("instrument", "spouse", ""): "{He} played the {instrument} and was married to {spouse}.",
    ("founder", "seat", ""): "{founder} founded it in {seat}, where it still has its seat.",
    ("river", "product", ""): "It lies on the river {river} and is known for its {product}.",
    ("hall", "charter", ""): "{hall} designed the town hall, long after the charter of {charter}.",
    ("designer", "place", ""): "{designer} designed it for the town of {place}.",
    ("designer", "builder", ""): "Designed by {designer}, it was built by the {builder}.",
}

# Title and text of pages that borrow a name; `{short}` is the name without its article.
NEAR_MISSES = [
    (
        "{short} Society",
        "The society meets every spring in the old school of {town}. It was founded in {year} by "
        "friends of the {what} {name}, and nothing else binds its members. {noise}",
    ),
    (
        "{short} Prize",
        "The prize is given every second year in {town}. It recalls the {what} {name}; the prize "
        "itself was first given in {year}. {noise}",
    ),
    (
        "Friends of {name}",
        "A journal about the {what} {name} and its times. It has been printed in {town} since "
        "{year} and has few readers. {noise}",
    ),
    (
        "{short} Inn",
        "A guest house in {town}, opened in {year}. It borrowed its sign from the {what} {name}, "
        "with which it has nothing to do. {noise}",
    ),
    (
        "In the Steps of {name}",
        "A walk of two hours through the town of {town}, laid out in {year} for those who love "
        "the {what} {name}. {noise}",
    ),
]

NOISE = [
    "Who its founder was, in which year the founder was born and in which town, is not recorded.",
    "No teacher, no architect and no author is named on the door.",
    "The town lies on no river, and the house that published the first notice is not known.",
    "It is not known who designed the building, who taught the architect, or where they were born.",
    "Its first teacher played no instrument and founded nothing.",
]
