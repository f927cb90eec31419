"""Optimizer steps, and how a GPU repeats them without waiting for the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dumlp_pin.training.averaging import Averaged
from dumlp_pin.training.distributed import Processes
from dumlp_pin.training.feed import Rows, feed
from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.tasks import Task

WARM_UP = 2  # steps of each size before one is captured: libraries set themselves up in them


class Steps:
    """The steps of one model through its epochs: `begin` an epoch, then `take` each of its steps.

    Whatever changes from step to step is on the device: the order of the sets, the learning rates,
    how many steps were taken. So a step that is captured once, as a CUDA graph, is every step. It
    has a stream and random numbers of its own: the graphs of several models run beside one another,
    and each computes what it would have computed alone.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        optimizer: torch.optim.Optimizer,
        averaged: Averaged | None,
        processes: Processes,
        *,
        compile: bool,
    ) -> None:
        self.model, self.task, self.recipe = processes.wrap(model), task, recipe
        self.optimizer, self.averaged, self.processes = optimizer, averaged, processes
        device = self.device = processes.device
        sets, self.sets_a_step = task.size("train"), recipe.batch_size * recipe.accumulate
        self.sizes = [len(step) for step in torch.arange(sets).split(self.sets_a_step)]
        self.order = torch.zeros(sets, dtype=torch.int64, device=device)
        self.rates = torch.zeros(len(self.sizes), device=device)
        self.losses = torch.zeros(len(self.sizes), device=device)
        self.taken = torch.zeros(1, dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group["lr"] = self.rate
        self.loss_of = torch.compile(loss_of, dynamic=False) if compile else loss_of

        self._feed: Iterator[Rows] = iter(())
        self._fed: dict[int, list[Rows]] = {}  # of a step's size: where its rows are put
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._warm: Counter[int] = Counter()
        self._captures = device.type == "cuda" and processes.count == 1 and task.capturable
        if self._captures:
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()
            self._chance = torch.cuda.default_generators[device.index].clone_state()

    @property
    def _resident(self) -> bool:
        return self.task.storage.type == self.device.type

    def begin(self, order: Tensor, rates: Sequence[float], seed: int) -> None:
        """An epoch over the sets in an order (on the CPU), with a learning rate for each step."""
        self.model.train()
        with self._apart():
            torch.manual_seed(seed)
            self.order.copy_(order)
            self.rates.copy_(torch.tensor(rates))
            self.losses.zero_()
            self.taken.zero_()
        if not self._resident:
            steps = order.split(self.sets_a_step)
            batches = [batch for step in steps for batch in self._batches(step)]
            self._feed = feed(self.task, batches, self.device)

    def take(self, number: int) -> None:
        size = self.sizes[number]
        with self._apart():
            if not self._resident:
                self._put_rows(size)
            if size in self._graphs:
                self._graphs[size].replay()
            elif self._captures and self._warm[size] == WARM_UP:
                graph = self._graphs[size] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    self._step(size)
                graph.replay()
            else:
                self._warm[size] += 1
                self._step(size)

    def end(self) -> Tensor:
        """The loss of every step of the epoch, still on the device."""
        if self._captures:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return self.processes.total(self.losses)

    def _step(self, size: int) -> None:
        """One step on as many sets: no value is looked at, so it can be captured."""
        first = self.taken * self.sets_a_step
        sets = self.order[first + torch.arange(size, device=self.device)]
        self.rate.copy_(self.rates[self.taken].squeeze(0))
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(1, device=self.device)
        for number, index in enumerate(self._batches(sets)):
            rows = self.task.rows("train", index) if self._resident else self._fed[size][number]
            # What is compiled is compiled for one size, not again for the few sets left at the end.
            of = self.loss_of if size == self.sets_a_step else loss_of
            loss = of(self.model, self.task, rows, self.recipe.precision == "bf16")
            # Every set of a step weighs the same, however batches and processes share them.
            loss = loss * (len(index) / size)
            (loss * self.processes.count).backward()  # DistributedDataParallel averages gradients
            total += loss.detach()
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update()
        self.losses.index_copy_(0, self.taken, total)
        self.taken += 1

    def _batches(self, sets: Tensor) -> list[Tensor]:
        """The batches of a step, of each the share of this process."""
        return [self.processes.share(batch) for batch in sets.split(self.recipe.batch_size)]

    def _put_rows(self, size: int) -> None:
        """The rows of the next step where a captured step of its size looks for them."""
        coming = [next(self._feed) for _ in range(-(-size // self.recipe.batch_size))]
        if size not in self._fed:
            self._fed[size] = [
                {name: torch.empty_like(values) for name, values in rows.items()} for rows in coming
            ]
        for place, rows in zip(self._fed[size], coming, strict=True):
            for name, values in rows.items():
                place[name].copy_(values)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """On this model's own stream and with its own random numbers, if steps are captured."""
        if not self._captures:
            yield
            return
        generator = torch.cuda.default_generators[self.device.index]
        others = generator.graphsafe_get_state()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        generator.graphsafe_set_state(self._chance)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            generator.graphsafe_set_state(others)


def loss_of(model: nn.Module, task: Task, rows: Rows, bf16: bool) -> Tensor:
    """The mean loss of a batch; of no sets a loss without a gradient."""
    batch = task.prepare("train", rows)
    with torch.autocast(batch.target.device.type, torch.bfloat16, enabled=bf16):
        output = model(**batch.inputs)
    return task.loss(output, batch.target) if len(batch.target) else output.sum() * 0
