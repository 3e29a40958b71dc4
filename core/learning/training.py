"""Trains a model on a pool: the loop, its checkpoints, its metrics and its errors."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.config import TrainingConfig, to_json
from core.errors import InvalidInput, NotFound, TrainingFailed
from core.learning.calibration import Calibration, calibrate
from core.learning.distributed import World
from core.learning.learner import Learner, PoolTargets, TrainingData
from core.learning.methods import distillation
from core.learning.methods.alignment import class_prior
from core.learning.models import TrainedModel, load_model, save_model
from core.learning.networks.layers import Network
from core.learning.networks.registry import NetworkShape
from core.learning.prediction import Predictions, embeddings_and_logits, logits_of, predict
from core.learning.tensor_files import named_tensors, read_tensors, write_tensors
from core.media.feeds import open_feed
from core.media.inputs import Inputs
from core.runtime import Runtime
from core.types import UNLABELED, Progress, Report, ignore

__all__ = ["Predictions", "TrainedModel", "load_model", "nothing_to_learn", "predict", "save_model", "train"]

HeldOut = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows, labels
SHORTEST_EPOCH, LONGEST_EPOCH = 25, 500  # steps, when training is counted in steps
CHECK_EVERY = 100  # steps between checks of the loss within a long epoch
REPORT_SECONDS = 0.5
MAX_TEST_ITEMS = 1_000  # evaluated after each epoch; all of them at the end
SMALLEST_BANK = 4
CHECKPOINT = "checkpoint.safetensors"


def nothing_to_learn(labels: NDArray[np.int64], n_classes: int) -> str | None:
    """The reason why no model can be trained on labels (n,), or None. Until then, selection uses its cold start."""
    found = np.unique(labels[labels != UNLABELED])
    if n_classes < 2:
        return "A model needs at least two classes. Add a class."
    if len(found) == 0:
        return "No item is labeled yet, so no model can be trained. Label a first batch."
    if len(found) == 1:
        n_labels = int((labels != UNLABELED).sum())
        return f"All {n_labels} labels are of one class, so no model can be trained. Label items of another class."
    return None


def train(  # noqa: PLR0913 - one call with all inputs of training
    inputs: Inputs,
    labels: NDArray[np.int64],
    n_classes: int,
    config: TrainingConfig,
    *,
    runtime: Runtime,
    checkpoint_dir: Path | None = None,
    warm_start: TrainedModel | None = None,
    held_out: HeldOut | None = None,
    trust: NDArray[np.floating] | None = None,
    report: Report = ignore,
) -> TrainedModel:
    """A model of `labels` (n,) (UNLABELED where there is none), using every readable row that is not a test item.

    With `checkpoint_dir` the state is saved there after every epoch, and a call with the same data, settings and seed
    continues from it to the same weights as an uninterrupted run. A label is drawn in proportion to its `trust` (n,)
    among those of its class (`core.labels.trust`). The labels of `held_out` are read for the reported
    accuracy alone: neither the weights nor the temperature depend on them. Processes that torchrun started and that
    have joined (`core.learning.distributed.join`) call it with the same arguments and share every batch. TrainingFailed
    if no model can be trained on the labels or the loss is not finite.
    """
    if reason := nothing_to_learn(labels, n_classes):
        raise TrainingFailed(reason)
    previous = warm_start if config.warm_steps else None  # without such steps every round starts from scratch
    if previous is not None:
        config = dataclasses.replace(config, steps=config.warm_steps)
    rows = _usable_rows(inputs, labels, held_out)
    config = dataclasses.replace(config, bank_views=bank_size(config, len(rows)))
    shape = NetworkShape(name=config.network, channels=inputs.shape[2], n_classes=n_classes)
    data = _training_data(inputs, labels, n_classes, rows, config, runtime, report)
    if trust is not None:
        data = dataclasses.replace(data, trust=trust[data.labeled])
    learner = Learner(shape, data, config, runtime)
    if previous is not None:
        learner.start_from(named_tensors(previous.network))
    run = _Run(learner, inputs, held_out, report, checkpoint_dir, _fingerprint(inputs, labels, config, runtime, trust))
    resumed = run.resume()
    if config.pretrain_steps and previous is None and not resumed:
        learner.pretrain_without_labels(report)
        run.keep()
    run.go()
    return run.finished(shape, label_notes(inputs, labels, n_classes, rows))


def refine(  # noqa: PLR0913 - one call with all inputs of refinement
    model: TrainedModel,
    inputs: Inputs,
    labels: NDArray[np.int64],
    targets: PoolTargets,
    config: TrainingConfig,
    *,
    runtime: Runtime,
    checkpoint_dir: Path | None = None,
    held_out: HeldOut | None = None,
    trust: NDArray[np.floating] | None = None,
    report: Report = ignore,
) -> TrainedModel:
    """The trained model after `config.refine_steps` more steps on given targets of the pool (distillation).

    It uses the rows, the bank of views and the optimizer of `train`, from a learning rate of `config.refine_rate`; the
    runtime has a separate seed. Checkpoints, `trust`, `held_out` and errors as in `train`.
    """
    rows = _usable_rows(inputs, labels, held_out)
    config = dataclasses.replace(
        config, steps=config.refine_steps, learning_rate=config.refine_rate, bank_views=model.config.bank_views
    )
    data = _training_data(inputs, labels, model.shape.n_classes, rows, config, runtime, report)
    data = dataclasses.replace(data, given=targets, trust=None if trust is None else trust[data.labeled])
    learner = Learner(model.shape, data, config, runtime, distillation.loss)
    learner.start_from(named_tensors(model.network))
    fingerprint = hashlib.sha256(_fingerprint(inputs, labels, config, runtime, trust).encode())
    started_from = [tensor.detach().cpu().numpy() for tensor in named_tensors(model.network).values()]
    for values in (*started_from, targets.probabilities, targets.weights):
        fingerprint.update(np.ascontiguousarray(values).tobytes())
    run = _Run(learner, inputs, held_out, report, checkpoint_dir, fingerprint.hexdigest())
    run.resume()
    run.go()
    refined = run.finished(model.shape, label_notes(inputs, labels, model.shape.n_classes, rows))
    before = int(model.history[-1]["step"]) if model.history else 0
    later = ({**entry, "step": before + entry["step"]} for entry in refined.history)
    return dataclasses.replace(refined, config=model.config, history=(*model.history, *later))


def bank_size(config: TrainingConfig, n_rows: int) -> int:
    """Views per clip to compute: `bank_views`, halved while half is still enough for the draws of an item in all steps,
    so that large pools do not compute views that no step uses."""
    if not config.steps:
        return config.bank_views
    drawn_per_item = 2 * config.steps * config.unlabeled_batch / n_rows
    size = config.bank_views
    while size >= 2 * SMALLEST_BANK and size // 2 >= drawn_per_item:
        size //= 2
    return size


def _usable_rows(inputs: Inputs, labels: NDArray[np.int64], held_out: HeldOut | None) -> NDArray[np.int64]:
    usable = inputs.readable.copy()
    if held_out is not None:
        usable[held_out[0]] = False
    rows = np.flatnonzero(usable)
    if not np.any(labels[rows] != UNLABELED):
        raise TrainingFailed("None of the labeled items can be read, so no model can be trained.")
    return rows


def _training_data(  # noqa: PLR0913
    inputs: Inputs,
    labels: NDArray[np.int64],
    n_classes: int,
    rows: NDArray[np.int64],
    config: TrainingConfig,
    runtime: Runtime,
    report: Report,
) -> TrainingData:
    world = World.current()
    world.require_divisible("labeled", config.labeled_batch)
    world.require_divisible("unlabeled", config.unlabeled_batch)
    labeled = rows[labels[rows] != UNLABELED]
    per_epoch = math.ceil(len(rows) / config.unlabeled_batch)
    return TrainingData(
        feed=open_feed(inputs, runtime.device, config.bank_views if config.augment else 0, report),
        labeled=labeled,
        labels=labels[labeled],
        unlabeled=rows,
        prior=class_prior(labels[labeled], n_classes, config.align),
        n_steps=config.steps or config.epochs * per_epoch,
    )


def label_notes(inputs: Inputs, labels: NDArray[np.int64], n_classes: int, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """Notes for users about the items that cannot be read, and the classes with few or no labels."""
    counts = np.bincount(labels[rows][labels[rows] != UNLABELED], minlength=n_classes)
    notes = list(inputs.notes)
    if missing := int((counts == 0).sum()):
        have, them = ("has", "it") if missing == 1 else ("have", "them")
        notes.append(f"{missing} of {n_classes} classes {have} no label yet. Do not trust predictions of {them}.")
    if single := int((counts == 1).sum()):
        have, them = ("has", "it") if single == 1 else ("have", "them")
        notes.append(f"{single} of {n_classes} classes {have} a single label. Expect low accuracy for {them}.")
    return tuple(notes)


def _fingerprint(
    inputs: Inputs,
    labels: NDArray[np.int64],
    config: TrainingConfig,
    runtime: Runtime,
    trust: NDArray[np.floating] | None,
) -> str:
    """A hash that is equal for runs with the same result."""
    digest = hashlib.sha256(f"{to_json(config)};{runtime.seed};{inputs.key};{World.current().size}".encode())
    digest.update(to_json(inputs.augmentation).encode())
    digest.update("".join(inputs.names).encode())
    digest.update(np.ascontiguousarray(labels).tobytes())
    digest.update(inputs.readable.tobytes())
    if trust is not None:
        digest.update(np.ascontiguousarray(trust).tobytes())
    return digest.hexdigest()


class _Run:
    """One training run: the steps, and the checkpoints and metrics between them."""

    def __init__(
        self,
        learner: Learner,
        inputs: Inputs,
        held_out: HeldOut | None,
        report: Report,
        checkpoint_dir: Path | None,
        fingerprint: str,
    ) -> None:
        self.learner, self.inputs, self.held_out, self.report = learner, inputs, held_out, report
        self.path = None if checkpoint_dir is None else Path(checkpoint_dir) / CHECKPOINT
        self.fingerprint = fingerprint
        self.history: list[dict[str, float]] = []
        config, data = learner.config, learner.data
        per_epoch = math.ceil(len(data.unlabeled) / config.unlabeled_batch)
        self.epoch_steps = per_epoch if not config.steps else min(max(per_epoch, SHORTEST_EPOCH), LONGEST_EPOCH)
        self._last_report = 0.0
        self._note = ""

    def resume(self) -> bool:
        """Continue from the checkpoint of this run, if there is one; a damaged or different one is ignored."""
        if self.path is None:
            return False
        try:
            tensors, description = read_tensors(self.path)
        except (NotFound, InvalidInput):
            return False
        if description.get("fingerprint") != self.fingerprint:
            return False
        self.learner.restore(tensors, int(description["step"]))
        self.history = list(description["history"])
        return True

    def go(self) -> None:
        learner, n_steps = self.learner, self.learner.data.n_steps
        checked_at = learner.step
        while learner.step < n_steps:
            learner.advance()
            self._report_progress()
            epoch_ends = learner.step % self.epoch_steps == 0 or learner.step == n_steps
            if epoch_ends or learner.step - checked_at >= CHECK_EVERY:
                measured = self._check_losses(checked_at)
                checked_at = learner.step
                if epoch_ends:
                    self._end_epoch(measured)

    def _report_progress(self) -> None:
        now = time.monotonic()
        if now - self._last_report >= REPORT_SECONDS:
            self._last_report = now
            self.report(Progress("train", self.learner.step, self.learner.data.n_steps, self._note))

    def _check_losses(self, since: int) -> dict[str, float]:
        """Mean losses since step `since`; raises TrainingFailed when one is not finite."""
        measured = self.learner.read_sums(self.learner.step - since)
        broken = [name for name, value in measured.items() if not math.isfinite(value)]
        if broken:
            raise TrainingFailed(
                f"Training stopped between steps {since} and {self.learner.step}: {', '.join(broken)} is not a number "
                f"(learning rate {self.learner.config.learning_rate:g}). The previous model stays in use. "
                "Lower the learning rate, or check the newest items and labels."
            )
        return measured

    def _end_epoch(self, measured: dict[str, float]) -> None:
        if self.held_out is not None and len(self.held_out[0]):
            rows, labels = (part[:MAX_TEST_ITEMS] for part in self.held_out)
            logits = logits_of(self.learner.average, self.inputs, rows, self.learner.runtime)
            measured["held_out_accuracy"] = float((logits.argmax(1).cpu().numpy() == labels).mean())
        self.history.append({"step": self.learner.step, **measured})
        self._note = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in measured.items())
        n_steps = self.learner.data.n_steps
        self.report(Progress("train", self.learner.step, n_steps, self._note, metrics=measured))
        self.keep()

    def keep(self) -> None:
        if self.path is not None and World.current().leads:
            description = {"fingerprint": self.fingerprint, "step": self.learner.step, "history": self.history}
            write_tensors(self.path, self.learner.tensors(), description)

    def finished(self, shape: NetworkShape, notes: tuple[str, ...]) -> TrainedModel:
        """The averaged network with its temperature, which is estimated from the training labels. Test labels are used
        only for the reported accuracy."""
        learner = self.learner
        network = learner.average.eval()
        metrics = dict(self.history[-1]) if self.history else {}
        if self.held_out is not None and len(self.held_out[0]):
            rows, labels = self.held_out
            logits = logits_of(network, self.inputs, rows, learner.runtime).cpu().numpy()
            metrics["held_out_accuracy"] = float((logits.argmax(1) == labels).mean())
        found = self._calibration(network)
        metrics |= {"temperature": found.temperature, "calibration_labels": found.n_labels}
        if found.note:
            notes = (*notes, found.note)
        return TrainedModel(
            network=network, shape=shape, config=learner.config, temperature=found.temperature,
            calibration=found.source, metrics=metrics, history=tuple(self.history), notes=notes,
        )  # fmt: skip

    def _calibration(self, network: Network) -> Calibration:
        if not self.learner.config.calibrate:
            return Calibration(temperature=1.0, source="off")
        data = self.learner.data
        found = embeddings_and_logits(network, self.inputs, data.labeled, self.learner.runtime)
        return calibrate(*found, data.labels)
