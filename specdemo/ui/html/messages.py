"""Passing messages as HTML: what is happening, its progress, what went wrong."""

from markupsafe import Markup

from specdemo.errors import SpecdemoError
from specdemo.progress import Phase

PHASES = {
    "converting": "Converting the GGUF file, once",
    "loading": "Loading the models",
    "calibrating": "Measuring step costs",
    "warming up": "Warming up",
    "prefilling": "Reading the prompt",
}
_PROGRESS = Markup(
    '<div class="progress" role="status"><p>{text}</p><progress value="{done}" max="{total}"></progress></div>'
)


def describe(phase: Phase) -> str:
    """A phase as a message."""
    return notice(phase_words(phase))


def phase_words(phase: Phase) -> str:
    """A phase in words, such as "Warming up (1 of 2) …"."""
    of = " tokens" if phase.name == "prefilling" else ""
    parts = f" ({phase.done} of {phase.total}{of})" if phase.total else ""
    seconds = f" ({phase.seconds:.0f} s)" if phase.seconds >= 1 else ""
    return f"{PHASES[phase.name]}{parts} …{seconds}"


def progress_html(text: str, done: float, total: float, seconds_left: float | None) -> str:
    """Progress, with a bar."""
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        text += f", about {f'{minutes} min ' if minutes else ''}{seconds} s left"
    return str(_PROGRESS.format(text=text, done=done, total=max(total, 1)))


def notice(text: str) -> str:
    """A passing message as HTML."""
    return str(Markup('<p role="status">{}</p>').format(text))


def code_html(lines: str) -> str:
    """Lines of code as HTML."""
    return str(Markup('<pre role="status" tabindex="0">{}</pre>').format(lines))


def alert(error: SpecdemoError) -> str:
    """An error as HTML."""
    return str(Markup('<p role="alert">{}</p>').format(error))
