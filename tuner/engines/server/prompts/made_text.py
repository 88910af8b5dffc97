"""Make conversations and code with the repetition of real text, from a seeded grammar of our own.

Random words give speculative decoding nothing to draft from. In these texts, names, numbers and phrases of the
beginning come again, as in a customer's conversation with a support desk, or in a module of source code. The texts are
ASCII, have no licence of anyone else's, and are the same for the same seeds in every process.

A world is what a text is about: the customer, the order and the products of a conversation, or the classes of a module.
A document and the prompts that follow it have the same world, so that a prompt repeats names of its document.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split("|")


_PEOPLE = _words(
    "Ada Amir Bea Carl Dina Elif Emil Fatima Goran Hana Igor Ines Jonas Kofi Lena Mara Nils Olga Pavel Rosa"
)
_FAMILIES = _words("Adler Baker Costa Dunn Egger Ferro Grant Haas Ivers Jansen Keller Lund Moreau Novak Okafor Pohl")
_CITIES = _words("Aarhus Bergen Cork Delft Evora Fulda Ghent Haifa Izmir Jena Kazan Lyon Malmo Nantes Oulu Porto")
_MAKES = _words("Norvik Calder Pellano Brightwell Ostera Tamsin Veldt Quarrel Luma Hexley Solbo Marrow")
_QUALITIES = _words(
    "walnut steel folding wireless compact portable adjustable ceramic insulated rechargeable woven oak"
)
_GOODS = _phrases(
    "desk lamp|coffee grinder|office chair|bicycle pump|water bottle|travel bag|heater|keyboard|bookshelf"
)
_PARTS = _phrases("hinge|power cable|base plate|lid|handle|battery|screw set|manual|front panel|filter")
_FAULTS = _phrases(
    "is cracked|is missing|does not fit|makes a loud noise|came loose after two days|has the wrong colour"
)
_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday")

_ASKED = (
    "Hello, I have a question about order {order}. The {part} of the {goods} {fault}.",
    "When does the replacement for the {part} arrive in {city}?",
    "I would like to return the {goods}. What do I have to do?",
    "Can you change the address of order {order} to {street} {number}, {city}?",
    "Does the {other} from {make} come with a {part}, or do I order it separately?",
    "I was charged {price} euros twice for order {order}. Please look into it.",
    "What is the difference between the {goods} and the {other}?",
    "Could the parcel come on {day} instead of {day2}? I am not at home on {day2}.",
    "How long is the warranty of the {goods}, and does it include the {part}?",
    "Please repeat what we agreed about order {order}, with all dates and amounts.",
)
_ANSWERED = (
    "I am sorry that the {part} of the {goods} {fault}. I have noted this for order {order}.",
    "The replacement for the {part} leaves our warehouse on {day} and arrives in {city} within {days} days.",
    "To return the {goods}, please print the label that we sent to {mail}, and leave the parcel at any shop in {city}.",
    "I have changed the address of order {order} to {street} {number}, {city}.",
    "The {other} from {make} comes with a {part}. You do not have to order it separately.",
    "The second charge of {price} euros for order {order} is refunded by {day}.",
    "The {other} is lighter than the {goods}, and it costs {price2} euros instead of {price} euros.",
    "The parcel comes on {day} instead of {day2}. You will get a message at {mail}.",
    "The warranty of the {goods} is {years} years, and it includes the {part}.",
    "To sum up: order {order} of {name} has the {goods} for {price} euros, and the parcel goes to {city}.",
)
_CLAUSES = (
    "{who} {did} {what} {place} {when}.",
    "{when}, {who} {did} {what}, {why}.",
    "I {did} {what} {how}, {why}.",
    "it took about {minutes} minutes {place}, {why}.",
    "{who} {did} {what} {how}; {when} it was gone.",
    "as far as I know, {who} {did} {what} {when}, {how}.",
    "did {who} ask about {what}? I {did} it {place}.",
    "{who} will be {place} for {minutes} minutes {when}, {why}.",
)
_WHO = _phrases(
    "my sister|the driver|our neighbour|a colleague|the man at the counter|my daughter|the new tenant|your technician|"
    "an old friend|the caretaker|one of the twins|the woman on the phone|my landlord|somebody upstairs|the gardener"
)
_DID = _phrases(
    "opened|photographed|dropped|measured|packed|unpacked|repaired|carried|compared|noticed|weighed|borrowed|tried|"
    "cleaned|counted|described|labelled|painted|moved|tested"
)
_WHAT = _phrases(
    "the blue box|both screws|a small key|the torn paper|the second parcel|an empty carton|the wrong shelf|my old one|"
    "the instructions|three samples|that loose cable|the invoice|its wooden feet|a spare bulb|the printed label|"
    "every corner of it|the plastic cover|a receipt|the whole set|the heavier half"
)
_PLACES = _phrases(
    "in the kitchen|near the station|on the balcony|behind the garage|at my office|in the cellar|next to the lift|"
    "on the third floor|at the post office|under the stairs|in front of the school|by the river|at the front door"
)
_WHEN = _phrases(
    "last night|before lunch|a week ago|early this morning|around noon|on the way home|after the storm|two days later|"
    "during the holidays|at about six|while it rained|right after the call|as soon as possible|yesterday evening"
)
_HOW = _phrases(
    "with great care|without any tools|in a hurry|quite carefully|by accident|with both hands|for the second time|"
    "only half way|as the picture shows|against my advice|rather slowly|in good light|with some effort"
)
_WHY = _phrases(
    "because nobody else was around|although it was late|since the shop had closed|which surprised us all|"
    "even though the door was locked|because my train was delayed|and nothing happened|but I could not find it again|"
    "since we are moving soon|which I did not expect|and that cost me an hour|although the sun was out|"
    "because the old one had worn out|but it still looks new|and now it wobbles"
)
_RULES = (
    "You are the assistant of the support desk of {make}, a shop for household goods in {city}.",
    "Answer in the language of the customer, in at most {days} sentences.",
    "Repeat the number of the order and the name of the product in each answer.",
    "A product may be returned within {number} days; the customer pays for a parcel of more than {price} euros.",
    "If a part of a product is broken, offer a replacement first and a refund second.",
    "Never promise a delivery on a day on which the warehouse in {city} is closed.",
    "If the customer asks for the warranty of a product, state the years and the parts that it includes.",
    "Do not state the price of a product of another shop.",
)

_THINGS = _words(
    "order customer invoice parcel product warehouse payment ticket session report sensor booking route vehicle"
)
_FIELDS = _words(
    "name status total created_at owner weight price quantity address priority currency label region notes"
)
_VERBS = _words("scale merge align trim rank spread fold weigh shift split blend cap smooth estimate balance collect")
_NOUNS = _words("margin window backlog ratio delay surplus batch slope budget offset quota trend overlap spacing load")
_LOCALS = _words("base step total limit factor gap level span depth width bias share pace drift peak floor")
_CONDITIONS = ("{a} > {b}", "{a} % {n} == 0", "{b} and {a} < {n}", "not {b}", "{a} <= {n} or {b} > {n}", "{b} != {n}")
_STEPS = (
    "{a} += {b} * {n}",
    "{a} = max({a}, {b} / {n})",
    "{a} = ({a} + {n}) ** 0.5",
    "{b} = int({a}) % {n}",
    "{a} -= min({b}, {n})",
    "{a} = {a} * {n} if {b} else {n}.0",
    "{b} = round({a} / {n})",
    "{a}, {b} = {a} / 2, {b} + {n}",
    "{a} = abs({a} - {b}) / {n}",
)
_RESULTS = ("{a}", "{a} + {b}", "max({a}, {n}.0)", "{a} / {n}", "round({a}, {n})", "{a} - {n} * {b}")
_TYPES = {"total": "float", "weight": "float", "price": "float", "quantity": "int", "priority": "int"}


def _chat_world(source: random.Random) -> dict[str, str]:
    """Return what stays the same in one conversation."""
    goods = [f"{source.choice(_QUALITIES)} {each}" for each in source.sample(_GOODS, 2)]
    first, family, price = source.choice(_PEOPLE), source.choice(_FAMILIES), source.randint(15, 400)
    return {
        "name": f"{first} {family}",
        "mail": f"{first.lower()}.{family.lower()}@example.com",
        "goods": goods[0],
        "other": goods[1],
        "make": source.choice(_MAKES),
        "city": source.choice(_CITIES),
        "street": f"{source.choice(_FAMILIES)} Street",
        "order": f"{source.choice('ABCDEFGH')}-{source.randint(10_000, 99_999)}",
        "price": f"{price}.{source.randint(0, 99):02}",
        "price2": f"{price + source.randint(5, 60)}.{source.randint(0, 99):02}",
        "years": str(source.randint(2, 5)),
    }


def _turn(world: dict[str, str], source: random.Random) -> dict[str, str]:
    """Return the world with what one question and its answer add."""
    day, day2 = source.sample(_DAYS, 2)
    details = {"part": source.choice(_PARTS), "fault": source.choice(_FAULTS), "day": day, "day2": day2}
    return world | details | {"number": str(source.randint(10, 99)), "days": str(source.randint(2, 9))}


def _free(source: random.Random) -> str:
    """Return a sentence that has little in common with any other."""
    clause = source.choice(_CLAUSES).format(
        who=source.choice(_WHO),
        place=source.choice(_PLACES),
        did=source.choice(_DID),
        what=source.choice(_WHAT),
        when=source.choice(_WHEN),
        how=source.choice(_HOW),
        why=source.choice(_WHY),
        minutes=source.randint(2, 90),
    )
    return f"{clause[0].upper()}{clause[1:]}"


def _chat(world: random.Random, source: random.Random) -> Iterator[str]:
    """Yield a customer's question, then answers that take it up, each with the next question after it."""
    fixed, kind, answer = _chat_world(world), 0, ""
    while True:
        facts = _turn(fixed, source)
        told = " ".join(_free(source) for _ in range(source.randint(1, 3)))
        yield f"{answer}\n\n{facts['name']}: {_ASKED[kind].format(**facts)} {told}"
        added = " ".join(_free(source) for _ in range(source.randint(0, 2)))
        answer = f"\n\nAssistant: {_ANSWERED[kind].format(**facts)} {added}".rstrip()
        kind = source.randrange(len(_ASKED))


def _rules(world: random.Random, source: random.Random) -> Iterator[str]:
    """Yield the rules of a system prompt; after the last one they come again for another shop."""
    while True:
        facts = _turn(_chat_world(world), source)
        yield from (f"{rule.format(**facts)} " for rule in _RULES)


def _code(world: random.Random, source: random.Random) -> Iterator[str]:
    """Yield the parts of a Python module: records, and functions over them that resemble one another."""
    things = world.sample(_THINGS, 4)
    fields = {thing: world.sample(_FIELDS, 5) for thing in things}
    yield f'\n\n"""Reads, checks and writes {things[0]} records and their {things[1]} records."""\n\n'
    yield "from __future__ import annotations\n\nimport json\nfrom dataclasses import dataclass\n"
    for count in itertools.count():
        thing = things[count] if count < 2 else source.choice(things)
        name = thing.capitalize()
        if count < 2:
            lines = "".join(f"    {field}: {_TYPES.get(field, 'str')}\n" for field in fields[thing])
            yield f'\n\n@dataclass(frozen=True)\nclass {name}:\n    """One {thing}."""\n\n    {thing}_id: int\n{lines}'
            continue
        make = source.choice((_function, _worker, _worker))
        yield make(source, thing, source.choice(fields[thing]), source.choice(things))


def _function(source: random.Random, thing: str, field: str, other: str) -> str:
    name, kind, limit = thing.capitalize(), _TYPES.get(field, "str"), source.randint(2, 500)
    key, many = f"{thing}_id", f"{thing}s"
    bodies = (
        f"def find_{thing}_by_{field}({many}: list[{name}], {field}: {kind}) -> {name} | None:\n"
        f'    """Return the first {thing} with this {field}; None if there is none."""\n'
        f"    for {thing} in {many}:\n        if {thing}.{field} == {field}:\n            return {thing}\n"
        "    return None\n",
        f"def {field}_by_{thing}({many}: list[{name}]) -> dict[int, {kind}]:\n"
        f'    """Return the {field} of each {thing} by its id."""\n'
        f"    return {{{thing}.{key}: {thing}.{field} for {thing} in {many}}}\n",
        f"def check_{thing}_{field}({thing}: {name}) -> None:\n"
        f'    """Raise ValueError unless the {field} of the {thing} is valid."""\n'
        f"    if not {thing}.{field}:\n"
        f'        raise ValueError(f"{thing} {{{thing}.{key}}}: {field} is missing")\n'
        f"    if len(str({thing}.{field})) > {limit}:\n"
        f'        raise ValueError(f"{thing} {{{thing}.{key}}}: {field} is longer than {limit}")\n',
        f"def read_{many}(path: str) -> list[{name}]:\n"
        f'    """Return every {thing} of a JSON file with at most {limit} entries."""\n'
        f'    with open(path, encoding="utf-8") as file:\n'
        f"        return [{name}(**entry) for entry in json.load(file)[:{limit}]]\n",
        f"def test_{thing}_with_{field}_and_{other}() -> None:\n"
        f"    {thing} = make_{thing}({key}={limit}, {field}={_literal(source, kind)})\n"
        f"    {other} = make_{other}({other}_id={limit + 1})\n"
        f"    assert find_{thing}_by_{field}([{thing}], {thing}.{field}) == {thing}\n"
        f"    assert {field}_by_{thing}([{thing}]) == {{{limit}: {thing}.{field}}}\n"
        f"    assert {other}.{other}_id != {thing}.{key}\n",
    )
    return f"\n\n{source.choice(bodies)}"


def _worker(source: random.Random, thing: str, field: str, other: str) -> str:
    """Return a function of a few statements over local names, which has little in common with another one."""
    verb, what, result = source.choice(_VERBS), source.choice(_NOUNS), source.choice(_NOUNS)
    value, more = source.sample(_LOCALS, 2)
    condition = source.choice(_CONDITIONS).format(a=value, b=more, n=source.randint(1, 99))
    first, second = (each.format(a=value, b=more, n=source.randint(2, 999)) for each in source.sample(_STEPS, 2))
    return (
        f"\n\ndef {verb}_{what}({thing}: {thing.capitalize()}, {more}: int = {source.randint(0, 64)}) -> float:\n"
        f'    """{verb.capitalize()} the {what} of {other}s by {field}. {_free(source)}"""\n'
        f"    {value} = float(len(str({thing}.{field})))\n    {first}\n    if {condition}:\n        {second}\n"
        f"    return {source.choice(_RESULTS).format(a=value, b=more, n=source.randint(1, 9))}  # {result}\n"
    )


def _literal(source: random.Random, kind: str) -> str:
    number = source.randint(1, 999)
    return {"float": f"{number}.5", "int": str(number)}.get(kind, f'"{source.choice(_CITIES).lower()}-{number}"')


_MAKERS: dict[str, Callable[[random.Random, random.Random], Iterator[str]]] = {
    "chat": _chat,
    "code": _code,
    "rules": _rules,
}
_ENDS = {"chat": "\n\nAssistant:", "code": "\n\n\ndef", "rules": ""}
"""The last words of a text, after which the model goes on."""

KINDS = tuple(_MAKERS)
"""Kinds of made texts: `chat` and `code` for requests and their documents, `rules` for a system prompt."""


def make_text(kind: str, world: int, seed: int, characters: int) -> str:
    """Return a text of at least so many characters.

    Args:
        kind: one of `KINDS`.
        world: seed of what the text is about.
        seed: of the text itself.
        characters: its length, at the least.
    """
    parts, length = [], 0
    # a string as a seed is hashed in the same way by every version of Python
    for part in _MAKERS[kind](random.Random(f"{kind} {world}"), random.Random(f"{kind} {world} {seed}")):
        parts.append(part)
        length += len(part)
        if length >= characters:
            break
    return "".join((*parts, _ENDS[kind]))
