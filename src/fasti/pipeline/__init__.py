"""Fasti's data pipeline: the change feed as bronze, silver and gold tables, on Spark.

Needs the extra `fasti[spark]`.
"""
