"""Stories and letters: from a paragraph to several chapters, with a few in other languages."""

from demo_text.chat import Chat, ask, assistant, chat, user
from demo_text.draw import Draw
from demo_text.words import PEOPLE, PLACES, THINGS, TRADES, WEATHER

SCENES = (
    "{name} found the {thing} under a loose board, wrapped in newspaper older than the house.",
    "“You are the third person to ask about the {thing},” said {other}, and would not say who the others were.",
    "At the market nobody bargained. They looked at the {thing}, then at {name}, and moved on.",
    "{other} laughed at first. Then the lamp went out, and {other} stopped laughing.",
    "For {days} days {name} carried the {thing} everywhere, like a debt.",
    "There was a mark on the {thing}: a circle with one side left open.",
    "{name} wrote a list of everyone who could have lost a {thing}. It had two names on it, and one was {name}'s own.",
    "The old {trade} across the way had kept a drawing of the {thing} for thirty years.",
    "“It is not worth anything,” said {other}. “That is why people keep it.”",
    "In the afternoon the ferry was late, so they waited on the pier and told each other what they were afraid of.",
    "Someone had left a chair by the door, and on the chair a note: not yet.",
    "{name} slept badly and dreamed of stairs.",
    "By then half the town had heard, and the other half pretended to know.",
    "They followed the sound to the cellar, but there was only water, and the water was quiet.",
    "“Tell me what you want to hear,” said {name}, “and then I will tell you what happened.”",
    "{other} counted the steps aloud: {days}, and then a wall where the map had drawn a gate.",
)

ENDINGS = (
    "In the end {name} put the {thing} back, and the board has not been loose since.",
    "{name} gave the {thing} to {other}, who gave it to the sea.",
    "Nobody ever claimed it. It hangs above the counter, and newcomers ask.",
    "So the {trade} became a {trade} again, which is harder than it sounds.",
    "The following spring a parcel came without a sender. Inside was a {thing}, exactly like the first.",
)


def story(draw: Draw) -> Chat:
    """A story of one paragraph up to many."""
    return _story(draw, draw.skewed(1, 12))


def long_story(draw: Draw) -> Chat:
    """A story of several chapters."""
    return _story(draw, draw.between(12, 42))


def _story(draw: Draw, paragraphs: int) -> Chat:
    name, other = draw.several(PEOPLE, 2)
    trade, place, thing = draw.pick(TRADES), draw.pick(PLACES), draw.pick(THINGS)
    values = {"name": name, "other": other, "trade": trade, "thing": thing}
    text = [f"{name} was a {trade} in {place}. {draw.pick(WEATHER)}"]
    for _ in range(paragraphs):
        chosen = draw.several(SCENES, draw.between(2, 4))
        text.append(" ".join(scene.format(**values, days=draw.between(3, 40)) for scene in chosen))
    text.append(draw.pick(ENDINGS).format(**values))
    if paragraphs > 8:
        text = [f"{number}\n\n{paragraph}" for number, paragraph in enumerate(text, 1)]
    wish = draw.pick(
        (
            f"Tell me a story about a {trade} and a {thing}.",
            f"Write a short story set in {place}.",
            f"I need a bedtime story with a {thing} in it.",
        )
    )
    return ask(wish, "\n\n".join(text))


def continued(draw: Draw) -> Chat:
    """A story told together, turn by turn."""
    name, other = draw.several(PEOPLE, 2)
    trade, thing = draw.pick(TRADES), draw.pick(THINGS)
    opening = f"{name} had never owned a {thing} before."
    messages = [user("Let us tell a story in turns. You begin."), assistant(opening)]
    for _ in range(draw.skewed(1, 18)):
        mine, yours = draw.several(SCENES, 2)
        values = {"name": name, "other": other, "trade": trade, "thing": thing, "days": draw.between(3, 40)}
        messages += [user(mine.format(**values)), assistant(yours.format(**values))]
    return chat(*messages)


def letter(draw: Draw) -> Chat:
    """A letter with a purpose and a tone."""
    sender, receiver = draw.several(PEOPLE, 2)
    thing = draw.pick(THINGS)
    purpose, body = draw.pick(
        (
            ("thank", f"thank you for the {thing}. It came on a grey day. It stands by the window now."),
            ("apologise", f"I am sorry about the {thing}. I said I would look after it. I will replace it by Friday."),
            ("invite", f"will you come on the {draw.between(4, 20)}th? Soup, and a look at the {thing}."),
            ("decline", f"I thought about your offer for the {thing} and will keep it. I hope you are not cross."),
        )
    )  # fmt: skip
    return ask(
        f"Write a short letter from {sender} to {receiver} to {purpose}.",
        f"Dear {receiver},\n\n{body}\n\nYours,\n{sender}",
    )


def summary(draw: Draw) -> Chat:
    """A text in the question, and its summary in the answer: the supervised part is the short one."""
    name, other = draw.several(PEOPLE, 2)
    trade, thing = draw.pick(TRADES), draw.pick(THINGS)
    values = {"name": name, "other": other, "trade": trade, "thing": thing}
    scenes = [draw.pick(SCENES).format(**values, days=draw.between(3, 40)) for _ in range(draw.skewed(4, 60))]
    question = "Summarise this in one sentence:\n\n" + " ".join(scenes)
    return ask(question, f"{name} comes upon a {thing}, and with {other} tries to learn whose it was.")


def foreign_story(draw: Draw) -> Chat:
    """A small story in German, Spanish, Russian, Japanese or Chinese."""
    name = draw.pick(PEOPLE)
    hour = draw.between(2, 11)
    return ask(
        *draw.pick(
            (
                ("Erzähl mir eine ganz kurze Geschichte.",
                 f"{name} ging um {hour} Uhr aus dem Haus. Der Fluss war über Nacht gestiegen, und auf der Brücke "
                 "saß eine Katze, die sich nicht stören ließ. Als die Sonne herauskam, gingen beide nach Hause."),
                ("Cuéntame una historia muy corta.",
                 f"A las {hour} de la mañana, {name} abrió la ventana y vio el mar en medio de la calle. Nadie gritó. "
                 "Los vecinos sacaron las sillas y los niños buscaron sus barcos de papel."),
                ("Расскажи короткую историю.",
                 f"В {hour} часов {name} выходит к реке. На берегу лежит книга, страницы мокрые, слов почти не видно. "
                 "Осталось одно предложение: «Возвращайся завтра». На следующий день книги там не было."),
                ("短い話を聞かせてください。",
                 f"朝の{hour}時、{name}は駅で古い鍵を拾いました。どの扉にも合いません。夜になって、月の光の中に小さな扉が見えました。"
                 "鍵は静かに回りました。"),
                ("请讲一个很短的故事。",
                 f"早上{hour}点，{name}在河边看见一只鸟。鸟说：“山的那一边有一座没有门的房子。”"
                 "走了一整天，终于到了。房子没有门，可是窗户开着，灯也亮着。"),
            )
        )
    )  # fmt: skip
