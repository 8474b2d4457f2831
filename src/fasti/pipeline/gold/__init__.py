"""Gold: what operators ask for, per topic and minute, hour and day.

Plain functions from DataFrames to DataFrames. They take bronze (`transitions`) and silver (`messages`)
and, with `days`, compute those days alone; `update` keeps the tables of a lake so.
"""

from fasti.pipeline.gold.backlog import backlog
from fasti.pipeline.gold.consumers import consumers, day_before
from fasti.pipeline.gold.lateness import lateness
from fasti.pipeline.gold.retries import attempts, retries
from fasti.pipeline.gold.throughput import throughput

__all__ = ["attempts", "backlog", "consumers", "day_before", "lateness", "retries", "throughput"]
