"""No test is about speed: engines warm up until they are steady and no longer, and a race is repeated once.

Imported by what runs engines in tests, and thereby in their engines' processes too.
"""

from specdemo.measure import repeats, warm_up

warm_up.COLD_SECONDS = 0
warm_up.REPETITION_SECONDS = 0
repeats.MOST = 1
