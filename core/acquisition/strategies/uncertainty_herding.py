"""Uncertainty herding: coverage of the items a model is uncertain about (Bae, Oliveira and Sutherland, ICLR 2025).

    maximize  1/n sum_x u(x) max_{l in labeled and chosen} exp(-|x - l|^2 / sigma^2),   u = 1 - margin at temperature t

With few labels this is MaxHerding, with many it is margin sampling, through two adapted parameters:
- sigma is the smallest distance between two labeled items, so the radius falls as labels fill the space;
- t flattens the predictions until their mean confidence equals the expected accuracy.

Departures and details
- The paper uses the smallest labeled distance unchanged. Here sigma is kept between 0.05 and 1: two labeled items in
  (nearly) the same place would otherwise isolate every other item, and beyond MaxHerding's radius of 1, a few distant
  labels would cover everything. Distances are those of the last layer, which every round trains, so sigma may grow from
  one round to the next. Above `max_pairwise` labels, a seeded sample is compared.
- Of the uncertainty measures in the paper, the margin is used.
- The paper chooses t by the calibration error on a part of the labeled set that training leaves out. A round trains on
  all labels, so the expected accuracy is instead that of the nearest other labeled item, estimated by leave-one-out on
  the last layer. It is near zero while each class has at most one label, which gives equal weights, and rises with the
  number of labels.
- Rows are centered and of length 1, as in `max_herding`. Before the first model the weights are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.acquisition.geometry import centered_unit, squared_distances
from core.acquisition.pool_view import is_cold, labeled_rows, on_device, sample, space, unlabeled_rows
from core.acquisition.ranking import margin_uncertainty
from core.acquisition.strategies.max_herding import RADIUS, Herding, herd
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore

SMALLEST_RADIUS = 0.05


def labeled_distances(x: Tensor) -> Tensor:
    """(L, L) distances between labeled rows, infinite on the diagonal."""
    squared = squared_distances(x, x)
    return squared.fill_diagonal_(torch.inf).sqrt()


def leave_one_out_accuracy(distances: Tensor, labels: Tensor) -> Tensor:
    """() share of labeled rows whose nearest other labeled row has the same label."""
    return (labels.index_select(0, distances.argmin(1)) == labels).double().mean()


def at_temperature(P: Tensor, temperature: float) -> Tensor:
    """softmax(log P / temperature), rows (n, C)."""
    return torch.softmax(P.clamp_min(1e-12).log() / temperature, 1)


def matching_temperature(P: Tensor, accuracy: float) -> float:
    """The temperature in [0.05, 100] at which the mean confidence of P (n, C) is `accuracy`, by bisection."""
    low, high = 0.05, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        confident = float(at_temperature(P, middle).amax(1).mean())
        low, high = (middle, high) if confident > accuracy else (low, middle)
    return high


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    known = sample(labeled_rows(request), config.max_pairwise, request, "uncertainty_herding-labeled")
    if is_cold(request) or len(known) < 2:
        note = "Fewer than two labels or no model: all items have the same weight, as in MaxHerding."
        return herd(request, config, Herding("uncertainty_herding", notes=(note,)), report)
    x, P = centered_unit(on_device(space(request))), on_device(request.probabilities)
    where = on_device(known)
    distances = labeled_distances(x[where])
    radius = min(RADIUS, max(float(distances.min()), SMALLEST_RADIUS))
    accuracy = float(leave_one_out_accuracy(distances, P[where].argmax(1)))
    evaluated = sample(unlabeled_rows(request), config.max_pairwise, request, "uncertainty_herding-pool")
    temperature = matching_temperature(P[on_device(evaluated)], accuracy)
    weights = margin_uncertainty(at_temperature(P, temperature))
    note = f"Radius {radius:.2f}, temperature {temperature:.2f} (expected accuracy {accuracy:.0%})."
    return herd(request, config, Herding("uncertainty_herding", radius, weights, (note,)), report)
