"""Measurements for a generative model: the implicit gradient against finite differences, and the wavelets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.paper.dictionary_generative import GenerativeRecovery, haar


def small_problem() -> GenerativeRecovery:
    draw = torch.Generator().manual_seed(0)
    W, b = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((6, 2), (6,)))
    return GenerativeRecovery(
        measurements=torch.randn(8, 6, generator=draw, dtype=torch.float64),
        signals=torch.tanh(torch.randn(3, 6, generator=draw, dtype=torch.float64)),
        generate=lambda z: torch.tanh(W @ z + b),
        latent=2, penalty=0.1, max_steps=60, tolerance=1e-11,
    )  # fmt: skip


@pytest.mark.slow(2)
def test_the_influence_of_a_measurement_is_the_derivative_of_the_outer_loss():
    problem = small_problem()
    weights = torch.tensor([1.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0, 0.7], dtype=torch.float64)
    solved = problem.solve(weights)
    assert solved.converged
    found = problem.influence(solved.parameters, weights).scores
    problem.restarts = 0  # stay in the same minimum
    step = 1e-5
    for row in range(8):
        moved = [weights.clone() for _ in range(2)]
        moved[0][row] += step
        moved[1][row] -= step
        up, down = (problem.outer(problem.solve(w, solved.parameters).parameters) for w in moved)
        np.testing.assert_allclose(-(up - down) / (2 * step), found[row], rtol=1e-5, atol=1e-8)


def test_a_signal_of_the_model_is_recovered_from_as_many_measurements_as_it_has_latent_dimensions():
    problem = small_problem()
    problem.penalty, problem.restarts = 1e-10, 8
    z = torch.tensor([[0.4, -0.7], [-0.2, 0.1], [0.9, 0.3]], dtype=torch.float64)
    problem.signals = torch.stack([problem.generate(row) for row in z])
    weights = torch.zeros(8, dtype=torch.float64)
    weights[:3] = 1.0
    assert problem.errors(problem.solve(weights).parameters).max() < 1e-6


def test_haar_wavelets_are_an_orthonormal_basis_with_the_mean_as_its_first_row():
    basis = haar(8)
    torch.testing.assert_close(basis @ basis.T, torch.eye(64, dtype=torch.float64))
    torch.testing.assert_close(basis[0], torch.full((64,), 1 / 8, dtype=torch.float64))
