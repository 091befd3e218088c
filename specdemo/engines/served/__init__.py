"""Servers that decode elsewhere: `ServedEngine` asks them, and reads what they tell of their rounds."""

from specdemo.engines.served.engine import ServedEngine as ServedEngine
from specdemo.engines.served.engine import served_pair as served_pair
