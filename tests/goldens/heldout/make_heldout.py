"""Write chats.txt: text that nano can continue and was not trained on.

usage: make_heldout.py > chats.txt
The templates are those of nano's training data (stories, lists to JSON), drawn anew with another seed.
"""
import json
import random

BYTES = 160_000
rng = random.Random(20261121)

NAMES = "Anna Ben Chloe David Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul Quinn Rosa Sam Tina".split()
ANIMALS = "cat dog fox rabbit owl mouse bear duck frog horse squirrel turtle".split()
PLACES = "the forest,the park,a small village,the beach,a quiet farm,the mountains,an old castle,the river,a busy market,the library".split(",")
THINGS = "a red ball,a golden key,an old map,a warm scarf,a tiny boat,a shiny stone,a wooden box,a blue kite,a lantern,a basket of apples".split(",")
MOODS = "happy,sad,curious,brave,tired,excited,worried,proud,kind,lonely".split(",")
LESSONS = ["sharing makes everyone happy", "it is good to ask for help", "being kind is never wasted",
           "patience brings its reward", "friends are worth more than treasure", "telling the truth is always best"]


def story():
    hero, friend = rng.sample(NAMES, 2)
    animal, place, thing, mood, lesson = map(rng.choice, (ANIMALS, PLACES, THINGS, MOODS, LESSONS))
    return f"Write a short story about a {animal} named {hero} and {thing}.", " ".join([
        f"Once upon a time, there was a {mood} {animal} named {hero} who lived near {place}.",
        f"One day, {hero} found {thing} on the path and wondered whose it was.",
        rng.choice([f"\"I will look for the owner,\" said {hero}.", f"{hero} decided to keep it safe.", f"{hero} felt very {mood} and called out for help."]),
        f"On the way to {place}, {hero} met {friend}, who looked {rng.choice(MOODS)}.",
        rng.choice([f"\"Have you seen {thing}?\" asked {friend}.", f"\"I lost {thing} this morning,\" said {friend}."]),
        f"{hero} smiled and gave it back.", f"{friend} was so thankful that they became best friends.",
        f"From that day on, {hero} and {friend} played together every day, and they learned that {lesson}."])


def table():
    rows = [(rng.choice(NAMES), rng.randint(18, 70), rng.choice(PLACES).split()[-1]) for _ in range(rng.randint(2, 6))]
    question = "Turn this list into JSON: " + "; ".join(f"{name} is {age} and lives near the {place}" for name, age, place in rows) + "."
    return question, "```json\n" + json.dumps([{"name": n, "age": a, "place": p} for n, a, p in rows], indent=2) + "\n```"


size = 0
while size < BYTES:
    question, answer = story() if rng.random() < 0.7 else table()
    chat = f"<|turn>user\n{question}<turn|>\n<|turn>model\n{answer}<turn|>\n"
    size += len(chat)
    print(chat, end="")
