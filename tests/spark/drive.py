"""A driver in a process of its own, to be killed: it streams changes into files until it is.

    python drive.py ADDRESS TOPIC FILES CHECKPOINT

Prints a line for each micro-batch that is finished.
"""

import sys

import fasti.spark
from tests.spark.conftest import QUICK


def main(address: str, topic: str, files: str, checkpoint: str) -> None:
    spark = fasti.spark.session("local[2]", "driver", **QUICK)
    stream = (
        spark.readStream.format("fasti")
        .options(address=address, view="changes", topic=topic, maxOffsetsPerTrigger="200")
        .load()
        .writeStream.format("parquet")
        .option("path", files)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    told = -1
    while not stream.awaitTermination(0.02):
        progress = stream.lastProgress
        if progress is not None and progress.batchId > told and progress.numInputRows:
            told = progress.batchId
            print(told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
