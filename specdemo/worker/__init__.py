"""The engine in a separate process, for the page.

A GenAI pipeline holds Python's global lock during each step. In the server's own process it would stall every
visitor's page, and answering visitors would disturb the clocks. In a separate process, a crash inside a driver, or a
lack of memory, ends one job and not the server, and loading can be interrupted.

Messages: the parent sends a `Job`; the child returns what it yields, including `Phase` values, by `child.send_all`.
"""

from specdemo.worker.jobs import EngineFactory, Engines, IfLoaded, Job, Prepare, Race, WithEngine, WithLoader
from specdemo.worker.process import Worker

__all__ = ["EngineFactory", "Engines", "IfLoaded", "Job", "Prepare", "Race", "WithEngine", "WithLoader", "Worker"]
