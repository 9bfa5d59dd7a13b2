"""The processes: a device trains and sends, an edge waits for its devices and combines, and so does the cloud.

A message is 8 bytes of length and a model; its receiver answers with one byte. A device's turn begins when the first
bytes of the model arrive, so that its computing includes what it takes to receive and to load a model.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hflray.models.paper import HflCnn

PORT = 5000
SHAPE, CLASSES, LEARNING_RATE = (1, 28, 28), 10, 0.05
CONNECT_S = 20.0
PROBES, PROBE_BATCH, PROBE_PAUSE_S = 5, 20, 0.1
Data = tuple[NDArray[np.float32], NDArray[np.int64]]
Vector = NDArray[np.float32]


class DeviceTask(NamedTuple):
    """What a device does in a round; without edge iterations it takes the seconds of single steps."""

    edge: int
    edge_iterations: int
    local_iterations: int
    batch_size: int
    seed: int


class NodeTask(NamedTuple):
    """What an edge or the cloud does in a round: its children with their weights."""

    weights: dict[int, float]
    edge_iterations: int


def exactly(link: socket.socket, count: int) -> bytearray:
    """Receive so many bytes."""
    parts = bytearray(count)
    view = memoryview(parts)
    while len(view):
        size = link.recv_into(view)
        if not size:
            raise ConnectionError("the other end has closed")
        view = view[size:]
    return parts


def send(link: socket.socket, vector: Vector) -> None:
    """Send a model."""
    link.sendall(struct.pack("!q", vector.nbytes) + vector.tobytes())


def receive(link: socket.socket) -> Vector:
    """Receive a model."""
    return np.frombuffer(exactly(link, struct.unpack("!q", exactly(link, 8))[0]), np.float32)


def connect(address: str, number: int) -> socket.socket:
    """Connect to a server that may not listen yet, and say who this is."""
    end_s = time.monotonic() + CONNECT_S
    while True:
        try:
            link = socket.create_connection((address, PORT), timeout=CONNECT_S)
            break
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(struct.pack("!i", number))
    return link


def accept(count: int) -> dict[int, socket.socket]:
    """Return the links of so many children by their numbers."""
    links = {}
    with socket.create_server(("0.0.0.0", PORT)) as server:
        for _ in range(count):
            link, _ = server.accept()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links[struct.unpack("!i", exactly(link, 4))[0]] = link
    return links


class Trainer:
    """The paper's network with the data of a device, or of the test set."""

    def __init__(self, data: Data, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.x, self.y = (torch.from_numpy(array) for array in data)
        self.network = HflCnn(SHAPE, CLASSES)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=LEARNING_RATE)

    @property
    def vector(self) -> Vector:
        """The weights."""
        return parameters_to_vector(self.network.parameters()).detach().numpy().astype(np.float32)

    def load(self, vector: Vector) -> None:
        """Take over weights."""
        vector_to_parameters(torch.from_numpy(vector.copy()), self.network.parameters())

    def step(self, chosen: torch.Tensor) -> None:
        """Make one gradient step with these samples."""
        self.optimiser.zero_grad()
        self.loss(self.network(self.x[chosen]), self.y[chosen]).backward()
        self.optimiser.step()

    def train(self, local_iterations: int, batch_size: int, seed: int) -> None:
        """Make local iterations, each one pass over the data in a new order."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(local_iterations):
            for chosen in torch.randperm(len(self.y), generator=generator).split(batch_size):
                self.step(chosen)

    def accuracy(self) -> float:
        """Return the accuracy on the data."""
        with torch.no_grad():
            return float((self.network(self.x).argmax(1) == self.y).float().mean())


def tasks(control: Connection) -> Iterator[Any]:
    """Say that this process is ready, and yield tasks until there are no more."""
    control.send("ready")
    while (task := control.recv()) is not None:
        yield task


def device(number: int, control: Connection, data: Data, addresses: list[str]) -> None:
    """Be a device."""
    trainer = Trainer(data, number)
    links = [connect(address, number) for address in addresses]
    trainer.train(1, PROBE_BATCH, 0)  # what a first step costs once is nobody's
    for task in tasks(control):
        rows = []
        for _ in range(PROBES if not task.edge_iterations else 0):
            time.sleep(PROBE_PAUSE_S)
            rows.append(_timed(lambda: trainer.step(torch.arange(PROBE_BATCH))))
        for iteration in range(task.edge_iterations):
            link = links[task.edge]
            size = struct.unpack("!q", exactly(link, 8))[0]

            def turn(size: int = size, iteration: int = iteration, task: DeviceTask = task) -> None:
                trainer.load(np.frombuffer(exactly(links[task.edge], size), np.float32))
                trainer.train(task.local_iterations, task.batch_size, task.seed + iteration)

            row = _timed(turn)
            vector, begin_s = trainer.vector, time.monotonic()
            send(link, vector)
            exactly(link, 1)
            rows.append(row | {"bytes": vector.nbytes, "send_s": time.monotonic() - begin_s})
        control.send(rows)


def _timed(action: Callable[[], None]) -> dict[str, float]:
    """Return when an action began and how many seconds and CPU seconds it took."""
    begin_s, cpu_s = time.monotonic(), time.process_time()
    action()
    return {"begin_s": begin_s, "train_s": time.monotonic() - begin_s, "cpu_s": time.process_time() - cpu_s}


def _pass(pool: ThreadPoolExecutor, links: dict[int, socket.socket], vector: Vector, task: NodeTask) -> list[Vector]:
    """Send a model to all children and return theirs, in the order of the task."""

    def one(child: int) -> Vector:
        send(links[child], vector)
        received = receive(links[child])
        links[child].sendall(b".")
        return received

    return list(pool.map(one, task.weights))


def _combined(vectors: list[Vector], task: NodeTask) -> Vector:
    weights = np.array(list(task.weights.values()), np.float32)
    return np.tensordot(weights / weights.sum(), np.stack(vectors), 1).astype(np.float32)


def edge(number: int, control: Connection, children: int, cloud_address: str) -> None:
    """Be an edge: equation (2) after each edge iteration, and its hop to the cloud."""
    links, above = accept(children), connect(cloud_address, number)
    with ThreadPoolExecutor(children) as pool:
        for task in tasks(control):
            vector, combine_s = receive(above), 0.0
            for _ in range(task.edge_iterations):
                vectors = _pass(pool, links, vector, task)
                begin_s = time.monotonic()
                vector = _combined(vectors, task)
                combine_s += time.monotonic() - begin_s
            begin_s = time.monotonic()
            send(above, vector)
            exactly(above, 1)
            row = {"begin_s": begin_s, "train_s": combine_s, "bytes": vector.nbytes}
            control.send([row | {"send_s": time.monotonic() - begin_s}])


def cloud(control: Connection, children: int, data: Data) -> None:
    """Be the cloud: equation (3). It says when the round began, its seconds, and the accuracy after it."""
    links, trainer = accept(children), Trainer(data, 0)
    vector = trainer.vector
    with ThreadPoolExecutor(children) as pool:
        for task in tasks(control):
            begin_s = time.monotonic()
            vector = _combined(_pass(pool, links, vector, task), task)
            round_s = time.monotonic() - begin_s
            trainer.load(vector)
            control.send({"begin_s": begin_s, "round_s": round_s, "accuracy": trainer.accuracy()})
