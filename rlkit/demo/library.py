"""A small made-up library, so that everything runs with no download.

    from rlkit.demo.library import make_demo_library
    library = make_demo_library(seed=7)

Some 2,500 short pages about people, places, works and organisations that name each other, with
namesakes and with near-misses (pages that have a question's words and answer nothing), and 360
questions of two to four hops. Nothing in it is real. The same seed gives the same library
everywhere.
"""

from __future__ import annotations

from random import Random

from rlkit.demo.pages import near_miss, page_text
from rlkit.demo.questions import Chain, make_chains
from rlkit.demo.world import World, make_world
from rlkit.library.corpus import Corpus, Document, Library, Question

NEAR_MISS_SHARE = 0.75  # of the questions' starting entities


def make_demo_library(seed: int = 7) -> Library:
    """The demo library of a seed: a corpus in shuffled order, and questions in mixed order whose
    gold documents are in the order of the hops."""
    rng = Random(seed)
    world = make_world(rng)
    chains = make_chains(world, rng)
    pages = [(entity.title, page_text(entity, rng)) for entity in world.all()]
    pages += _near_misses(world, chains, rng, {title for title, _ in pages})
    rng.shuffle(pages)
    corpus = Corpus(Document(f"d{n:04d}", title, text) for n, (title, text) in enumerate(pages))
    docids = {document.title: document.docid for document in corpus}
    questions = tuple(
        Question(
            question_id=f"q{number:03d}",
            text=chain.text,
            answer=chain.answer,
            gold_docids=tuple(docids[entity.title] for entity in chain.entities),
            hops=len(chain.entities),
        )
        for number, chain in enumerate(chains)
    )
    return Library(corpus, questions)


def _near_misses(
    world: World, chains: list[Chain], rng: Random, titles: set[str]
) -> list[tuple[str, str]]:
    found = []
    for chain in chains:
        for _ in range(2):
            if rng.random() < NEAR_MISS_SHARE:
                title, text = near_miss(chain.entities[0], rng.choice(world.towns).title, rng)
                if title not in titles:
                    titles.add(title)
                    found.append((title, text))
    return found
