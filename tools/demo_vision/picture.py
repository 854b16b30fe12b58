"""Pictures of shapes, gradients, signs, charts and boards, drawn with Pillow from numbers that a chat can tell of."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from demo_text.draw import Draw
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {
    "red": (214, 40, 40), "green": (46, 150, 62), "blue": (36, 84, 204), "yellow": (244, 208, 40),
    "orange": (240, 132, 24), "purple": (132, 54, 168), "brown": (120, 76, 40), "pink": (242, 130, 170),
}  # fmt: skip
BACKGROUNDS: dict[str, Colour] = {"white": (255, 255, 255), "grey": (176, 176, 176), "black": (16, 16, 16)}
RATIOS = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16), (2, 1), (1, 2))


class Figure(NamedTuple):
    """A shape of a colour, its centre and half its width as parts of the picture's sides and of its shorter side."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float

    @property
    def words(self) -> str:
        """Such as "a red circle"."""
        article = "an" if self.colour[0] in "aeiou" else "a"
        return f"{article} {self.colour} {self.shape}"


def size(draw: Draw, low: int = 32, high: int = 1_000) -> tuple[int, int]:
    """Width and height: a longer side from ``low`` to ``high``, more often short, and one of the usual ratios."""
    longer = max(draw.skewed(low, high), draw.skewed(low, high))
    wide, tall = draw.pick(RATIOS)
    return max(32, longer * wide // max(wide, tall)), max(32, longer * tall // max(wide, tall))


def scene(size: tuple[int, int], figures: Sequence[Figure], background: str = "white") -> Image.Image:
    """Figures on a plain ground."""
    picture = Image.new("RGB", size, BACKGROUNDS[background])
    pen = ImageDraw.Draw(picture)
    for figure in figures:
        x, y = round(figure.x * size[0]), round(figure.y * size[1])
        _shape(pen, figure.shape, x, y, max(4, round(figure.radius * min(size))), COLOURS[figure.colour])
    return picture


SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")


def _shape(pen: ImageDraw.ImageDraw, shape: str, x: int, y: int, r: int, colour: Colour) -> None:
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "cross":
        pen.rectangle((x - r, y - r // 3, x + r, y + r // 3), fill=colour)
        pen.rectangle((x - r // 3, y - r, x + r // 3, y + r), fill=colour)
    elif shape == "star":
        turns = [math.pi * corner / 5 for corner in range(10)]
        reach = [r if corner % 2 == 0 else 0.42 * r for corner in range(10)]
        ends = zip(reach, turns, strict=True)
        pen.polygon([(x + round(a * math.sin(t)), y - round(a * math.cos(t))) for a, t in ends], fill=colour)
    elif shape == "triangle":
        pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=colour)
    elif shape == "diamond":
        pen.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill=colour)
    else:
        raise ValueError(f"no shape {shape!r}")


def gradient(size: tuple[int, int], first: Colour, last: Colour, *, vertical: bool) -> Image.Image:
    """From one colour at the left (or the top) to another at the right (or the bottom)."""
    steps = size[1] if vertical else size[0]
    line = Image.new("RGB", (steps, 1))
    shares = [step / max(1, steps - 1) for step in range(steps)]
    line.putdata([tuple(round(a + (b - a) * share) for a, b in zip(first, last, strict=True)) for share in shares])
    if vertical:
        line = line.transpose(Image.Transpose.ROTATE_270)
    return line.resize(size, Image.Resampling.NEAREST)


def sign(text: str, scale: int, ink: Colour, ground: Colour) -> Image.Image:
    """Text in the bitmap font that comes with Pillow, each of its dots ``scale`` pixels wide."""
    font = ImageFont.load_default_imagefont()
    left, top, right, bottom = font.getbbox(text)
    plain = Image.new("L", (round(right - left) + 6, round(bottom - top) + 6), 0)
    ImageDraw.Draw(plain).text((3, 3), text, fill=255, font=font)
    large = plain.resize((plain.width * scale, plain.height * scale), Image.Resampling.NEAREST)
    picture = Image.new("RGB", large.size, ground)
    picture.paste(ink, mask=large)
    return picture


def bars(size: tuple[int, int], heights: Sequence[tuple[str, int]]) -> Image.Image:
    """A chart of bars, each a colour and a height from 0 to 100."""
    picture = Image.new("RGB", size, BACKGROUNDS["white"])
    pen = ImageDraw.Draw(picture)
    width, height = size
    pitch = width / len(heights)
    for place, (colour, share) in enumerate(heights):
        left, right = round((place + 0.15) * pitch), round((place + 0.85) * pitch)
        pen.rectangle((left, round(height * (1 - share / 105)), right, height - 1), fill=COLOURS[colour])
    return picture


def board(rows: int, columns: int, cell: int, colour: str) -> Image.Image:
    """A chequered board of square cells."""
    picture = Image.new("RGB", (columns * cell, rows * cell), BACKGROUNDS["white"])
    pen = ImageDraw.Draw(picture)
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        if (row + column) % 2:
            x, y = column * cell, row * cell
            pen.rectangle((x, y, x + cell - 1, y + cell - 1), fill=COLOURS[colour])
    return picture
