"""The inner problem, solved in the subspace that its rows span.

With a penalty on all weights the optimum is a combination of the rows in the problem (representer theorem), so softmax
regression on N rows of d features is solved in an orthonormal basis Q (r, d) of those rows, r <= min(N, d):

    W = W_r Q,   X = Z Q^T (N, r),   H = Q^T H_r Q + penalty (I - Q^T Q)

If there are more rows than features, a small basis is still possible where most directions carry almost nothing, as
with many views of an item. Orthogonal to the span, the Hessian is the penalty alone, so H^-1 is a division there.
Directions whose share of the loss's curvature is below `cutoff` times the penalty are left out of the basis; the error
is bounded and corrected in closed form from the rows (`lift`, `solve_hessian`).

Symbols: Z rows (N, d) with a last column of ones when there is a bias; Y (C, N); X, W_r, H_r the same in the basis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.coresets.preconditioner import TwoLevel, typical_curvature
from core.coresets.products import matmul, tiled
from core.coresets.softmax import SoftmaxRegression, curvature_product
from core.coresets.solvers import Solved, conjugate_gradient, truncated_newton

BLOCK = 128  # rows orthogonalized at a time


def new_directions(basis: Tensor, rows: Tensor, coordinates: Tensor, threshold: float) -> Tensor:
    """(k, d) orthonormal directions of `rows` (n, d) outside `basis` (r, d) that carry more than `threshold`.

    `coordinates` (n, r) are those of the rows in the basis. What a direction u carries is sum_i (z_i . u)^2 over the
    rows; directions at the level of rounding errors are left out. n should be small: an (n, n) matrix is decomposed.
    """
    gram = matmul(rows, rows.T)
    noise = 4 * torch.finfo(rows.dtype).eps * float(gram.diagonal().max()) * len(rows)
    gram -= coordinates @ coordinates.T  # of the parts of the rows outside the basis
    eigenvalues, vectors = torch.linalg.eigh(gram)
    vectors = vectors[:, eigenvalues > max(threshold, noise)].T
    directions = vectors @ rows - (vectors @ coordinates) @ basis
    return orthonormal(directions - (directions @ basis.T) @ basis)  # a second time, against rounding errors


def orthonormal(directions: Tensor) -> Tensor:
    """Directions (k, d) that are nearly orthogonal, made orthonormal by the Cholesky factor of their Gram matrix."""
    directions = directions / directions.norm(dim=1, keepdim=True)
    factor = torch.linalg.cholesky(directions @ directions.T)
    found: Tensor = torch.linalg.solve_triangular(factor, directions, upper=False)
    return found


@dataclass(slots=True)
class InnerProblem:
    """Softmax regression on a growing set of rows, and systems with its Hessian."""

    penalty: float
    mean: bool  # True: the loss is averaged over rows, False: summed
    cutoff: float  # share of the penalty below which a direction is left out; 0 leaves out rounding alone
    blocks: list[Tensor]  # Z (N, d), in blocks of decreasing length
    targets: Tensor  # Y (C, N)
    basis: Tensor | None  # Q (r, d); None: all d directions
    coordinates: Tensor  # X (N, r)
    weights: Tensor  # W_r (C, r), the latest solution: the start of the next
    energy: float = 0.0  # |Z|^2
    left_out: float = 0.0  # |Z - X Q|, what the rows hold outside the basis
    n_rotated: int = 0  # r when the axes were last principal
    precondition: TwoLevel | None = None  # made when
    typical: float = 0.0  # this was the mean of p (1 - p)
    n_preconditioned: int = 0  # and there were so many rows
    known: tuple[Tensor, Tensor, Tensor] | None = None  # the latest probabilities: weights, coordinates, P

    @classmethod
    def create(cls, rows: Tensor, targets: Tensor, penalty: float, *, mean: bool, cutoff: float) -> InnerProblem:
        """On rows (N, d), targets (C, N). Where no basis of at most half the directions is found: all directions."""
        n, d = rows.shape
        empty = rows.new_zeros(0, d)
        problem = cls(penalty, mean, cutoff, [], targets[:, :0], empty, empty[:, :0], rows.new_zeros(len(targets), 0))
        if (n < d or cutoff > 0) and problem.add(rows, targets, at_most=n if n < d else d // 2):
            return problem
        return cls(penalty, mean, cutoff, [rows], targets, None, rows, rows.new_zeros(len(targets), d))

    @property
    def n_rows(self) -> int:
        return self.targets.shape[1]

    @property
    def scale(self) -> float:
        return 1.0 / self.n_rows if self.mean else 1.0

    def add(self, rows: Tensor, targets: Tensor, at_most: int | None = None) -> bool:
        """Rows (n, d) with targets (C, n) are added with weight 1; the latest weights remain the starting point.

        Stops, False, where the basis would need more than `at_most` directions; the problem is of no use then.
        """
        self.targets = torch.cat([self.targets, targets], 1)
        if self.basis is None:
            self.coordinates = torch.cat([self.coordinates, rows])
            self.blocks = [self.coordinates]
            return True
        if not self._widen(self.basis, rows, at_most):
            return False
        self.weights = torch.nn.functional.pad(self.weights, (0, len(self.basis) - self.weights.shape[1]))
        if len(self.basis) >= 2 * self.n_rotated:
            self._rotate(self.basis)
        self.energy += float(rows.norm()) ** 2
        self.left_out = self._left_out()
        return True

    @property
    def threshold(self) -> float:
        """What a direction must carry to be in the basis."""
        return self.cutoff * self.penalty / self.scale

    def _widen(self, basis: Tensor, rows: Tensor, at_most: int | None) -> bool:
        """Directions of `rows` join the basis, and the rows join the blocks."""
        known, blocks, inside = len(basis), rows.split(BLOCK), []
        for block in blocks:
            inside.append(tiled(block, basis.T))
            basis = torch.cat([basis, new_directions(basis, block, inside[-1], self.threshold)])
            if at_most is not None and len(basis) > at_most:
                return False
        later = [tiled(block, basis[part.shape[1] :].T) for block, part in zip(blocks, inside, strict=True)]
        own = torch.cat([torch.cat(both, 1) for both in zip(inside, later, strict=True)])
        earlier = [tiled(block, basis[known:].T) for block in self.blocks]
        if earlier:
            own = torch.cat([torch.cat([self.coordinates, torch.cat(earlier)], 1), own])
        self.basis, self.coordinates = basis, own
        while self.blocks and len(self.blocks[-1]) <= len(rows):  # few blocks, and few copies of a row
            rows = torch.cat([self.blocks.pop(), rows])
        self.blocks.append(rows)
        return True

    def _rotate(self, basis: Tensor) -> None:
        """Principal axes, strongest first. Directions found block by block that carry little in all are left out."""
        carried, axes = torch.linalg.eigh((self.coordinates.T @ self.coordinates).double())
        least = self.threshold if self.cutoff else -math.inf
        axes = axes[:, carried > least].flip(1).to(basis.dtype)
        self.basis, self.coordinates, self.weights = axes.T @ basis, self.coordinates @ axes, self.weights @ axes
        self.n_rotated = len(carried)

    def solve(self, tolerance: float, max_steps: int = 50) -> Solved:
        """The optimum in the basis, W_r (C, r), from the previous one; `tolerance` is on the gradient's norm.

        The first time in two stages: on the way from zero to the optimum the curvature p (1 - p) can fall by orders of
        magnitude, and with it the fit of the preconditioner.
        """
        steps = products = 0
        if self.precondition is None:
            self._refresh_preconditioner()
            first = float(self.reduced().at(self.weights).gradient.norm())
            near = self._newton(max(tolerance, 0.05 * first), max_steps)
            steps, products = near.steps, near.products
        self._refresh_preconditioner()
        solved = self._newton(tolerance, max_steps - steps)
        return replace(solved, steps=steps + solved.steps, products=products + solved.products)

    def _newton(self, tolerance: float, max_steps: int) -> Solved:
        solved = truncated_newton(self.reduced(), self.weights, tolerance=tolerance, max_steps=max_steps)
        self.weights = solved.value
        return solved

    def _refresh_preconditioner(self) -> None:
        """Factorize again if rows were added or if the mean p (1 - p) of the rows changed by half.

        The probabilities of newly added rows will move towards their targets, so the mean of both is used for them.
        """
        P = self.probabilities()
        typical = float(typical_curvature(P).mean())
        fits = self.precondition is not None and self.n_preconditioned == self.n_rows
        if fits and 2 / 3 < (typical + 1e-30) / (self.typical + 1e-30) < 3 / 2:
            return
        old = self.n_preconditioned
        halfway = 0.5 * (P[:, old:] + self.targets[:, old:])
        P = torch.cat([P[:, :old], halfway], 1)
        self.precondition = TwoLevel.at(self.coordinates, P, self.scale, self.penalty)
        self.typical, self.n_preconditioned = typical, self.n_rows

    def reduced(self) -> SoftmaxRegression:
        return SoftmaxRegression(
            self.coordinates, self.targets, self.penalty, self.scale, precondition=self.precondition
        )

    def probabilities(self) -> Tensor:
        """P (C, N) at the latest weights."""
        if self.known is not None and self.known[0] is self.weights and self.known[1] is self.coordinates:
            return self.known[2]
        P = torch.softmax(matmul(self.weights, self.coordinates.T), 0)
        self.known = self.weights, self.coordinates, P
        return P

    def combine(self, columns: Tensor) -> Tensor:
        """columns Z (C, d) for columns (C, N), block by block."""
        parts = columns.split([len(block) for block in self.blocks], 1)
        total: Tensor = matmul(parts[0], self.blocks[0])
        for part, block in zip(parts[1:], self.blocks[1:], strict=True):
            total += matmul(part, block)
        return total

    def lift(self) -> Tensor:
        """W (C, d) of the latest weights.

        At the optimum W = -1/penalty * scale * (P - Y) Z: inside the basis this is W_r Q again, outside it recovers
        what the directions left out would hold, to first order in their share.
        """
        if self.basis is None:
            return self.weights
        full = (self.scale / -self.penalty) * self.combine(self.probabilities() - self.targets)
        return full + (self.weights - full @ self.basis.T) @ self.basis

    def hessian_product(self, P: Tensor, V: Tensor) -> Tensor:
        """H V over all d directions, where the rows' probabilities are P (C, N). V (C, d)."""
        return self.scale * self.combine(curvature_product(P, self.spread(V))) + self.penalty * V

    def solve_hessian(self, target: Tensor, tolerance: float, max_steps: int = 100) -> Solved:
        """V = H^-1 target, (C, d), at the latest weights, to a residual of `tolerance` times the target.

        Conjugate gradients in the basis and, outside it, the division by the penalty, in turn (block Gauss-Seidel):
        each part is solved with what the other contributes through the rows. The coupling is weak, because only
        directions of almost no weight are outside, so one or two turns suffice. The residual outside the basis is
        bounded by norms.
        """
        self._refresh_preconditioner()
        P, regression = self.probabilities(), self.reduced()
        product, precondition = regression.hessian(P), regression.precondition
        if self.basis is None:
            return conjugate_gradient(
                product, target, precondition=precondition, tolerance=tolerance, max_steps=max_steps
            )
        inside = target @ self.basis.T
        v: Tensor | None = None
        left, left_inside = target, inside  # outside the basis, the part of V is that of left / penalty
        pushed = self._push(left, left_inside)
        norm, steps, curved = max(float(target.norm()), 1e-30), 0, None
        while True:
            right = inside - self.scale * matmul(curvature_product(P, pushed), self.coordinates)
            size = max(float(right.norm()), 1e-30)
            solved = conjugate_gradient(
                product,
                right,
                start=v,
                precondition=precondition,
                tolerance=0.7 * tolerance * norm / size,
                max_steps=max_steps - steps,
            )
            v, steps, known = solved.value, steps + max(solved.steps, 1), curved
            curved = self.scale * curvature_product(P, matmul(v, self.coordinates.T) + pushed)
            if known is not None:  # the part outside fits the curvature of the turn before
                missing = float((curved - known).norm()) * self.left_out
                relative = math.hypot(solved.residual * size, missing) / norm
                if relative <= tolerance or steps >= max_steps:
                    V = left / self.penalty + (v - left_inside / self.penalty) @ self.basis
                    return Solved(V, steps, relative <= tolerance, relative, steps)
            left, left_inside = target - self.combine(curved), inside - matmul(curved, self.coordinates)
            pushed = self._push(left, left_inside)

    def _push(self, left: Tensor, left_inside: Tensor) -> Tensor:
        """(C, N) what the part of `left` / penalty outside the basis adds to the rows' logits."""
        return (self.spread(left) - matmul(left_inside, self.coordinates.T)) / self.penalty

    def spread(self, V: Tensor) -> Tensor:
        """V Z^T (C, N) for V (C, d), block by block."""
        return torch.cat([matmul(V, block.T) for block in self.blocks], 1)

    def _left_out(self) -> float:
        """|Z - X Q|, the Frobenius norm of what the rows hold outside the basis, at least its rounding."""
        kept = float(self.coordinates.norm()) ** 2
        return math.sqrt(max(self.energy - kept, torch.finfo(self.coordinates.dtype).eps * self.energy))
