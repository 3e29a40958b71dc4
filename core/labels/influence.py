"""The influence of labels on the loss on the whole pool: one scale for a new label and for a second look.

    Inner   W* = argmin_W  sum_i w_i CE(Y_i, softmax(W z_i)) + lambda/2 |W|^2,   sum_i w_i = 1
    Outer   G  = sum_i u_i CE(T_i, softmax(W* z_i)),   u_i = (1 - margin_i) on unlabeled rows, sum 1, T hard predictions
    V       = H^-1 dG/dW,   H the Hessian of the inner objective at W*

    influence of a label     -dG/dw_i = <P_i - Y_i, V z_i>: negative where more weight on the label raises the loss
    value of a new label     ( sum_k p_k (a_k - sum_j p_j a_j)^2 )^1/2,   a = V z_i, p the prediction
    value of a second look   ( sum_k b_k (a_k - a_y)^2 )^1/2,   b the belief about the true class, y the label

Both values are the root mean square, over the possible answers, of the first-order change of the outer loss per unit of
weight. A new label replaces the expectation under the prediction by the answer; a second look replaces the label y by
the answer. A second look at a label that is certainly right has value 0.

Symbols: z features (n, r), rows of length 1; Y targets (n, C) of the inner problem: labels, and predictions on
unlabeled rows, weighted by certainty as in `core.learning.head`; P = softmax(W z).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from core.learning.head import fit_softmax, label_weights
from core.similarity.spreading import certainty
from core.types import UNLABELED

PENALTY = 1e-3
MAX_STEPS, TOLERANCE = 200, 1e-5  # of conjugate gradients

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Influence:
    """The solution of the problem above for the rows of a pool; gives influences and values."""

    P: Rows  # (n, C)
    a: Rows  # (n, C) V z

    def of_labels(self, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> Rows:
        """(m,) -dG/dw of labels (m,) on rows (m,)."""
        p, a = self.P[rows], self.a[rows]
        return np.asarray((p * a).sum(1) - a[np.arange(len(rows)), labels])

    def new_label_values(self, rows: NDArray[np.int64], beliefs: NDArray[np.floating]) -> Rows:
        """(m,) values of labels for unlabeled rows (m,) with predictions (m, C)."""
        a = self.a[rows]
        mean = (beliefs * a).sum(1, keepdims=True)
        return np.asarray(np.sqrt((beliefs * (a - mean) ** 2).sum(1)))

    def second_look_values(
        self, rows: NDArray[np.int64], labels: NDArray[np.int64], beliefs: NDArray[np.floating]
    ) -> Rows:
        """(m,) values of second looks at labels (m,) on rows (m,), with beliefs (m, C) about their true classes."""
        a = self.a[rows]
        own = a[np.arange(len(rows)), labels][:, None]
        return np.asarray(np.sqrt((beliefs * (a - own) ** 2).sum(1)))


def inner_problem(
    labels: NDArray[np.int64], predictions: NDArray[np.floating], weights: NDArray[np.floating]
) -> tuple[Rows, Rows]:
    """Y (n, C) and w (n,): labels are weighted by class and trust `weights` (n,), predictions by their certainty.
    Labels and predictions each have half of the total weight."""
    given, n_classes = labels != UNLABELED, predictions.shape[1]
    Y = np.array(predictions, np.float64)
    Y[given] = np.eye(n_classes)[labels[given]]
    w = np.zeros(len(labels))
    w[given] = label_weights(labels[given], balance=True, trust=np.asarray(weights, np.float64)[given])
    certain = certainty(Y[~given])
    w[~given] = certain / max(float(certain.sum()), 1e-12)
    return Y, w / w.sum()


def outer_problem(labels: NDArray[np.int64], predictions: NDArray[np.floating]) -> tuple[Rows, Rows]:
    """T (n, C), the hard predictions, and u (n,), the weights of the outer loss."""
    ordered = np.sort(np.asarray(predictions, np.float64), axis=1)
    doubt = np.where(labels == UNLABELED, 1.0 - (ordered[:, -1] - ordered[:, -2]), 0.0)
    u = doubt / doubt.sum() if doubt.sum() > 0 else np.full(len(labels), 1.0 / len(labels))
    return np.eye(predictions.shape[1])[predictions.argmax(1)], u


def pool_influence(
    z: NDArray[np.floating],
    labels: NDArray[np.int64],
    predictions: NDArray[np.floating],
    weights: NDArray[np.floating],
    penalty: float = PENALTY,
) -> Influence:
    """The influence in a pool of features z (n, r), labels (n,) with trust `weights` (n,), and predictions (n, C)."""
    x: Rows = np.asarray(z, np.float64)
    Y, w = inner_problem(labels, predictions, weights)
    T, u = outer_problem(labels, predictions)
    W = fit_softmax(x, Y, w, penalty)
    P: Rows = softmax(x @ W.T, axis=1)
    gradient: Rows = (u[:, None] * (P - T)).T @ x
    return Influence(P, x @ solve_hessian(x, P, w, penalty, gradient).T)


def solve_hessian(z: Rows, P: Rows, w: Rows, penalty: float, right: Rows) -> Rows:
    """V (C, r) with H V = right, by conjugate gradients."""

    def product(V: Rows) -> Rows:
        S = z @ V.T
        return np.asarray((w[:, None] * P * (S - (P * S).sum(1, keepdims=True))).T @ z + penalty * V)

    V, residual = np.zeros_like(right), right.copy()
    direction, rho = residual.copy(), float((residual**2).sum())
    goal = TOLERANCE**2 * rho
    for _ in range(MAX_STEPS):
        if rho <= goal:
            break
        image = product(direction)
        length = rho / float((direction * image).sum())
        V += length * direction
        residual -= length * image
        rho, before = float((residual**2).sum()), rho
        direction = residual + rho / before * direction
    return V
