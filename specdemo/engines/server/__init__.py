"""Servers that decode elsewhere: `ServedEngine` asks them, and reads what they tell of their rounds."""

from specdemo.engines.server.engine import ServedEngine as ServedEngine
from specdemo.engines.server.engine import served_pair as served_pair
