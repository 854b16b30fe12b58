"""Chats about several pictures, of several turns, with long answers, and without any picture."""

from demo_text.draw import Draw

from demo_vision.picture import COLOURS, SHAPES, Figure, scene, size
from demo_vision.single import NUMBERS, figures, sentence
from demo_vision.talk import Again, Seen, Talk

ORDINALS = ("first", "second", "third", "fourth")
CORNERS = {"triangle": "three", "square": "four", "diamond": "four", "star": "ten", "cross": "twelve"}
MIXED = (
    ("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "blue", "purple"), ("red", "white", "pink"),
    ("black", "white", "grey"), ("orange", "blue", "brown"),
)  # fmt: skip
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
STEPS = {
    "circle": ("Fix one end of a string.", "Tie a pencil to the other end.", "Keep it tight and walk round once."),
    "square": ("Draw a line.", "At both ends go up by its length, at a right angle.", "Join the two ends."),
    "triangle": ("Draw a line.", "Mark a point above its middle.", "Join the point with both ends."),
    "star": ("Mark five points on a circle.", "Join each point with the next but one.", "Fill what the lines enclose."),
    "cross": ("Draw a bar that lies.", "Draw a bar that stands, through its middle.", "Fill both with one colour."),
    "diamond": ("Draw a line that stands.", "Mark a point on either side of its middle.", "Join the ends in turn."),
}


def compare(draw: Draw) -> Talk:
    """Two pictures: which has more."""
    shape, counts = draw.pick(SHAPES), draw.several(range(1, 9), 2)
    shown = []
    for number in counts:
        places = draw.several(range(9), number)
        name = draw.pick(list(COLOURS))
        marks = [Figure(shape, name, (p % 3 + 0.5) / 3, (p // 3 + 0.5) / 3, 0.12) for p in places]
        shown.append(Seen(scene(size(draw, 96, 600), marks)))
    more = 0 if counts[0] > counts[1] else 1
    answer = f"The {ORDINALS[more]}: {NUMBERS[max(counts)]} against {NUMBERS[min(counts)]}."
    return Talk(draw).ask("Which of the two pictures shows more shapes?", answer, *shown)


def series(draw: Draw) -> Talk:
    """Three or four pictures named in order."""
    names = [figures(draw, 1)[0] for _ in range(draw.between(3, 4))]
    shown = [Seen(scene(size(draw, 64, 400), [figure])) for figure in names]
    return Talk(draw).ask("Name the shapes in order.", sentence(", ".join(f.shape for f in names)), *shown)


def odd_one(draw: Draw) -> Talk:
    """Four pictures, of which one differs."""
    (same, other), place = draw.several(SHAPES, 2), draw.below(4)
    kinds = [other if number == place else same for number in range(4)]
    marks = [Figure(kind, draw.pick(list(COLOURS)), 0.5, 0.5, 0.35) for kind in kinds]
    shown = [Seen(scene(size(draw, 64, 320), [mark])) for mark in marks]
    return Talk(draw).ask("Which picture is the odd one out?", f"The {ORDINALS[place]}: it is a {other}.", *shown)


def inventory(draw: Draw) -> Talk:
    """Everything in a picture, in words: a long answer."""
    places = sorted(draw.several(range(9), draw.between(4, 9)))
    marks = [
        Figure(draw.pick(SHAPES), draw.pick(list(COLOURS)), (p % 3 + 0.5) / 3, (p // 3 + 0.5) / 3, 0.12) for p in places
    ]
    lines = [
        sentence(f"at the {ROWS[p // 3]}, {COLUMNS[p % 3]}, there is {mark.words}")
        for p, mark in zip(places, marks, strict=True)
    ]
    answer = f"There are {NUMBERS[len(marks)]} shapes. " + " ".join(lines)
    return Talk(draw).ask("Tell me everything that you see.", answer, Seen(scene(size(draw, 128), marks)))


def dialogue(draw: Draw) -> Talk:
    """A system message and several turns, the later ones about another picture or none."""
    one, two = figures(draw, 2)
    talk = Talk(draw).system(draw.pick(("Answer in as few words as you can.", "You help to sort pictures.")))
    talk.ask("Which shapes are these?", f"A {one.shape} and a {two.shape}.", Seen(scene(size(draw, 96), [one, two])))
    talk.user(f"And the colour of the {two.shape}?").assistant(sentence(two.colour))
    for _ in range(draw.between(0, 2)):
        (figure,) = figures(draw, 1)
        talk.ask("What about this one?", sentence(figure.words), Seen(scene(size(draw, 64, 500), [figure])))
    return talk


def look_again(draw: Draw) -> Talk:
    """One file that is shown twice, by its name."""
    one, two = figures(draw, 2)
    talk = Talk(draw)
    talk.ask("What is on the left?", sentence(one.words), Seen(scene(size(draw, 96, 600), [one, two])))
    talk.named = True
    for message in talk.messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part["image"] = next(iter(talk.files))
    return talk.user("Look again: and on the right?", Again(0)).assistant(sentence(two.words))


def mixing(draw: Draw) -> Talk:
    """No picture: what two colours give."""
    one, two, both = draw.pick(MIXED)
    if draw.chance(0.5):
        one, two = two, one
    return Talk(draw).ask(f"What do {one} and {two} give?", sentence(both))


def corners(draw: Draw) -> Talk:
    """No picture: how many corners a shape has."""
    shape = draw.pick(list(CORNERS))
    return Talk(draw).ask(f"How many corners has a {shape}?", f"A {shape} has {CORNERS[shape]} corners.")


def lesson(draw: Draw) -> Talk:
    """No picture: how to draw one or more shapes."""
    chosen = draw.several(SHAPES, draw.between(1, 4))
    numbered = {shape: [f"{n}. {step}" for n, step in enumerate(STEPS[shape], 1)] for shape in chosen}
    lines = [f"For a {shape}: {' '.join(steps)}" for shape, steps in numbered.items()]
    return Talk(draw).ask(f"How do I draw a {', then a '.join(chosen)}?", "\n".join(lines))


def spelled(draw: Draw) -> Talk:
    """The marks of the format, spelled in a text: they stand for no picture."""
    mark, use = draw.pick(
        (
            ("<|image_pad|>", "stands for a piece of a picture"),
            ("<|vision_start|>", "stands before a picture"),
            ("<|vision_end|>", "stands behind a picture"),
        )
    )
    (figure,) = figures(draw, 1)
    talk = Talk(draw).ask(f"What does {mark} mean?", f"In a chat, {mark} {use}. Spelled in a text it is plain text.")
    if draw.chance(0.6):
        talk.ask("And what is this?", sentence(figure.words), Seen(scene(size(draw, 64, 300), [figure])))
    return talk
