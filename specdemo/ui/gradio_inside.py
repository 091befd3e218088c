"""Every undocumented part of Gradio that the page uses or replaces, in one place.

Gradio is pinned to the minor release that was tested. `tests/ui/test_gradio_inside.py` has a test for each of these
parts, to show what a new release changed. To upgrade: raise the pin, run those tests and the page's, and review
`middleware.ROUTES`; a route that a release adds stays closed until it is listed there.

- `Blocks.process_api`, `preprocess_data` and `get_config_file` are overridden: values are checked, and a refusal
  leaves no traceback.
- `Queue.pending_messages_per_session` and `event_ids_to_events` are replaced, `pending_event_ids_session` and
  `clean_events` are used: unread messages, and events queued or running, have budgets.
- `Queue.ANALYTICS_MAX_EVENTS` and `ANAYLTICS_CACHE_FREQUENCY` switch off analytics, whose route is closed.
- `App.state_holder`, `StateHolder` and `SessionState` are replaced: state has a budget, and no visitor has a copy of
  the page's configuration.
- `App.auth`, `tokens`, `cookie_id` and the cookies' names show whether a visitor has signed in.
- `parse_options_header` of `python_multipart` gives the boundary between a form's parts, as Gradio reads it.
- A radio button's label holds an input with its value (`HIDDEN_CHOICE`).
- `EventData._data` holds the data that a script of the page sends with an event; `Api` is an input without a widget.
"""

import asyncio
import contextlib
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from copy import copy
from http.cookies import CookieError, SimpleCookie
from typing import Any

import gradio as gr
from gradio.blocks import BlockFunction
from gradio.components.api_component import Api as Api
from gradio.queueing import Event
from gradio.routes import App
from gradio.state_holder import SessionState, StateHolder
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import Scope

from specdemo.ui import limits
from specdemo.ui.limits import Mailboxes, size_of

_SWEEP_SECONDS = 10.0
HIDDEN_CHOICE = '.no-{0} label:has(input[value="{0}"]) {{ display: none; }}'
"""CSS rule that hides a value of a radio group with the class `no-VALUE`."""


class CheckedBlocks(gr.Blocks):
    """Blocks whose events accept only values that pass `check`, and whose tabs hold no connection open.

    Gradio's heartbeat would hold one per tab; browsers open six connections to a host, so a sixth tab would stall
    them all. Without it, Gradio still notices that a visitor has left, when the connection with a run's updates
    closes; it then closes the run's generator.
    """

    @abstractmethod
    def check(self, blocks: Sequence[Any], values: Sequence[Any]) -> None:
        """Check that an event's values are what its widgets can send.

        Raises:
            gr.Error: there are too few values, or one has another type.
        """

    def get_config_file(self) -> Any:
        """Return the configuration sent to the browser."""
        return super().get_config_file() | {"connect_heartbeat": False}

    async def process_api(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Handle an event. Gradio's own refusals, such as of files that an event names, leave no traceback."""
        try:
            done: dict[str, Any] = await super().process_api(*arguments, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        return done

    async def preprocess_data(
        self, block_fn: BlockFunction, inputs: list[Any], state: SessionState | None, explicit_call: bool = False
    ) -> list[Any]:
        """Check and convert an event's values for its callback.

        Raises:
            gr.Error: a widget could not have sent one of them.
        """
        if block_fn.fn is None:
            raise refusal("The page received something unexpected")
        self.check(block_fn.inputs, inputs)
        try:
            values: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        except (gr.Error, ValueError, OSError) as error:  # out of a widget's bounds, or a file that was not uploaded
            raise refusal("A value is out of bounds, or a file no longer exists") from error
        return values


def refusal(reason: str) -> gr.Error:
    """Return the error for a refused event."""
    return gr.Error(f"{reason}; correct it, or reload the page.", print_exception=False)


class _State(SessionState):
    """State of one session, without the copy of the page's configuration that Gradio keeps for deep links."""

    def __init__(self, blocks: gr.Blocks, holder: "_States") -> None:
        self.blocks_config = copy(blocks.default_config)
        self.config_values: dict[int, Any] = {}
        self.state_data: dict[int, Any] = {}
        self._state_ttl: dict[int, Any] = {}
        self.is_closed = False
        self.STATE_TTL_WHEN_CLOSED = 3600
        self._holder = holder
        self.sizes: dict[int, int] = {}

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        self.config_values.clear()
        if key in self.state_data:
            before, self.sizes[key] = self.sizes.get(key, 0), size_of(value)
            self._holder.grow(self, self.sizes[key] - before)

    def _update_config(self, key: int) -> None:
        pass

    def _update_value_in_config(self, key: int, value: Any) -> None:
        pass


class _States(StateHolder):
    """State of the latest sessions, within a budget of bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __getitem__(self, session: str) -> SessionState:
        if session not in self.session_data:
            self.session_data[session] = _State(self.blocks, self)
        return super().__getitem__(session)

    def update(self, session: str) -> None:
        """Mark a session as used, and drop the oldest ones beyond the capacity."""
        with self.lock:
            if session in self.session_data:
                self.session_data.move_to_end(session)
            while len(self.session_data) > self.capacity:
                self._forget()

    def grow(self, state: _State, size: int) -> None:
        """Add to a session's size, and drop the oldest others until all fit the budget."""
        with self.lock:
            self.bytes += size
            while self.bytes > limits.STATE_BYTES and len(self.session_data) > 1:
                self._forget(but=state)

    def _forget(self, but: _State | None = None) -> None:
        oldest = next(session for session, state in self.session_data.items() if state is not but)
        state = self.session_data.pop(oldest)
        self.time_last_used.pop(oldest, None)
        if isinstance(state, _State):
            self.bytes -= sum(state.sizes.values())
            state.sizes.clear()


class _Events(dict[str, Event]):
    """Events queued or running, by id, and the size of their data in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[str, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def __setitem__(self, name: str, event: Event) -> None:
        super().__setitem__(name, event)
        body = int(event.request.headers.get("content-length", "0"))  # Gradio keeps the body next to the parsed data
        sent = [event.data.data, event.data.event_data] if event.data is not None else []
        self._sizes[name] = body + size_of(sent)

    def pop(self, name: str, *default: Any) -> Any:
        self._sizes.pop(name, None)
        return super().pop(name, *default)


@contextlib.asynccontextmanager
async def with_budgets(app: App) -> AsyncIterator[None]:
    """Run the application with budgets for its queue and state (a lifespan)."""
    queue = app.get_blocks()._queue
    tasks = set[asyncio.Task[None]]()

    def dropped(session: str) -> None:
        """Cancel a session's events, since nobody reads their messages any more."""
        queue.pending_event_ids_session.pop(session, None)
        task = asyncio.get_running_loop().create_task(queue.clean_events(session_hash=session))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    mailboxes = Mailboxes(dropped)
    queue.pending_messages_per_session = mailboxes  # type: ignore[assignment]
    queue.event_ids_to_events = _Events()
    # by default it tabulates the latest 10,000 events after each event, which disturbs the engine's clocks
    queue.ANALYTICS_MAX_EVENTS, queue.ANAYLTICS_CACHE_FREQUENCY = 1, sys.maxsize
    app.state_holder = _States()
    app.state_holder.set_blocks(app.get_blocks())

    async def sweep() -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            mailboxes.expire()

    sweeper = asyncio.create_task(sweep())
    try:
        yield
    finally:
        sweeper.cancel()


def signed_in(scope: Scope) -> bool:
    """Check if a request comes from a signed-in visitor, or the page has no sign-in."""
    app = scope["app"]
    if app.auth is None:
        return True
    cookies = SimpleCookie()
    with contextlib.suppress(CookieError):
        cookies.load(Headers(scope=scope).get("cookie", ""))
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    return any(name in cookies and cookies[name].value in app.tokens for name in names)


def form_boundary(headers: Headers) -> bytes:
    """Return the boundary between the parts of a form, as Gradio reads it; empty if the request is not a form.

    A header can name several boundaries, one of them quoted. The check must use the same one as Gradio, or it would
    count other parts.
    """
    kind, options = parse_options_header(headers.get("content-type"))
    return options.get(b"boundary", b"") if kind == b"multipart/form-data" else b""


def has_messages(scope: Scope, name: str) -> bool:
    """Check if messages exist, or may come, for the session or event of this name."""
    queue = scope["app"].get_blocks()._queue
    return (
        name in queue.pending_messages_per_session
        or name in queue.event_ids_to_events
        or any(name in events for events in queue.pending_event_ids_session.values())
    )


def under_way(scope: Scope, session: str | None) -> int:
    """Return the number of a session's events that are queued or running."""
    return len(scope["app"].get_blocks()._queue.pending_event_ids_session.get(session, ()))


def under_way_from(scope: Scope, address: str) -> int:
    """Return the number of queued or running events of an address, as `limited` names it."""
    events = list(scope["app"].get_blocks()._queue.event_ids_to_events.values())
    hosts = [event.request.client.host for event in events if event.request.client is not None]
    return [limits.limited(host) for host in hosts].count(address)


def queue_is_full(scope: Scope) -> bool:
    """Check if the events queued or running have used up their budget."""
    events = scope["app"].get_blocks()._queue.event_ids_to_events
    return bool(events.bytes >= limits.EVENTS_BYTES)


def event_payload(event: gr.EventData) -> Any:
    """Return the data that a script of the page sent with an event. It is untrusted: anyone can send anything."""
    return event._data
