"""Apps: functions that handle a topic's messages, and the processes that run them.

    app = fasti.App("fasti://127.0.0.1:7170")

    @app.on("emails", concurrency=8)
    def send(order: Order) -> None: ...

Stands on the SDK alone; nothing of the SDK knows of it.
"""
