"""Everyday and office samples: recipes, tables, plans, records as JSON, service dialogues."""

import json

from demo_text.chat import Chat, Message, ask, assistant, chat, system, user
from demo_text.draw import Draw
from demo_text.words import CITIES, GOODS, PEOPLE, TRADES

INGREDIENTS = (
    ("flour", "g", 50), ("milk", "ml", 50), ("lentils", "g", 40), ("onions", "", 1), ("butter", "g", 10),
    ("beans", "g", 65), ("rice", "g", 60), ("carrots", "", 1), ("oil", "ml", 10), ("honey", "g", 15),
    ("yoghurt", "g", 75), ("chickpeas", "g", 70), ("spinach", "g", 90), ("lemons", "", 1), ("walnuts", "g", 20),
    ("semolina", "g", 45),
)  # fmt: skip

STEPS = (
    "Chop the {a} finely and set aside.",
    "Warm the {a} in a heavy pan over low heat for {minutes} minutes.",
    "Stir in the {a} and the {b} until nothing sticks.",
    "Cover and let it rest for {minutes} minutes.",
    "Add the {a} a spoon at a time, tasting as you go.",
    "Fold the {b} into the {a}; do not beat.",
    "Bake for {minutes} minutes, or until the edges are brown.",
    "Rinse the {a} under cold water and drain well.",
    "Season, then scatter the {b} on top.",
)

DISHES = ("stew", "bake", "soup", "flatbread", "salad", "dumplings", "porridge", "tart")


def recipe(draw: Draw) -> Chat:
    """A recipe for a number of people, sometimes scaled in a second turn."""
    people = draw.between(2, 6)
    used = draw.several(INGREDIENTS, draw.between(3, 7))
    dish = f"{used[0][0].rstrip('s')} {draw.pick(DISHES)}"
    steps = []
    for number in range(1, draw.skewed(3, 12) + 1):
        a, b = draw.several([name for name, _, _ in used], 2)
        steps.append(f"{number}. " + draw.pick(STEPS).format(a=a, b=b, minutes=draw.between(1, 9) * 5))
    text = f"{dish.capitalize()} for {people}\n\n{_amounts(used, people)}\n\n" + "\n".join(steps)
    messages = [user(f"How do I make a {dish} for {people}?"), assistant(text)]
    if draw.chance(0.4):
        more = people + draw.between(1, 8)
        scaled = f"Scale by {more}/{people}:\n\n{_amounts(used, more)}\n\nThe steps stay the same."
        messages += [user(f"And for {more}?"), assistant(scaled)]
    return chat(*messages)


def _amounts(used: list[tuple[str, str, int]], people: int) -> str:
    return "\n".join(f"- {people * each}{unit and ' ' + unit} {name}" for name, unit, each in used)


def table(draw: Draw) -> Chat:
    """Rows of a table in the question; totals and extremes in the answer. The longest reach a few thousand tokens."""
    things = draw.several(GOODS, 3)
    rows = [
        (draw.pick(CITIES), draw.between(1, 28), [draw.between(0, 400) for _ in things])
        for _ in range(draw.skewed(3, 110))
    ]
    lines = ["city,day," + ",".join(things)]
    lines += [f"{city},{day:02d}," + ",".join(map(str, counts)) for city, day, counts in rows]
    totals = [sum(counts[column] for _, _, counts in rows) for column in range(3)]
    best = max(rows, key=lambda row: sum(row[2]))
    answer = (
        f"{len(rows)} rows.\n"
        + "\n".join(f"Total {thing}: {total}" for thing, total in zip(things, totals, strict=True))
        + f"\nBusiest row: {best[0]} on day {best[1]} with {sum(best[2])} pieces."
    )
    task = system("You read small CSV tables and report totals.")
    return chat(task, user("Sum this up:\n\n" + "\n".join(lines)), assistant(answer))


def record(draw: Draw) -> Chat:
    """A sentence turned into JSON."""
    name, trade, city = draw.pick(PEOPLE), draw.pick(TRADES), draw.pick(CITIES)
    age, tags = draw.between(19, 80), draw.several(GOODS, draw.between(1, 4))
    data = {"name": name, "trade": trade, "age": age, "city": city, "sells": tags}
    question = f"Extract JSON: “{name}, {age}, is a {trade} from {city} and also sells {', '.join(tags)}.”"
    return ask(question, "```json\n" + json.dumps(data, ensure_ascii=False, indent=2) + "\n```")


def plan(draw: Draw) -> Chat:
    """A day plan with times."""
    city = draw.pick(CITIES)
    minute, lines = draw.between(14, 20) * 30, []
    for _ in range(draw.skewed(3, 14)):
        what = draw.pick(
            (
                "walk along the water", "coffee on the square", "look at the old tram depot", "buy {thing} there",
                "climb to the viewpoint", "lunch with {name}", "visit the workshop of a {trade}", "sit and read",
            )
        ).format(thing=draw.pick(GOODS), name=draw.pick(PEOPLE), trade=draw.pick(TRADES))  # fmt: skip
        lines.append(f"{minute // 60:02d}:{minute % 60:02d} {what}")
        minute += draw.between(1, 4) * 15
    return ask(f"Plan me a slow day in {city}.", "\n".join(lines))


def service(draw: Draw) -> Chat:
    """A customer's complaint handled over several turns."""
    name, thing = draw.pick(PEOPLE), draw.pick(GOODS)
    order = f"{draw.between(100, 999)}-{draw.between(1000, 9999)}"
    messages: list[Message] = [
        system("You work at the help desk of a small mail-order shop. Be brief and kind. Never promise a date."),
        user(f"My {thing} have not arrived."),
        assistant("I am sorry to hear that. Could you give me the order number?"),
        user(f"{order}, name of {name}."),
        assistant(f"Thank you, {name}. Order {order} left our store {draw.between(2, 20)} days ago."),
    ]
    exchanges = (
        ("So where is it now?", "The carrier has it. I have asked them to look for it."),
        ("That is not good enough.", "I understand. I can send the goods again or refund you. Which do you prefer?"),
        ("Send it again.", f"Done. The new parcel holds the same {thing}, and you need not return the old one."),
        ("Can I change the address?", "Yes, as long as it has not been packed. What is the new one?"),
        ("What if both arrive?", "Then keep one as a gift, or refuse the second at the door."),
        ("Refund, please.", "The refund is on its way to the account you paid from."),
        ("Thank you.", "Thank you for your patience. Have a good day."),
    )
    for question, answer in draw.several(exchanges, draw.skewed(1, 7)):
        messages += [user(question), assistant(answer)]
    return chat(*messages)


def log(draw: Draw) -> Chat:
    """A log file in the question and its first error in the answer."""
    second, lines, errors = draw.below(3600), [], []
    for _ in range(draw.skewed(4, 70)):
        second += draw.between(1, 90)
        stamp = f"{8 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        part = draw.pick(("pump", "gate", "feeder", "scale", "label-printer"))
        if draw.chance(0.12):
            cause = draw.pick(("no answer", "value out of range", "queue full"))
            lines.append(f"{stamp} ERROR {part}: {cause}")
            errors.append((stamp, part, cause))
        else:
            lines.append(f"{stamp} INFO  {part}: reading {draw.between(10, 999) / 10}")
    if errors:
        stamp, part, cause = errors[0]
        answer = f"The first of {len(errors)} errors is at {stamp}: {part} reports “{cause}”."
    else:
        answer = "There is no error in this log."
    return ask("What is the first error in this log?\n\n```\n" + "\n".join(lines) + "\n```", answer)
