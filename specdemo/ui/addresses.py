"""Limits for one address: how much it has open at once, and how often it asks.

Addresses of this machine have none: behind a proxy that does not say for whom it asks, everyone has one of these.
Uvicorn takes the word of a proxy on this machine for whom it asks (`X-Forwarded-For`), and of no other.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from time import monotonic

OPEN = 60
"""Requests of one address under way at once; a browser has six, and many browsers may share an address."""
A_MINUTE = 600
"""Requests of one address that change something, in a minute; so many may come at once."""
SIGN_INS = 20
"""Of those, attempts to sign in."""
_KEPT = 10_000  # addresses


@dataclass
class _Allowance:
    """So many at once, and as many a minute."""

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
    """What each address does, of the latest ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Address] = OrderedDict()

    def too_much(self, host: str | None, *, changes: bool, sign_in: bool) -> bool:
        """Whether a request of this address is one too many; it counts unless it is."""
        name = _limited(host)
        if name is None:
            return False
        one = self._of(name)
        if one.open >= OPEN or (sign_in and not one.sign_ins.take()):
            return True
        return changes and not one.requests.take()

    @contextmanager
    def busy(self, host: str | None) -> Iterator[None]:
        """While a request of this address is under way."""
        name = _limited(host)
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
        one = self._known.setdefault(name, _Address())
        self._known.move_to_end(name)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return one


def _limited(host: str | None) -> str | None:
    """The name to count an address under, None if it has no limits; a network of IPv6 is one."""
    try:
        address = ip_address(host or "")
    except ValueError:  # no address, as in tests and behind sockets of the system
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else str(IPv6Address(int(address) >> 64 << 64))
        address = address.ipv4_mapped
    return None if address.is_loopback else str(address)
