"""Remote servers: `RemoteEngine` sends them requests and reads what they report of their rounds."""

from specdemo.engines.server.engine import RemoteEngine as RemoteEngine
from specdemo.engines.server.engine import remote_pair as remote_pair
