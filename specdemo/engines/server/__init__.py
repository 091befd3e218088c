"""Remote servers: `ServedEngine` sends them requests and reads what they report of their rounds."""

from specdemo.engines.server.engine import ServedEngine as ServedEngine
from specdemo.engines.server.engine import served_pair as served_pair
