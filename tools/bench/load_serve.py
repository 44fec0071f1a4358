"""How many requests does `lipcert serve` answer, how fast, and does its memory stay flat?

    python -m tools.bench.load_serve --seconds 10 --out results/bench/serve.json
    python -m tools.bench.load_serve --seconds 10 --soak 600 --out results/bench/serve.json

Starts the service on a free port of 127.0.0.1, once for each batch size, and lets clients (threads of this
process, which share the machine's cores with it) post 32x32 pictures as fast as they are answered. `--soak`
goes on with the largest batch size for so many seconds, and notes the memory as it goes. Every answer has to
be 200 and right; anything else counts as an error. `python -m tools.fill_docs` writes the record into
docs/serve.md.
"""

import argparse
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lipcert.machine import command_line, cpu_model

NETWORK = "lipconvnet5-cifar10"
COUNTED = ("lipcert_batch_pictures_sum", "lipcert_batch_pictures_count", "process_cpu_seconds_total")
"""Pictures, batches and processor time of the service so far."""
LONGEST = 900
"""Seconds of any single part; this is no way to keep a machine busy for days."""


def picture(seed: int) -> bytes:
    """A smooth picture, so that its size is that of a photo rather than of noise."""
    waves = np.random.default_rng(seed).normal(size=(4, 4, 3))
    levels = (255 / (1 + np.exp(-waves))).astype(np.uint8)
    pixels = Image.fromarray(levels).resize((32, 32), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    pixels.save(file, "PNG")
    return file.getvalue()


PICTURES = [picture(seed) for seed in range(16)]


@contextmanager
def service(batch: int) -> Iterator[int]:
    """The port of a service that runs."""
    options = [NETWORK, "--port", "0", "--batch", str(batch)]
    command = [sys.executable, "-m", "lipcert", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while not (found := re.search(r"127\.0\.0\.1:(\d+);", process.stdout.readline())):
            if process.poll() is not None:
                raise SystemExit("the service did not start")
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def get(port: int, path: str) -> str:
    with closing(connection_to(port)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def metric(port: int, name: str) -> float:
    return float(re.findall(rf"^{name} (\S+)$", get(port, "/metrics"), re.MULTILINE)[0])


class Clients:
    """Threads that post pictures until `finish`; each keeps its connection."""

    def __init__(self, port: int, count: int) -> None:
        self.port, self.seconds, self.errors = port, list[float](), list[str]()
        with closing(connection_to(port)) as connection:
            self.expected = [self.post(connection, content)[0] for content in PICTURES]
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(count)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def post(self, connection: http.client.HTTPConnection, content: bytes) -> tuple[str, float]:
        """The predicted class, and how long that took."""
        start = time.perf_counter()
        connection.request("POST", "/certify", content)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {body.decode(errors='replace')}")
        return str(json.loads(body)["prediction"]), time.perf_counter() - start

    def work(self, number: int) -> None:
        connection = connection_to(self.port)
        while not self.stop.is_set():
            number = (number + 1) % len(PICTURES)
            try:
                found, seconds = self.post(connection, PICTURES[number])
                if found != self.expected[number]:
                    raise ValueError(f"got {found}, alone it was {self.expected[number]}")
                self.seconds.append(seconds)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                connection.close()
        connection.close()

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def connection_to(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def load(port: int, clients: int, seconds: float, every: float | None = None) -> dict[str, Any]:
    """What happened under load; with `every`, the memory after each so many seconds too."""
    working = Clients(port, clients)
    before = {name: metric(port, name) for name in COUNTED}
    start, memory = time.perf_counter(), [metric(port, "process_resident_memory_bytes")]
    working.start()
    try:
        while (left := start + seconds - time.perf_counter()) > 0:
            time.sleep(min(left, every or left))
            if every is not None:
                memory.append(metric(port, "process_resident_memory_bytes"))
    finally:
        working.finish()
    elapsed = time.perf_counter() - start
    memory.append(metric(port, "process_resident_memory_bytes"))
    pictures, batches, cpu = (metric(port, name) - before[name] for name in COUNTED)
    times = np.sort(working.seconds)
    return {
        "clients": clients,
        "seconds": round(elapsed, 1),
        "requests": len(times),
        "requests_per_second": round(len(times) / elapsed, 1),
        "p50_ms": round(1000 * float(np.quantile(times, 0.5)), 1),
        "p99_ms": round(1000 * float(np.quantile(times, 0.99)), 1),
        "cpu_ms": round(1000 * cpu / pictures, 1),
        "mean_batch": round(pictures / batches, 1),
        "errors": len(working.errors),
        "first_errors": working.errors[:5],
        "memory_mb": [round(value / 1e6, 1) for value in memory],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10, help="for each batch size")
    parser.add_argument("--soak", type=float, default=0, help="seconds at full load in the end")
    parser.add_argument("--clients", type=int, default=32, help="concurrent connections")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--out", type=Path, default=Path("results/bench/serve.json"))
    options = parser.parse_args()
    if max(options.seconds, options.soak) > LONGEST or options.clients > 256:
        parser.error(f"at most {LONGEST} seconds for any part, and 256 clients")
    record: dict[str, Any] = {
        "network": NETWORK,
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
            "load_before": round(os.getloadavg()[0], 1),  # of other work, which takes its share
        },
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "versions": {name: version(name) for name in ("lipcert", "torch", "fastapi", "uvicorn")},
        "command": command_line(),
        "alone": {},
        "batches": {},
    }
    for batch in options.batches:
        with service(batch) as port:
            load(port, 1, 1)  # the first requests of a process are slow
            if batch == options.batches[-1]:
                record["alone"] = load(port, 1, options.seconds)
            record["batches"][str(batch)] = load(port, options.clients, options.seconds)
            print(f"batch {batch}: {record['batches'][str(batch)]}", flush=True)
            if batch == options.batches[-1] and options.soak:
                record["soak"] = load(port, options.clients, options.soak, every=max(options.soak / 20, 1))
                print(f"soak: {record['soak']}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
