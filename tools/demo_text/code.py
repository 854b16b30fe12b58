"""Samples about code: small functions with tests, queries, reviews, and tool calls with their schemas."""

import json

from demo_text.chat import Chat, Message, ask, assistant, chat, system, user
from demo_text.draw import Draw
from demo_text.words import CITIES, GOODS, PEOPLE

COUNTS = "dict[str, int]"

# (name, purpose, body, result)
FUNCTIONS = (
    ("{noun}_total", "the sum of all counts", "return sum({noun}.values())", "int"),
    ("most_{noun}", "the name with the highest count", "return max({noun}, key={noun}.__getitem__)", "str"),
    ("sorted_{noun}", "the names in order of counts", "return sorted({noun}, key={noun}.__getitem__)", "list[str]"),
    ("nonempty_{noun}", "a copy without zeros", "return {{name: n for name, n in {noun}.items() if n}}", COUNTS),
    ("mean_{noun}", "the mean, 0 for none", "return sum({noun}.values()) / len({noun}) if {noun} else 0", "float"),
    ("has_{noun}", "whether any count is positive", "return any(n > 0 for n in {noun}.values())", "bool"),
)


def function(draw: Draw) -> Chat:
    """One or more Python functions with a usage example."""
    noun = draw.pick(GOODS)
    chosen = draw.several(FUNCTIONS, draw.skewed(1, len(FUNCTIONS)))
    wishes = "; ".join(purpose for _, purpose, _, _ in chosen)
    blocks = []
    for name, purpose, body, result in chosen:
        blocks.append(
            f"def {name.format(noun=noun)}({noun}: {COUNTS}) -> {result}:\n"
            f'    """Return {purpose}."""\n    {body.format(noun=noun)}\n'
        )
    counts = {draw.pick(CITIES): draw.between(0, 90) for _ in range(3)}
    example = "\n".join(f"print({name.format(noun=noun)}({counts!r}))" for name, *_ in chosen)
    return ask(
        f"I have a dict of {noun} per city. Write Python for: {wishes}.",
        "```python\n" + "\n\n".join(blocks) + f"\n\n{example}\n```",
    )


def query(draw: Draw) -> Chat:
    """A question in words and the SQL for it."""
    thing, city, low = draw.pick(GOODS), draw.pick(CITIES), draw.between(2, 60)
    question, sql = draw.pick(
        (
            (f"How many {thing} were sold in {city}?",
             f"SELECT SUM(quantity)\nFROM sales\nWHERE item = '{thing}' AND city = '{city}';"),
            (f"Which cities sold more than {low} {thing}?",
             f"SELECT city, SUM(quantity) AS sold\nFROM sales\nWHERE item = '{thing}'\nGROUP BY city\n"
             f"HAVING SUM(quantity) > {low}\nORDER BY sold DESC;"),
            (f"Delete sales of {thing} older than {low} days.",
             f"DELETE FROM sales\nWHERE item = '{thing}' AND sold_at < CURRENT_DATE - {low};"),
        )
    )  # fmt: skip
    task = "Translate questions into SQL over sales(item, city, quantity, sold_at)."
    return chat(system(task), user(question), assistant(sql))


def review(draw: Draw) -> Chat:
    """A faulty snippet, the fault named and mended."""
    noun, limit = draw.pick(GOODS), draw.between(3, 40)
    fault, mend, why = draw.pick(
        (
            (f"for i in range(1, len({noun})):\n    total += {noun}[i]", f"for item in {noun}:\n    total += item",
             "The loop starts at 1 and leaves out the first element."),
            (f"def add(item, {noun}=[]):\n    {noun}.append(item)\n    return {noun}",
             f"def add(item, {noun}=None):\n    {noun} = [] if {noun} is None else {noun}\n    {noun}.append(item)\n"
             f"    return {noun}",
             "The default list is made once and shared by all calls."),
            (f"while count != {limit}:\n    count += 2", f"while count < {limit}:\n    count += 2",
             f"If count passes {limit} without meeting it, the loop never ends."),
            (f"if {noun} is {limit * 100}:\n    stop()", f"if {noun} == {limit * 100}:\n    stop()",
             "`is` compares identity; two equal numbers may be different objects."),
        )
    )  # fmt: skip
    return ask(f"What is wrong here?\n\n```python\n{fault}\n```", f"{why}\n\n```python\n{mend}\n```")


def _tool(name: str, description: str, /, **properties: str) -> dict[str, object]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in properties.items()},
                "required": list(properties),
            },
        },
    }


TOOLS = {
    "get_weather": _tool("get_weather", "Current weather in a city.", city="string"),
    "count_stock": _tool("count_stock", "How many pieces of an item are in stock.", item="string"),
    "order": _tool("order", "Order pieces of an item.", item="string", quantity="integer"),
    "calculate": _tool("calculate", "Evaluate an arithmetic expression.", expression="string"),
    "find_contact": _tool("find_contact", "Look up a person's telephone number.", name="string"),
}


def tool_session(draw: Draw) -> Chat:
    """A chat in which the assistant calls tools: calls, results and the answers drawn from them."""
    offered = draw.several(list(TOOLS), draw.between(1, len(TOOLS)))
    messages: list[Message] = []
    if draw.chance(0.5):
        messages.append(system("You run errands with the functions you are given. Say what you did."))
    for _ in range(draw.skewed(1, 12)):
        name = draw.pick(offered)
        question, arguments, result, answer = _errand(draw, name)
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages += [
            user(question),
            {"role": "assistant", "content": draw.pick(("", "Let me look.", "One moment.")), "tool_calls": [call]},
            {"role": "tool", "name": name, "content": json.dumps(result, ensure_ascii=False)},
            assistant(answer),
        ]
    return {"messages": messages, "tools": [TOOLS[name] for name in offered]}


def _errand(draw: Draw, name: str) -> tuple[str, dict[str, object], dict[str, object], str]:
    """Question, arguments, result and answer of one call."""
    city, thing, person = draw.pick(CITIES), draw.pick(GOODS), draw.pick(PEOPLE)
    a, b = draw.between(3, 900), draw.between(3, 90)
    if name == "get_weather":
        sky = draw.pick(("clear", "rain", "fog", "snow"))
        result, answer = {"celsius": b - 20, "sky": sky}, f"In {city}: {sky}, {b - 20} °C."
        return f"What is it like in {city}?", {"city": city}, result, answer
    if name == "count_stock":
        return f"Do we have {thing}?", {"item": thing}, {"pieces": a}, f"Yes, {a} pieces."
    if name == "order":
        answer = f"I ordered {b} {thing}; the order number is {a}."
        return f"Order {b} {thing}.", {"item": thing, "quantity": b}, {"order": a, "accepted": True}, answer
    if name == "calculate":
        text = f"{a} * {b} + {a}"
        return f"What is {text}?", {"expression": text}, {"value": a * b + a}, f"It is {a * b + a}."
    number = f"0{draw.between(200, 999)} {draw.between(1000, 9999)}"
    return f"What is {person}'s number?", {"name": person}, {"number": number}, f"{person}: {number}."
