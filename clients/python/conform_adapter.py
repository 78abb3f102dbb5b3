"""Publishes the messages on stdin, for: fencepost conform publisher -- python3 conform_adapter.py

docs/protocol.md, "Conformance", describes the lines. Each batch has the messages that were read while the batch before it was published.
"""

import base64
import json
import os
import queue
import sys
import threading

import fencepost

lines: "queue.Queue[object]" = queue.Queue()


def read() -> None:
    for line in sys.stdin:
        lines.put(json.loads(line))
    lines.put(None)


def say(number: int, result: fencepost.Result) -> None:
    if result.status == "rejected":
        print("rejected", number, " ".join(str(result.error).split()), flush=True)
    else:
        print("ok" if result.status == "stored" else "unknown", number, result.id, flush=True)


def publish(publisher: fencepost.Publisher, batch: list) -> None:
    numbers, messages = [], []
    for line in batch:
        message = fencepost.Message(line["type"], base64.b64decode(line["payload"]), line["headers"], line.get("key"))
        try:
            fencepost.prepare(message)
        except fencepost.InvalidMessage as error:
            say(line["line"], fencepost.Result("rejected", None, error))
            continue
        numbers.append(line["line"])
        messages.append(message)
    try:
        results = [fencepost.Result("stored", id, None) for id in publisher.publish_many(messages)]
    except fencepost.PublishManyError as error:
        results = error.results
    for number, result in zip(numbers, results):
        say(number, result)


def main() -> None:
    threading.Thread(target=read, daemon=True).start()
    with fencepost.Publisher(os.environ["FENCEPOST_URL"]) as publisher:
        done = False
        while not done:
            batch = [lines.get()]
            while not lines.empty():
                batch.append(lines.get())
            done = batch[-1] is None
            publish(publisher, [line for line in batch if line is not None])


if __name__ == "__main__":
    main()
