"""The state of training: the network, its moving average, the optimizer, the method's state, the step number.

`advance` makes one step. All randomness of step t comes from a generator seeded with (seed, t), so `tensors` is the
complete state: a restored run continues as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from core.config import TrainingConfig
from core.learning.averaging import averaged_tensors, decay_at, move_average
from core.learning.distributed import World
from core.learning.methods import fixmatch, mixmatch, supervised
from core.learning.methods.simclr import pretrain
from core.learning.methods.step import Batch, Losses, Method, Step
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.precision import autocast, loss_scaler
from core.learning.sampling import Shuffled, by_trust, in_shares
from core.learning.schedule import learning_rate_at, optimizer_of, set_rate
from core.learning.tensor_files import load_into, named_tensors
from core.media.feeds import Feed, on_device
from core.runtime import Runtime
from core.types import Report

METHODS: Mapping[str, Method] = {
    "fixmatch": fixmatch.loss,
    "mixmatch": mixmatch.loss,
    "supervised": supervised.loss,
}
MEASURED = ("loss", "labeled_loss", "unlabeled_loss", "labeled_accuracy", "confidence", "used_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTargets:
    """Given targets of a pool's items, such as propagated labels, and the weights of their losses."""

    probabilities: NDArray[np.floating]  # (n, n_classes)
    weights: NDArray[np.floating]  # (n,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The rows of a pool that training may use."""

    feed: Feed
    labeled: NDArray[np.int64]  # (m,) rows with a label
    labels: NDArray[np.int64]  # (m,) their classes
    unlabeled: NDArray[np.int64]  # rows that training may use, including labeled ones
    prior: NDArray[np.float32]  # (n_classes,)
    n_steps: int
    trust: NDArray[np.floating] | None = None  # (m,) in the labels; None: the same in all
    given: PoolTargets | None = None  # None: the method computes its own pseudo-labels


class Learner:
    def __init__(
        self,
        shape: NetworkShape,
        data: TrainingData,
        config: TrainingConfig,
        runtime: Runtime,
        method: Method | None = None,
    ) -> None:
        """`method` replaces that of the settings."""
        self.data, self.config, self.runtime, self.world = data, config, runtime, World.current()
        self.method = method or METHODS[config.method]
        self.network = fresh_network(shape, runtime)
        self.average = fresh_network(shape, runtime)
        self.network.train()
        self.average.eval()
        self.optimizer = optimizer_of(self._shares(), config)
        self.scaler = loss_scaler(runtime, config)
        self.state: dict[str, Tensor] = {}
        self.step = 0
        self.sums = torch.zeros(len(MEASURED), device=runtime.device)
        drawn_labeled = by_trust(data.trust, len(data.labeled))
        if config.balance:
            drawn_labeled = drawn_labeled[in_shares(data.labels[drawn_labeled], data.prior)]
        self._labeled = Shuffled(drawn_labeled, runtime.seed_for("labeled order"))
        self._unlabeled = Shuffled(data.unlabeled, runtime.seed_for("unlabeled order"))
        self._step_seed = runtime.seed_for("training steps")
        self._targets = on_device(np.eye(shape.n_classes, dtype=np.float32)[data.labels], runtime.device)
        self._prior = on_device(data.prior, runtime.device)
        self._forward = self._wrapped()

    def _shares(self) -> dict[float, list[nn.Parameter]]:
        """Parameters by their factor of the learning rate: pretrained layers may have a smaller one than the head."""
        if not self.config.pretrain_steps or self.config.pretrained_rate_scale == 1.0:
            return {1.0: list(self.network.parameters())}
        head = list(self.network.head.parameters())
        pretrained = [p for p in self.network.parameters() if all(p is not own for own in head)]
        return {1.0: head, self.config.pretrained_rate_scale: pretrained}

    def _wrapped(self) -> Callable[[Tensor], Tensor]:
        forward: Callable[[Tensor], Tensor] = self.network
        if self.world.size > 1:
            device_ids = [self.runtime.device.index] if self.runtime.is_cuda else None
            forward = DistributedDataParallel(self.network, device_ids=device_ids, broadcast_buffers=False)
        return torch.compile(forward) if self.config.compile else forward

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a previous model's weights; a head for other classes keeps its random weights."""
        own = self.network.state_dict()
        fitting = {name: tensor for name, tensor in tensors.items() if own[name].shape == tensor.shape}
        for network in (self.network, self.average):
            load_into(network, {**named_tensors(network), **fitting})

    def pretrain_without_labels(self, report: Report) -> None:
        """Contrastive pretraining without labels, before the first step (`core.learning.methods.simclr`)."""
        pretrain(self.network, self.data.feed, self.data.unlabeled, self.config, self.runtime, report)
        move_average(averaged_tensors(self.average), averaged_tensors(self.network), 0.0)

    def advance(self) -> None:
        """One training step, without synchronization with the device."""
        set_rate(self.optimizer, learning_rate_at(self.step, self.data.n_steps, self.config))
        with autocast(self.runtime, self.config):
            losses = self.method(self._next())
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(losses.total).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        decay = decay_at(self.step, self.config.ema_decay) if self.config.ema_decay else 0.0
        move_average(averaged_tensors(self.average), averaged_tensors(self.network), decay)
        self.sums += _measured(losses)
        self.step += 1

    def _next(self) -> Step:
        rng = np.random.default_rng((self._step_seed, self.step))
        chosen = self._labeled.batch(self.step, self.config.labeled_batch)
        unlabeled = self._unlabeled.batch(self.step, self.config.unlabeled_batch)
        own = on_device(self.world.part(chosen), self.runtime.device)
        given_targets, given_weights = self._given(self.world.part(unlabeled))
        return Step(
            network=self._forward,
            layers=self.network,
            labeled=Batch(self.data.labeled[chosen], self.data.feed, rng, self.world),
            targets=self._targets[own],
            unlabeled=Batch(unlabeled, self.data.feed, rng, self.world),
            config=self.config,
            fraction=self.step / self.data.n_steps,
            prior=self._prior,
            state=self.state,
            rng=rng,
            world=self.world,
            given_targets=given_targets,
            given_weights=given_weights,
        )

    def _given(self, rows: NDArray[np.int64]) -> tuple[Tensor | None, Tensor | None]:
        """The given targets of these rows and their weights, on the device."""
        given = self.data.given
        if given is None:
            return None, None
        targets, weights = (values[rows].astype(np.float32) for values in (given.probabilities, given.weights))
        return on_device(targets, self.runtime.device), on_device(weights, self.runtime.device)

    def read_sums(self, n_steps: int) -> dict[str, float]:
        """Means over the last `n_steps` steps, and a reset of the sums; the only synchronization with the device."""
        means = (self.world.mean(self.sums) / n_steps).tolist()
        self.sums = torch.zeros_like(self.sums)
        return dict(zip(MEASURED, means, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by name."""
        parameters = list(self.network.parameters())
        moments = {
            f"optimizer.{number}.{name}": value
            for number, parameter in enumerate(parameters)
            for name, value in self.optimizer.state[parameter].items()
        }
        method = {f"method.{name}": value for name, value in self.state.items()}
        scale = {"scale": torch.tensor(self.scaler.get_scale())}
        return {
            **named_tensors(self.network, "network."), **named_tensors(self.average, "average."), **moments, **method,
            **scale,
        }  # fmt: skip

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Set the state that `tensors` gave after `step` steps."""
        load_into(self.network, tensors, "network.")
        load_into(self.average, tensors, "average.")
        for number, parameter in enumerate(self.network.parameters()):
            prefix = f"optimizer.{number}."
            values = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            self.optimizer.state[parameter] = {
                name: value if name == "step" else value.to(parameter.device) for name, value in values.items()
            }
        device = self.runtime.device
        self.state = {n[len("method.") :]: t.to(device) for n, t in tensors.items() if n.startswith("method.")}
        if self.scaler.is_enabled():
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": float(tensors["scale"])})
        self.step = step


def _measured(losses: Losses) -> Tensor:
    total = losses.total
    parts = (losses.labeled, losses.unlabeled, losses.accuracy, losses.confidence, losses.used)
    return torch.stack([total, *parts]).detach()
