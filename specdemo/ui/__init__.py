"""The page. Gradio makes HTTP clients when it is imported, which fail if a proxy or certificate of the environment
cannot be used; the page needs neither."""

import os
import re

from specdemo.files import environment

_NETWORK = re.compile(r".*_PROXY|SSL_CERT_(FILE|DIR)|SSLKEYLOGFILE", re.IGNORECASE)

with environment(**dict.fromkeys(filter(_NETWORK.fullmatch, os.environ))):
    import gradio  # noqa: F401
