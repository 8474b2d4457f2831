"""`format("fasti")`: the data source that Spark finds by its name."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fasti.errors import InvalidArgument
from fasti.spark.errors import as_spark_errors
from fasti.spark.feed_stream import FeedStream
from fasti.spark.log_stream import LogStream
from fasti.spark.options import Options
from fasti.spark.reads import reader_of
from fasti.spark.sink import BatchWriter, StreamWriter
from fasti.spark.views import View


class FastiSource(DataSource):
    """Topics as DataFrames. The options stand in the guide to Spark."""

    @classmethod
    def name(cls) -> str:
        return "fasti"

    def schema(self) -> StructType:
        """The view's, with the columns that were asked for."""
        with as_spark_errors():
            return from_arrow_schema(_view(Options.reading(self.options)).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        with as_spark_errors():
            options = Options.reading(self.options)
            return reader_of(options, _view(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with as_spark_errors():
            options = Options.reading(self.options, stream=True)
            kind = FeedStream if options["view"] == "changes" else LogStream
            return kind(options, _view(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with as_spark_errors():
            return BatchWriter(Options.writing(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        with as_spark_errors():
            return StreamWriter(Options.writing(self.options, stream=True), schema, overwrite)


def _view(options: Options, schema: StructType | None = None) -> View:
    view = options["view"]
    payload = view != "changes" or options["payload"]
    whole = View(view, options["columns"], payload, options["includeHeaders"])
    return whole if schema is None else _narrowed(whole, schema, options)


def _narrowed(whole: View, schema: StructType, options: Options) -> View:
    """The columns of a schema that the user gave, or of our own. Raises `invalid_argument`."""
    names = [field.name for field in schema.fields]
    if names == [column.name for column in whole.columns]:
        pass
    elif options["columns"] is not None:
        raise InvalidArgument(
            "give the columns by the option 'columns' or by a schema, not by both", field="columns"
        )
    view = View(whole.name, names)
    for field, expected in zip(schema.fields, from_arrow_schema(view.schema).fields, strict=True):
        if field.dataType != expected.dataType:
            raise InvalidArgument(
                f"column {field.name!r} of the schema is {field.dataType.simpleString()}: expected "
                f"{expected.dataType.simpleString()}",
                field=field.name,
            )
        if not field.nullable:
            raise InvalidArgument(
                f"column {field.name!r} of the schema may not be null: every column of a view may",
                field=field.name,
            )
    return view
