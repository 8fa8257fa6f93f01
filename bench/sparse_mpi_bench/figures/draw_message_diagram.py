"""The message diagram of a step: ranks side by side, time downwards, entries as cells in the colour of their sender."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from sparse_mpi_bench.analysis.message_diagram import Message, MessageDiagram, MessageRound
from sparse_mpi_bench.figures.style import COLOURS, GREY, INK, WIDTH, matplotlib, paper

GAP = 4.0  # cells between ranks
LEFT = 17.0  # cells for names
CELL = 1.3  # height of a cell, of its width
FALL = 2.6  # height from the sent entries down to the received ones, in cells
SPACE = 1.6  # distance of two rows


def figure(diagram: MessageDiagram, heading: str) -> Any:
    drawing = _Drawing(diagram)
    drawing.heads()
    for _, alike in groupby(diagram.exchanges, lambda exchange: (exchange.where, exchange.name, exchange.messages)):
        first, *more = alike
        if any(message.bytes for message in first.messages):
            drawing.exchange(first)
        else:
            drawing.numbers([first, *more])
    drawing.result()
    return drawing.finished(heading)


class _Drawing:
    def __init__(self, diagram: MessageDiagram) -> None:
        self.diagram, self.y = diagram, 0.0
        self.ranks, self.n = diagram.gradients.shape
        self.figure = paper(WIDTH, 1)
        self.axes = self.figure.subplots()
        self.rectangle = matplotlib("patches").Rectangle

    def heads(self) -> None:
        for rank in range(self.ranks):
            self.text(self.middle(rank), self.y - 0.7, f"rank {rank}", ha="center", color=COLOURS[rank])
        self.name("gradient", "stronger: larger")
        for rank, gradient in enumerate(self.diagram.gradients):
            self.shades(rank, gradient, COLOURS[rank])
        self.y += CELL + SPACE

    def result(self) -> None:
        self.name("result", "the same on all ranks")
        for rank in range(self.ranks):
            self.shades(rank, self.diagram.result, INK)
        self.y += CELL

    def numbers(self, exchanges: Sequence[MessageRound]) -> None:
        told = sum(exchange.told for exchange in exchanges)
        times = f"{len(exchanges)} times, " if len(exchanges) > 1 else ""
        self.name(_function(exchanges[0]), f"{exchanges[0].name}, {times}{told} B of numbers")
        end = self.left(self.ranks - 1) + self.n
        self.axes.plot([0, end], [self.y + CELL / 2] * 2, color=GREY, linewidth=0.8)
        for rank in range(self.ranks):
            self.axes.plot(self.middle(rank), self.y + CELL / 2, "o", color=GREY, markersize=3)
        self.y += CELL + SPACE

    def exchange(self, exchange: MessageRound) -> None:
        others = [message for message in exchange.messages if message.source != message.dest]
        self.name(_function(exchange), f"{exchange.name}, {sum(message.bytes for message in others)} B")
        below = self.y + CELL + FALL
        for rank in range(self.ranks):
            sent = [message for message in exchange.messages if message.source == rank]
            came = [message for message in exchange.messages if message.dest == rank]
            if sent:
                self.entries(rank, self.y, sent)
            if came:
                self.entries(rank, below, came)
        for message in others:
            if message.bytes:
                self.line(message, self.y + CELL, below)
        self.y = below + CELL + SPACE

    def line(self, message: Message, top: float, bottom: float) -> None:
        aside = self.n * ((message.source + 0.5) / self.ranks - 0.5) * 0.7
        at, to = self.middle(message.source), self.middle(message.dest) + aside
        colour = COLOURS[message.source]
        arrow = {"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": colour, "linewidth": 0.9}
        arrow |= {"shrinkA": 1, "shrinkB": 1, "connectionstyle": "arc3,rad=0"}
        self.axes.annotate("", (to, bottom), (at, top), arrowprops=arrow)

    def entries(self, rank: int, y: float, messages: Sequence[Message]) -> None:
        if any(message.entries is None for message in messages):
            for place, message in enumerate(message for message in messages if message.bytes):
                colour = COLOURS[message.source]
                words = f"{message.bytes} B"
                self.text(self.left(rank) + place * self.n / self.ranks, y + CELL / 2, words, color=colour, fontsize=6)
            return
        senders: dict[int, list[int]] = {}
        for message in messages:
            for index in message.entries or []:
                if message.source not in senders.setdefault(index, []):
                    senders[index].append(message.source)
        for index in range(self.n):
            self.cell(rank, y, index, "none")
            for place, source in enumerate(sorted(senders.get(index, []))):
                width = 1 / len(senders[index])
                self.cell(rank, y, index + place * width, COLOURS[source], width)

    def shades(self, rank: int, values: np.ndarray, colour: str) -> None:
        largest = np.abs(values).max() or 1
        for index, value in enumerate(np.abs(values) / largest):
            self.cell(rank, self.y, index, colour, alpha=float(value))
            self.cell(rank, self.y, index, "none")

    def cell(self, rank: int, y: float, index: float, colour: str, width: float = 1, alpha: float = 1) -> None:
        edge = {"edgecolor": GREY, "linewidth": 0.4, "zorder": 2} if colour == "none" else {"linewidth": 0}
        place = (self.left(rank) + index, y)
        self.axes.add_patch(self.rectangle(place, width, CELL, facecolor=colour, alpha=alpha, **edge))

    def name(self, first: str, second: str) -> None:
        self.text(-LEFT, self.y + 0.35, first)
        self.text(-LEFT, self.y + 1.55, second, color=GREY, fontsize=7)

    def text(self, x: float, y: float, words: str, **options: Any) -> None:
        self.axes.text(x, y, words, va="center", **options)

    def left(self, rank: int) -> float:
        return rank * (self.n + GAP)

    def middle(self, rank: int) -> float:
        return self.left(rank) + self.n / 2

    def finished(self, heading: str) -> Any:
        width = LEFT + self.left(self.ranks - 1) + self.n
        self.axes.set(xlim=(-LEFT, width - LEFT + 0.2), ylim=(self.y + 0.3, -1.6))
        self.axes.axis("off")
        self.figure.set_size_inches(WIDTH, 0.35 + (self.y + 2) * WIDTH / width)
        self.figure.suptitle(heading, x=0.01, ha="left")
        return self.figure


def _function(exchange: MessageRound) -> str:
    return exchange.where.partition(".")[2] or exchange.where
