"""Problems worked out in steps: conversions, word problems, long arithmetic, interest tables, statistics of a table."""

from demo_text.chat import Chat, Message, ask, assistant, chat, system, user
from demo_text.draw import Draw
from demo_text.words import CITIES, GOODS, PEOPLE

# (from, to, how many of them)
UNITS = (
    ("kilometres", "metres", 1000), ("hours", "minutes", 60), ("minutes", "seconds", 60),
    ("kilograms", "grams", 1000), ("feet", "inches", 12), ("yards", "feet", 3), ("weeks", "days", 7),
    ("dozens", "pieces", 12), ("litres", "millilitres", 1000), ("miles", "yards", 1760),
    ("gallons", "pints", 8), ("days", "hours", 24), ("nautical miles", "metres", 1852),
)  # fmt: skip


def conversion(draw: Draw) -> Chat:
    """One unit into another, with the factor shown."""
    name, other, factor = draw.pick(UNITS)
    amount = draw.between(2, 400)
    question = draw.pick((f"Convert {amount} {name} to {other}.", f"How many {other} are {amount} {name}?"))
    total = amount * factor
    steps = f"Factor: {factor}.\n{amount} × {factor} = {total}\nSo {amount} {name} are {total} {other}."
    return ask(question, steps)


def temperature(draw: Draw) -> Chat:
    """Celsius to Fahrenheit or back, in steps."""
    celsius = draw.between(-8, 24) * 5
    fahrenheit = celsius * 9 // 5 + 32
    if draw.chance(0.5):
        return ask(
            f"How warm is {celsius} °C in Fahrenheit?",
            f"Multiply by 9/5: {celsius} × 9/5 = {celsius * 9 // 5}. Add 32: {fahrenheit} °F.",
        )
    return ask(
        f"{fahrenheit}°F in Celsius, please.",
        f"Subtract 32: {fahrenheit - 32}. Multiply by 5/9: {celsius}. So it is {celsius} °C.",
    )


def shopping(draw: Draw) -> Chat:
    """A bill with several lines, a total and change."""
    buyer = draw.pick(PEOPLE)
    bought = [(draw.between(2, 12), thing, draw.between(15, 480)) for thing in draw.several(GOODS, draw.between(2, 5))]
    question = (
        f"{buyer} buys "
        + ", ".join(f"{count} {thing} at {money(cents)} each" for count, thing, cents in bought)
        + ". What is the total, and what is the change from the next full ten?"
    )
    lines = [f"{count} {thing}: {count} × {money(cents)} = {money(count * cents)}" for count, thing, cents in bought]
    total = sum(count * cents for count, _, cents in bought)
    paid = -(-total // 1000) * 1000
    lines.append(f"Total: {' + '.join(money(count * cents) for count, _, cents in bought)} = {money(total)}")
    lines.append(f"Change: {money(paid)} - {money(total)} = {money(paid - total)}")
    return ask(question, "\n".join(lines))


def money(cents: int) -> str:
    """Cents as an amount with two decimals."""
    return f"{cents // 100}.{cents % 100:02d}"


def long_multiplication(draw: Draw) -> Chat:
    """A product of two numbers, digit by digit."""
    a, b = draw.between(120, 9_800), draw.between(12, 9_800)
    lines, place = [f"Split {b} into its digits and multiply {a} by each."], 1
    partial = []
    for digit in reversed(str(b)):
        value = a * int(digit) * place
        partial.append(value)
        lines.append(f"{a} × {int(digit) * place} = {value}")
        place *= 10
    running = 0
    for value in partial:
        lines.append(f"{running} + {value} = {running + value}")
        running += value
    lines.append(f"Result: {a} × {b} = {running}")
    return chat(
        system("Show every step. Do not skip any."), user(f"Multiply {a} by {b} by hand."), assistant("\n".join(lines))
    )


def travel(draw: Draw) -> Chat:
    """Two trains towards each other, or one after the other."""
    start, end = draw.several(CITIES, 2)
    fast, slow = draw.between(16, 30) * 5, draw.between(6, 15) * 5
    hours = draw.between(2, 6)
    distance = (fast + slow) * hours
    question = (
        f"A train leaves {start} at {fast} km/h. At the same time another leaves {end} towards it at {slow} km/h. "
        f"The line is {distance} km long. When do they meet, and where?"
    )
    answer = (
        f"Together they close {fast} + {slow} = {fast + slow} km every hour. {distance} / {fast + slow} = {hours}, so "
        f"they meet after {hours} hours. By then the first train has gone {fast} × {hours} = {fast * hours} km, so the "
        f"place is {fast * hours} km from {start} and {distance - fast * hours} km from {end}."
    )
    return ask(question, answer)


def savings(draw: Draw) -> Chat:
    """Compound interest, year by year: from a few lines to a long table."""
    start, rate, years = draw.between(2, 90) * 10_000, draw.between(1, 7), draw.skewed(3, 60)
    rows, balance = ["| year | start | interest | end |", "|---|---|---|---|"], start
    for year in range(1, years + 1):
        interest = (balance * rate + 50) // 100
        rows.append(f"| {year} | {money(balance)} | {money(interest)} | {money(balance + interest)} |")
        balance += interest
    question = f"I put {money(start)} aside at {rate}% a year. Show me how it grows over {years} years, year by year."
    closing = f"\n\nAfter {years} years there are {money(balance)}, of which {money(balance - start)} is interest."
    return ask(question, "\n".join(rows) + closing)


def collatz(draw: Draw) -> Chat:
    """The 3n + 1 rule followed to the end; some starts take very long."""
    start = value = draw.between(5, 2_000)
    steps = []
    while value != 1:
        after = value // 2 if value % 2 == 0 else 3 * value + 1
        rule = f"{value} / 2" if value % 2 == 0 else f"3 · {value} + 1"
        steps.append(f"{len(steps) + 1}. {rule} = {after}")
        value = after
    question = f"Start at {start}. Halve even numbers, turn odd n into 3n + 1. How many steps to reach 1?"
    return ask(question, "\n".join(steps) + f"\n\nThat took {len(steps)} steps.")


def tutor(draw: Draw) -> Chat:
    """A tutoring session: many short exercises in one chat."""
    pupil = draw.pick(PEOPLE)
    messages: list[Message] = [
        system("You are a friendly arithmetic tutor. Set one exercise at a time and correct it."),
        user(f"Hello, I am {pupil}. I want to practise."),
    ]
    right = 0
    rounds = draw.skewed(2, 30)
    opening = f"Welcome, {pupil}. First exercise: "
    for _ in range(rounds):
        a, b = draw.between(6, 60), draw.between(3, 30)
        sign, value = draw.pick((("+", a + b), ("-", a - b), ("×", a * b)))
        messages.append(assistant(f"{opening}{a} {sign} {b}"))
        correct = draw.chance(0.7)
        messages.append(user(str(value if correct else value + draw.pick((-10, -1, 1, 2, 10)))))
        right += correct
        opening = (
            draw.pick(("Right. ", "Correct. ", "Yes! ", "Well done. "))
            if correct
            else f"Not quite: {a} {sign} {b} is {value}. "
        ) + draw.pick(("Next one: ", "Try this: ", "Now: "))
    messages.append(assistant(f"That was the last one. You had {right} of {rounds} right."))
    return chat(*messages)


def chinese_problem(draw: Draw) -> Chat:
    """A word problem in Chinese, solved in steps."""
    boxes, each, eaten = draw.between(3, 20), draw.between(4, 24), draw.between(1, 11)
    total = boxes * each
    question = f"商店里有{boxes}箱苹果，每箱{each}个。上午卖掉了{eaten}个，还剩多少个？请写出步骤。"
    left = total - eaten
    steps = (
        f"第一步：一共有 {boxes} × {each} = {total} 个苹果。",
        f"第二步：{total} - {eaten} = {left}。",
        f"答：还剩{left}个苹果。",
    )
    return ask(question, "\n".join(steps))


def german_problem(draw: Draw) -> Chat:
    """A word problem in German, solved in steps."""
    name, other = draw.several(PEOPLE, 2)
    years, factor = draw.between(4, 15), draw.between(2, 4)
    question = (
        f"{name} ist {years} Jahre alt. {other} ist {factor}-mal so alt. Wie alt sind beide zusammen in fünf Jahren?"
    )
    answer = (
        f"{other} ist {factor} · {years} = {factor * years} Jahre alt. Zusammen sind sie heute "
        f"{years} + {factor * years} = {years + factor * years} Jahre alt. In fünf Jahren kommen zweimal fünf dazu: "
        f"{years + factor * years} + 10 = {years + factor * years + 10}."
    )
    return ask(question, answer)
