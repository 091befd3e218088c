"""Prompts for the target: human prompts, tasks about passages, patterns of words, and questions of its own.

A chat model was trained on both sides of a conversation, so given the start of a user's turn it also writes the
question (self-synthesis: Magpie, arXiv 2406.08464). Patterns ensure that every kind of task occurs; human prompts are
longer, messier and more varied, and a draft that has seen none of them predicts their answers much worse.

In a pattern, `{thing}` and the like stand for a word from that list, `{number}` for a small number, `{text}` for a
few sentences of a text. A pattern may name a list twice; each occurrence is drawn separately.
"""

import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from specdemo.errors import FileError
from specdemo.train.corpus import Label

NUMBERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 24, 25, 30, 36, 40, 45, 50, 60, 75, 100, 120, 150, 250)
SENTENCES, PASSAGE = (2, 5), (3, 10)  # minimum and maximum sentences of a text in a pattern, and of a passage
LONGEST_TEXT = 700  # characters of a text in a pattern
_READ, _PIECE, _LEAST = 50_000_000, 4000, 400  # characters read of a file, of a piece, of the shortest piece


class Prompt(NamedTuple):
    """First prompt of a conversation."""

    text: str
    label: Label


def read_prompts(file: Path) -> list[Prompt]:
    """Read prompts: one per line of text, or JSON lines with `prompt` and, optionally, `source` and `kind`.

    Raises:
        FileError: the file is missing or empty, or a JSON line has no prompt.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"The prompts in {str(file)!r} cannot be read; name a text file.") from error
    if file.suffix == ".jsonl":
        found = [_parsed(line, number, file) for number, line in enumerate(lines, 1) if line]
    else:
        found = [Prompt(line, Label(kind_of(line), file.name)) for line in lines if line]
    if not found:
        raise FileError(f"There are no prompts in {str(file)!r}; write one per line.")
    return found


def _parsed(line: str, number: int, file: Path) -> Prompt:
    try:
        row = json.loads(line)
        text = str(row["prompt"])
        return Prompt(text, Label(str(row.get("kind") or kind_of(text)), str(row.get("source") or file.name)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f'Line {number} of {str(file)!r} has no prompt; write JSON objects such as {{"prompt": "Hello"}}.'
        ) from error


def kind_of(text: str) -> str:
    """Guess the kind of task from a request's words, to group results in tables."""
    return next((kind for kind, words in _KINDS.items() if re.search(words, text, re.IGNORECASE)), "question")


_KINDS = {
    "code": r"```|\b(python|java(script)?|c\+\+|sql|html|css|bash|regex|function|script|code|algorithm|api)\b",
    "translation": r"\btranslat|\b(in|into|to) (french|spanish|german|italian|portuguese|english)\b",
    "summary": r"\bsummar|tl;?dr|main (idea|point)|\bkey points|\bshorten",
    "rewriting": r"\brewrit|\bparaphras|\bcorrect|\bgrammar|\brephras|\bedit\b|\bsimplif|\bfix\b|\bmore formal",
    "extraction": r"\bextract|\bclassif|\bidentify|\bfind (all|the)|\bwhich of\b|\bcategor|\bsentiment|\blabel\b",
    "mathematics": r"\bhow (many|much)\b|\bcalculat|\bsolve\b|\bequation|\d+ ?[-+*/%=] ?\d+|\bprobability|\bprove\b",
    "writing": r"\b(write|compose|draft|create|generate|make up|design)\b|\b(story|poem|essay|email|letter|post)\b",
    "list": r"\b(list|name|give me|suggest|recommend|brainstorm|ideas?)\b",
}
"""Regular expressions by kind; the first match wins."""


def from_pattern(random: Random, texts: Sequence[str]) -> Prompt:
    """Fill in a random pattern; `{text}` is a passage of `texts`. Without texts, kinds that need one are left out."""
    kinds = [kind for kind, patterns in PATTERNS.items() if texts or not any("{text}" in one for one in patterns)]
    kind = random.choice(kinds)
    pattern = random.choice(PATTERNS[kind])

    def word(match: re.Match[str]) -> str:
        name = match[1]
        if name == "number":
            return str(random.choice(NUMBERS))
        if name == "text":
            return passage(random, random.choice(texts))
        return random.choice(VOCABULARY[name])

    text = re.sub(r"\{(\w+)\}", word, pattern)
    return Prompt(re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text), Label(kind, "patterns"))


def with_passage(random: Random, texts: Sequence[str]) -> Prompt:
    """Return a task about a passage, which comes before or after it."""
    kind = random.choice(list(PASSAGE_TASKS))
    task, text = random.choice(PASSAGE_TASKS[kind]), passage(random, random.choice(texts), PASSAGE)
    parts = (task, text) if random.random() < 0.8 else (text, task)
    return Prompt("\n\n".join(parts), Label(kind, "passages"))


def passage(random: Random, text: str, sentences: tuple[int, int] = SENTENCES) -> str:
    """Return a few whole sentences from a random place in a text."""
    found = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
    wanted = random.randint(*sentences)
    first = random.randint(0, max(0, len(found) - wanted))
    return " ".join(found[first : first + wanted])[: LONGEST_TEXT * sentences[1] // SENTENCES[1]]


def read_passages(file: Path) -> list[str]:
    """Read a text file in pieces, from which passages are drawn; `.xz` is decompressed.

    Raises:
        FileError: the file cannot be read, or is shorter than a passage.
    """
    try:
        with lzma.open(file, "rt", encoding="utf-8") if file.suffix == ".xz" else file.open(encoding="utf-8") as text:
            lines = " ".join(text.read(_READ).split())
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise FileError(f"The passages in {str(file)!r} cannot be read; name a text file.") from error
    pieces = [lines[at : at + _PIECE] for at in range(0, len(lines), _PIECE)]
    whole = [re.sub(r"^\S*.*?(?<=[.!?])\s+(?=\S)", "", piece, count=1) for piece in pieces]
    found = [piece for piece in whole if len(piece) > _LEAST]
    if not found:
        raise FileError(f"{str(file)!r} holds less than a page of text; name a longer file.")
    return found


def beginning(random: Random) -> str:
    """Return the start of a user's turn for the target to continue; often empty."""
    return random.choice(BEGINNINGS)


PASSAGE_TASKS: dict[str, list[str]] = {
    "summary": [
        "Summarize the following text.",
        "Summarise this passage in one sentence.",
        "Summarize this in three sentences:",
        "Give me the main points of this text as a list.",
        "TL;DR of the following:",
        "What is this passage about?",
        "Write a short summary of the passage below.",
        "Write a title and a one-paragraph summary for this text.",
    ],
    "extraction": [
        "List all the people mentioned in this text.",
        "Extract the names and places from the following passage.",
        "Which sentence in this text is the most important? Quote it.",
        "Find all the verbs in the following text.",
        "Extract the key facts as bullet points.",
        "Quote every sentence that contains dialogue.",
        "Make a JSON object with the people and places in this passage.",
    ],
    "rewriting": [
        "Rewrite the following text in simple words.",
        "Rewrite this passage in modern English.",
        "Correct the grammar and spelling of this text:",
        "Paraphrase the text below.",
        "Make this more formal:",
        "Rewrite this for a ten-year-old.",
        "Rewrite the text in the present tense.",
        "Shorten this text to half its length.",
        "Change this text to the first person.",
    ],
    "translation": [
        "Translate the following into French.",
        "Translate this to Spanish:",
        "Translate the text below to German.",
        "Please translate this passage into Italian.",
        "Translate into Portuguese:",
    ],
    "question": [
        "Answer a question about this text: who is speaking, and to whom?",
        "Read the passage and explain how the main character feels.",
        "What happens next? Continue the story.",
        "Explain the difficult words in this passage.",
        "Who is the main character here, and what do they want?",
        "Write three questions about this text and answer them.",
        "What is the tone of this passage? Explain your answer.",
        "Is the following text fiction or non-fiction? Why?",
    ],
}
"""Tasks about passages, by kind."""

FOLLOW_UPS = [
    "Can you make it shorter?",
    "Can you explain that in simpler words?",
    "Give me an example.",
    "Why?",
    "Thanks! Can you tell me more?",
    "Rewrite it as a list.",
    "Now translate it into Spanish.",
    "Are you sure?",
    "What else should I know?",
    "Make it more formal.",
    "Summarize your answer in one sentence.",
    "Continue.",
]
"""Follow-up prompts, used when the target does not write its own."""

_WORDS = {
    "thing": (
        "bicycle, kettle, umbrella, notebook, bridge, candle, guitar, telescope, carpet, ladder, lamp, "
        "mirror, pencil, wallet, backpack, compass, garden, kitchen, window, clock, piano, camera, ticket, "
        "blanket, bottle, suitcase, hammer, newspaper, battery, calendar, keyboard, microscope, sailboat, "
        "tractor, wheel, chair, shoe, coin, map, letter, tent, drum, spoon, bucket, rope, balloon, kite, "
        "train, violin, stove"
    ),
    "animal": (
        "fox, owl, whale, horse, rabbit, spider, elephant, turtle, penguin, cat, dog, bee, crow, wolf, frog, "
        "bear, dolphin, goat, mouse, parrot, shark, snail, squirrel, tiger, eagle, hedgehog, octopus, camel, "
        "duck, ant"
    ),
    "person": (
        "teacher, sailor, baker, nurse, farmer, painter, engineer, child, grandmother, king, detective, "
        "musician, gardener, pilot, student, doctor, librarian, thief, scientist, soldier, chef, carpenter, "
        "writer, judge, shopkeeper, dancer, journalist, lawyer, astronaut, neighbour"
    ),
    "topic": (
        "photosynthesis, gravity, inflation, democracy, the water cycle, electricity, evolution, recycling, "
        "sleep, memory, the immune system, climate change, volcanoes, earthquakes, black holes, the solar "
        "system, atoms, machine learning, the internet, databases, encryption, probability, statistics, "
        "geometry, algebra, calculus, the French Revolution, the Roman Empire, the Industrial Revolution, the "
        "Renaissance, music theory, poetry, chess, football, cooking, yoga, meditation, budgeting, investing, "
        "marketing, leadership, teamwork, public speaking, job interviews, time management, stress, "
        "friendship, nutrition, vitamins, vaccines, antibiotics, the heart, the brain, DNA, cells, magnets, "
        "sound waves, light, energy, renewable energy, nuclear power, solar panels, rain forests, oceans, "
        "deserts, coral reefs, bees, migration, trade, taxes, insurance, human rights, philosophy, ethics, "
        "logic, language learning, grammar, writing, reading, painting, photography, architecture, bridges, "
        "railways, aeroplanes, rockets, satellites, robots, operating systems, compilers, sorting algorithms, "
        "recursion, open-source software, version control, testing software, web browsers, search engines, "
        "social media, video games, online privacy, tea, coffee, bread, chocolate, cheese, gardening, weather "
        "forecasts, the seasons, tides, the moon, time zones, calendars, money, banks"
    ),
    "place": (
        "Paris, Tokyo, Kenya, Brazil, Canada, Egypt, India, Italy, Iceland, Mexico, Norway, Peru, Spain, "
        "Vietnam, Australia, Berlin, London, New York, Rome, Istanbul, the Alps, the Amazon, Antarctica, the "
        "Sahara, a village, the city, the countryside, the sea, a small island, the mountains, a forest, the "
        "desert, school, the office"
    ),
    "quality": (
        "old, small, strange, quiet, brave, lonely, clever, broken, golden, heavy, hungry, lazy, bright, "
        "modern, cheap, famous, gentle, hidden, kind, lost, magic, noisy, patient, proud, red, shy, simple, "
        "slow, tired, wild, wooden, young, beautiful, dangerous, expensive, friendly, honest, useful, cold, "
        "dark"
    ),
    "action": (
        "learn to swim, save money, fix a bicycle, write a letter, cook rice, paint a wall, plan a trip, "
        "clean a kitchen, grow tomatoes, train a dog, sleep better, run faster, learn a language, play the "
        "guitar, read more, make new friends, start a business, find a job, move to another city, prepare for "
        "an exam, build a shelf, organise a party, back up my files, choose a laptop, bake bread, take better "
        "photos, stop smoking, lose weight, make a website, give a speech, write a book, meditate, remember "
        "names, recycle at home, repair shoes"
    ),
    "task": (
        "reverses a string, counts the vowels in a string, returns the largest number in a list, sorts a list "
        "of numbers, removes duplicates from a list, checks whether a number is prime, returns the factorial "
        "of a number, merges two sorted lists, counts the words in a text, reads a CSV file, computes the "
        "average of a list, finds the second largest number, converts Celsius to Fahrenheit, checks whether "
        "two words are anagrams, flattens a nested list, searches a sorted list, prints a multiplication "
        "table, computes the greatest common divisor, validates an email address, rolls two dice, shuffles a "
        "deck of cards, downloads a web page, parses a date, counts how often each letter occurs, transposes "
        "a matrix, adds two matrices, capitalises every word, generates a random password, finds the longest "
        "word, sums the digits of a number, converts a number to binary, swaps two variables, groups words by "
        "their first letter, checks whether a year is a leap year, rotates a list, implements a stack, "
        "implements a queue, computes compound interest, finds the common elements of two lists, writes a "
        "dictionary to a JSON file, measures how long a function takes, counts the lines of a file, splits a "
        "list into chunks, zips two lists into a dictionary, computes the distance between two points"
    ),
    "code": (
        "Python, Python, Python, Python, Python, JavaScript, Java, C, C++, Rust, Go, bash, SQL, HTML, TypeScript"
    ),
    "language": ("French, Spanish, German, Italian"),
    "sentence": (
        "Where is the train station?| I would like a cup of tea.| The weather is beautiful today.| My brother "
        "lives in the city.| We are going to the market tomorrow.| Can you help me find my keys?| The book is "
        "on the table.| She has been working here for ten years.| I do not understand the question.| The "
        "children are playing in the garden.| How much does this cost?| He forgot to close the window.| It "
        "was raining all night.| They want to buy a new house.| Please send me the report by Friday.| The dog "
        "is sleeping under the tree.| I have never been to this country.| Dinner will be ready in ten "
        "minutes."
    ),
    "clumsy": (
        "me and him goes to the store yesterday| give me the report now| the thing is that the meeting it was "
        "too long| your work is bad and late| i dont think its a good idea but whatever| she don't likes the "
        "new system because slow| we was going to call you but then we didnt| there is many problem in this "
        "plan| the product broke and i want my money| he said that he will came tomorrow maybe| the results "
        "was more better than last year| tell them that they are wrong"
    ),
}

VOCABULARY: dict[str, list[str]] = {
    kind: [word.strip() for word in words.split("|" if "|" in words else ",")] for kind, words in _WORDS.items()
}

PATTERNS: dict[str, list[str]] = {
    "question": [
        "What is {topic}?",
        "Explain {topic} in simple terms.",
        "How does {topic} work?",
        "Why is {topic} important?",
        "What is the difference between a {animal} and a {animal}?",
        "How is {topic} related to {topic}?",
        "Explain {topic} to a ten-year-old.",
        "What are the advantages and disadvantages of {topic}?",
        "Who invented the {thing}?",
        "How do I {action}?",
        "What is the best way to {action}?",
        "Can you give me some advice? I want to {action}.",
        "Tell me about {place}.",
        "What should I know before I travel to {place}?",
        "Describe the life of a {animal}.",
        "What does a {person} do all day?",
        "What would happen without {topic}?",
        "Compare {topic} with {topic}.",
        "Tell me a joke about a {person}.",
        "Where does the {animal} live and what does it eat?",
        "How is a {thing} made?",
        "What is your opinion on {topic}?",
        "Is it hard to {action}?",
    ],
    "story": [
        "Write a short story about a {quality} {animal}.",
        "Tell me a story about a {person} who finds a {quality} {thing}.",
        "Write a story about a {person} and a {animal} in {place}.",
        "Write a poem about {topic}.",
        "Write a poem about a {quality} {thing}.",
        "Write a haiku about a {animal}.",
        "Write a dialogue between a {person} and a {person}.",
        "Continue this story: The {quality} {person} opened the door and saw a {animal}.",
        "Imagine you are a {animal}. Describe your day.",
        "Write a letter from a {person} to a {person}.",
        "Write the first paragraph of a novel about a {quality} {thing} in {place}.",
    ],
    "code": [
        "Write a {code} function that {task}.",
        "Write a Python function that {task}.",
        "Write a {code} program that {task}, and explain it.",
        "How do I write a function in {code} that {task}?",
        "Write a Python class for a {thing}.",
        "Write unit tests for a Python function that {task}.",
        "Write an SQL query that finds every {person} with more than {number} orders.",
        "Write HTML for a page about {topic}.",
        "Explain what a {code} function that {task} looks like, step by step.",
    ],
    "list": [
        "List {number} facts about {topic}.",
        "Give me {number} ideas for a gift for a {person}.",
        "Name {number} things to do in {place}.",
        "List the steps to {action}.",
        "Give me {number} tips to {action}.",
        "List {number} reasons to learn about {topic}.",
        "Make a packing list for a trip to {place}.",
        "What are the main parts of a {thing}?",
        "Give me a recipe with {number} ingredients.",
        "Make a weekly plan to {action}.",
        "Suggest {number} names for a {quality} {animal}.",
    ],
    "summary": [
        "Summarize the following paragraph: {text}",
        "Summarize this in one sentence: {text}",
        "What is the main idea of this text? {text}",
        "Give me the key points of the following text:\n\n{text}",
        "Summarize the text below.\n\n{text}",
    ],
    "rewrite": [
        "Rewrite this in simpler words: {text}",
        "Rewrite the following text so that it sounds more formal: {text}",
        "Make this shorter: {text}",
        "Rewrite this sentence more politely: {clumsy}",
        "Correct the grammar of this sentence: {clumsy}",
        "Rewrite this as a professional email: {clumsy}",
        "Turn this text into a list of bullet points: {text}",
    ],
    "translation": [
        "Translate into {language}: {sentence}",
        'Translate the following sentence to {language}: "{sentence}"',
        "How do you say '{sentence}' in {language}?",
    ],
    "letter": [
        "Write an email to a {person} about {topic}.",
        "Write an email to my boss. I need a day off because I have to {action}.",
        "Write a product description for a {quality} {thing}.",
        "Write a speech about {topic}.",
        "Write an introduction to an essay about {topic}.",
        "Write a review of a {quality} {thing}.",
    ],
    "sum": [
        "What is {number} times {number}?",
        "What is {number} plus {number} minus {number}?",
        "A {thing} costs {number} dollars. How much do {number} of them cost?",
        "A {person} has {number} coins and gives away {number}. How many are left? Explain your steps.",
        "Solve for x: {number}x + {number} = {number}.",
        "A train travels {number} miles in {number} hours. What is its average speed?",
        "What is {number} percent of {number}?",
        "If {number} people share {number} apples, how many does each get?",
    ],
}

BEGINNINGS: list[str] = [""] * 4 + [
    beginning.strip()
    for beginning in [
        "Write a short story about",
        " Write a Python function that",
        " Explain",
        " What is",
        " How do I",
        " List five",
        " Summarize the following text:",
        " Rewrite the following sentence",
        " Translate",
        " Why",
        " Write a",
        " Give me a recipe for",
        " Write an email",
        " Write a poem about",
        " Who was",
        " Solve the following problem:",
        " What are the",
        " Describe",
        " Compare",
        " Can you help me",
        " Write code that",
        " Create a",
        " Tell me about",
        " How can I",
        " Is it",
        " Write a function in",
        " Edit this paragraph:",
        " What happened in",
        " Calculate",
        " Give me",
        " I want to",
        " I need",
    ]
]
"""Starts of a user's turn for the target to continue; empty for a turn of its own."""
