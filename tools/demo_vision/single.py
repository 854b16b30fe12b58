"""Chats about one picture: shapes, colours, counts, places, words, sums, gradients, charts and boards."""

from demo_text.draw import Draw

from demo_vision.picture import BACKGROUNDS, COLOURS, SHAPES, Figure, bars, board, gradient, scene, sign, size
from demo_vision.talk import Seen, Talk

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = (
    "OPEN", "EXIT", "MILK", "TAXI", "BAKERY", "STOP", "MUSEUM", "TICKETS", "PLATFORM 9", "NO SMOKING", "WET PAINT",
    "ROOM 12", "LIBRARY", "PUSH", "PULL", "CAFE", "BUS 40", "SALE", "HARBOUR", "MIND THE STEP",
)  # fmt: skip


def sentence(words: str) -> str:
    """Upper case at the start, a full stop at the end."""
    return f"{words[0].upper()}{words[1:]}."


def figures(draw: Draw, count: int) -> list[Figure]:
    """Figures of different shapes and colours beside one another."""
    shapes, colours = draw.several(SHAPES, count), draw.several(list(COLOURS), count)
    pairs = enumerate(zip(shapes, colours, strict=True))
    return [Figure(shape, colour, (n + 0.5) / count, 0.5, 0.4 / count) for n, (shape, colour) in pairs]


def one_shape(draw: Draw) -> Talk:
    """Name a shape."""
    (figure,) = figures(draw, 1)
    ground = draw.pick(list(BACKGROUNDS))
    seen = Seen(scene(size(draw), [figure], ground))
    question, answer = draw.pick(
        (
            ("What is this?", sentence(figure.words)),
            ("Which shape do you see?", f"A {figure.shape}."),
            ("Describe the picture.", sentence(f"{figure.words} on a {ground} background")),
        )
    )
    return Talk(draw).ask(question, answer, seen)


def colour(draw: Draw) -> Talk:
    """The colour of one of a few shapes."""
    shown = figures(draw, draw.between(1, 3))
    asked = draw.pick(shown)
    seen = Seen(scene(size(draw, 96), shown, draw.pick(list(BACKGROUNDS))))
    return Talk(draw).ask(f"Which colour is the {asked.shape}?", sentence(asked.colour), seen)


def count(draw: Draw) -> Talk:
    """Count shapes of one kind on a grid of places."""
    number, shape, name = draw.between(1, 9), draw.pick(SHAPES), draw.pick(list(COLOURS))
    places = draw.several(range(9), number)
    shown = [Figure(shape, name, (p % 3 + 0.5) / 3, (p // 3 + 0.5) / 3, 0.12) for p in places]
    plural = f"{shape}es" if shape == "cross" else f"{shape}s"
    seen = Seen(scene(size(draw, 96), shown))
    return Talk(draw).ask(f"How many {plural} are there?", sentence(NUMBERS[number]), seen)


def place(draw: Draw) -> Talk:
    """What is on the other side."""
    one, other = figures(draw, 2)
    side = "right"
    if draw.chance(0.5):
        one, other = one._replace(x=0.5, y=0.25), other._replace(x=0.5, y=0.75)
        side = "bottom"
    answer = {"right": f"to the left of the {other.shape}", "bottom": f"above the {other.shape}"}[side]
    seen = Seen(scene(size(draw, 96), [one, other], draw.pick(list(BACKGROUNDS))))
    return Talk(draw).ask(f"What is {answer}?", sentence(one.words), seen)


def word(draw: Draw) -> Talk:
    """Read a sign."""
    text = draw.pick(WORDS)
    black, white = BACKGROUNDS["black"], BACKGROUNDS["white"]
    ink, ground = draw.pick(((black, COLOURS["yellow"]), (white, COLOURS["blue"]), (black, white)))
    seen = Seen(sign(text, draw.skewed(3, 10), ink, ground))
    return Talk(draw).ask(draw.pick(("What does the sign say?", "Read this.")), f"It says {text}.", seen)


def calculation(draw: Draw) -> Talk:
    """Work out what is written."""
    a, b = draw.between(1, 9), draw.between(1, 9)
    seen = Seen(sign(f"{a} + {b} =", draw.skewed(3, 8), (0, 0, 0), (255, 255, 255)))
    return Talk(draw).ask("Work it out.", f"{a} + {b} = {a + b}.", seen)


def slope(draw: Draw) -> Talk:
    """A gradient: where it is brightest, or its colours."""
    vertical = draw.chance(0.5)
    first, last = ("top", "bottom") if vertical else ("left", "right")
    measures = size(draw, 40, 800)
    if draw.chance(0.5):
        dark, light = (20, 20, 28), (248, 246, 236)
        bright_first = draw.chance(0.5)
        seen = Seen(gradient(measures, *((light, dark) if bright_first else (dark, light)), vertical=vertical), True)
        answer = f"At the {first if bright_first else last}."
        return Talk(draw).ask("Where is the picture brightest?", answer, seen)
    one, other = draw.several(list(COLOURS), 2)
    seen = Seen(gradient(measures, COLOURS[one], COLOURS[other], vertical=vertical), True)
    answer = f"From {one} at the {first} to {other} at the {last}."
    return Talk(draw).ask("Which colours does it run between?", answer, seen)


def chart(draw: Draw) -> Talk:
    """Read a chart of bars."""
    colours = draw.several(list(COLOURS), draw.between(3, 6))
    heights = draw.several(range(12, 101, 11), len(colours))
    ranked = [name for _, name in sorted(zip(heights, colours, strict=True), reverse=True)]
    seen = Seen(bars(size(draw, 80, 900), list(zip(colours, heights, strict=True))))
    question, answer = draw.pick(
        (
            ("Which bar is the highest?", f"The {ranked[0]} one."),
            ("Which bar is the lowest?", f"The {ranked[-1]} one."),
            ("Name the bars from the highest to the lowest.", sentence(", ".join(ranked))),
        )
    )
    return Talk(draw).ask(question, answer, seen)


def chequers(draw: Draw) -> Talk:
    """The rows and columns of a board."""
    rows, columns = draw.between(2, 8), draw.between(2, 8)
    seen = Seen(board(rows, columns, draw.skewed(16, 100), draw.pick(list(COLOURS))))
    return Talk(draw).ask("How many rows and columns has the board?", f"{rows} rows and {columns} columns.", seen)


def strip(draw: Draw) -> Talk:
    """A long row or a tall column of shapes: extreme ratios."""
    number, cell = draw.between(5, 14), draw.between(32, 70)
    colours = [draw.pick(list(COLOURS)) for _ in range(number)]
    shape = draw.pick(SHAPES)
    ends = [(n + 0.5) / number for n in range(number)]
    if draw.chance(0.6):
        shown = [Figure(shape, name, end, 0.5, 0.4) for name, end in zip(colours, ends, strict=True)]
        seen = Seen(scene((number * cell, cell), shown))
        return Talk(draw).ask("Read the colours from left to right.", sentence(", ".join(colours)), seen)
    shown = [Figure(shape, name, 0.5, end, 0.4) for name, end in zip(colours, ends, strict=True)]
    seen = Seen(scene((cell, number * cell), shown))
    return Talk(draw).ask("Read the colours from top to bottom.", sentence(", ".join(colours)), seen)
