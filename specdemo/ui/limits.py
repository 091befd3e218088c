"""Rate limits per address, and memory budgets for unread messages and session state.

Addresses of this machine have no limits: behind a proxy that does not forward its clients' addresses, every visitor
has one of these. Uvicorn trusts `X-Forwarded-For` only from a proxy on this machine.

Clients decide how much they leave behind: a name for each session, a prompt that is echoed in a message, a chat. So
budgets are in bytes, not in sessions. Values are measured when stored; beyond a budget, the least recently used are
dropped first, and a page whose session was dropped is asked to reload.
"""

import sys
from asyncio import Queue
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from time import monotonic
from typing import Any

OPEN = 60
"""Maximum concurrent requests per address, and events queued or running; a browser opens six connections, and many
browsers may share an address."""
A_MINUTE = 600
"""Maximum state-changing requests per address and minute; all may come at once."""
SIGN_INS = 20
"""Maximum sign-in attempts among these."""
_ADDRESSES = 10_000


@dataclass
class _Allowance:
    """Token bucket of size `most`, refilled at the same number per minute."""

    most: int
    left: float = field(init=False)
    at: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self) -> bool:
        now = monotonic()
        self.left = min(self.left + (now - self.at) * self.most / 60, self.most)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass
class _Address:
    open: int = 0
    requests: _Allowance = field(default_factory=lambda: _Allowance(A_MINUTE))
    sign_ins: _Allowance = field(default_factory=lambda: _Allowance(SIGN_INS))


class Addresses:
    """Request counts of the most recently active addresses."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, _Address] = OrderedDict()

    def too_much(self, host: str | None, *, changes: bool, sign_in: bool) -> bool:
        """Check if a request exceeds its address's limits; if not, count it."""
        name = limited(host)
        if name is None:
            return False
        one = self._of(name)
        if one.open >= OPEN or (sign_in and not one.sign_ins.take()):
            return True
        return changes and not one.requests.take()

    @contextmanager
    def busy(self, host: str | None) -> Iterator[None]:
        """Count a request of this address as open."""
        name = limited(host)
        if name is None:
            yield
            return
        one = self._of(name)
        one.open += 1
        try:
            yield
        finally:
            one.open -= 1

    def _of(self, name: str) -> _Address:
        one = self._recent.setdefault(name, _Address())
        self._recent.move_to_end(name)
        if len(self._recent) > _ADDRESSES:
            self._recent.popitem(last=False)
        return one


def limited(host: str | None) -> str | None:
    """Return the key to count an address under, an IPv6 address by its /64 network; None if it has no limits."""
    try:
        address = ip_address(host or "")
    except ValueError:  # not an IP address, as in tests and behind Unix sockets
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else str(IPv6Address(int(address) >> 64 << 64))
        address = address.ipv4_mapped
    return None if address.is_loopback else str(address)


UNREAD_BYTES = 64 * 2**20
"""Budget for all messages not fetched yet."""
UNREAD_SECONDS = 60.0
"""Time after which a session that fetches no messages loses them, and its events are cancelled."""
MAILBOXES = 1000
EVENTS_BYTES = 128 * 2**20
"""Budget for the data of all events queued or running; one has at most about 6 MB."""
STATE_BYTES = 256 * 2**20
"""Budget for all chats, pairs and finished runs."""


def size_of(value: Any) -> int:
    """Return the bytes of a value and all it refers to; an object that occurs several times counts each time."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        if isinstance(one, str | bytes | bytearray | int | float | type(None)):
            continue
        if isinstance(one, Mapping):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        elif not isinstance(one, type) and not callable(one):
            left += getattr(one, "__dict__", {}).values()
    return total


class Mailbox(Queue[Any]):
    """Messages for one session, in order."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """Call `changed` with the bytes that the content grew by; negative if it shrank."""
        self._changed = changed
        self.bytes = 0
        self.readers = 0
        self.used = monotonic()
        super().__init__()

    async def get(self) -> Any:
        """Wait for the next message."""
        self.readers += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1
            self.used = monotonic()

    def _put(self, item: Any) -> None:
        size = size_of(item)
        super()._put((item, size))
        self._grow(size)

    def _get(self) -> Any:
        item, size = super()._get()
        self._grow(-size)
        return item

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._changed(size)

    def abandoned(self, now: float) -> bool:
        """Check if nobody has read for `UNREAD_SECONDS`."""
        return not self.readers and now - self.used > UNREAD_SECONDS


class Mailboxes(OrderedDict[str, Queue[Any]]):
    """Mailboxes by session. Messages for a session without one are dropped."""

    def __init__(self, dropped: Callable[[str], object] = lambda session: None) -> None:
        """Call `dropped` with each session that loses its mailbox."""
        self._dropped = dropped
        self.bytes = 0
        super().__init__()

    def __setitem__(self, session: str, queue: Queue[Any]) -> None:
        """Open a mailbox, ignoring the given queue."""
        super().__setitem__(session, Mailbox(self._grow))
        self._trim(keep=session)

    def __missing__(self, session: str) -> Queue[Any]:
        """Return a throwaway queue for a session whose mailbox was closed; nobody reads it."""
        return Queue()

    def __delitem__(self, session: str) -> None:
        """Close a mailbox, if there is one."""
        self._close(session)

    def expire(self) -> None:
        """Close the mailboxes that nobody reads."""
        now = monotonic()
        for session in [session for session, box in self._boxes() if box.abandoned(now)]:
            self._drop(session)

    def _grow(self, size: int) -> None:
        self.bytes += size
        if size > 0:
            self._trim()

    def _trim(self, keep: str | None = None) -> None:
        """Close mailboxes, least recently read first, until the budget is met."""
        if self.bytes <= UNREAD_BYTES and len(self) <= MAILBOXES:
            return
        for session, _ in sorted(self._boxes(), key=lambda one: (one[1].readers > 0, one[1].used)):
            if self.bytes <= UNREAD_BYTES and len(self) <= MAILBOXES:
                return
            if session != keep:
                self._drop(session)

    def _drop(self, session: str) -> None:
        self._close(session)
        self._dropped(session)

    def _close(self, session: str) -> None:
        box = super().pop(session, None)
        if isinstance(box, Mailbox):
            self.bytes -= box.bytes
            box._changed = lambda size: None  # a reader may still empty it

    def _boxes(self) -> Iterator[tuple[str, Mailbox]]:
        return ((session, box) for session, box in self.items() if isinstance(box, Mailbox))
