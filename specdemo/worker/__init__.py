"""The engine in a separate process, for the page.

A step of a GenAI pipeline keeps Python's global lock until it is done. In the server's own process it would
stall every visitor's page, and answering visitors would disturb the clocks. It also means that a crash inside
a driver, or a lack of memory, ends one job and not the server, and that loading can be interrupted.

Messages: a `Job` to the child; back comes what it yields, including `Phase` values, as `child.send_all` sends it.
"""

from specdemo.worker.jobs import EngineFactory, Engines, IfLoaded, Job, Prepare, Race, WithEngine, WithLoader
from specdemo.worker.process import Worker

__all__ = ["EngineFactory", "Engines", "IfLoaded", "Job", "Prepare", "Race", "WithEngine", "WithLoader", "Worker"]
