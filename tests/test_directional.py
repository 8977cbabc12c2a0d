"""Directional statistics against SciPy, closed forms and invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import ive
from scipy.stats import vonmises_fisher

from torchrl_vmfer import directional

DTYPES = [torch.float32, torch.float64]


def tolerance(dtype):
    return {"rtol": 0, "atol": 2e-6 if dtype == torch.float32 else 1e-12}


def random_gradients(critics, dim, *, batch=(), dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(critics, *batch, dim, generator=generator, dtype=dtype)


class TestConcentration:
    @pytest.mark.parametrize("dim", [2, 3, 5, 10, 20, 50])
    def test_inverts_the_mean_resultant_length_up_to_banerjees_error(self, dim):
        # R = I_{p/2}(k) / I_{p/2-1}(k) is exact. Banerjee's formula is exact for R → 0 and
        # R → 1; between them its relative error peaks near k = p at less than 0.2/p.
        k = np.geomspace(1e-3, 300, 200)
        length = ive(dim / 2, k) / ive(dim / 2 - 1, k)
        result = directional.concentration(torch.as_tensor(length), dim).numpy()
        np.testing.assert_allclose(result, k, rtol=0.2 / dim)

    @pytest.mark.parametrize("dim", [2, 3, 6, 17])
    @pytest.mark.parametrize("k", [1.0, 8.0, 60.0, 400.0])
    def test_and_mean_direction_agree_with_scipys_fit(self, dim, k):
        rng = np.random.default_rng(dim)
        mu = rng.normal(size=dim)
        mu /= np.linalg.norm(mu)
        samples = vonmises_fisher(mu, k, seed=rng).rvs(4000)
        fitted_mu, fitted_k = vonmises_fisher.fit(samples)
        directions = torch.as_tensor(samples)
        direction = directional.mean_direction(directions)
        length = directional.resultant_length(directions)
        estimate = directional.concentration(length, dim).item()
        np.testing.assert_allclose(direction, fitted_mu, atol=1e-10)
        # Both use the same R, so the only difference is Banerjee's error (see above).
        assert estimate == pytest.approx(fitted_k, rel=0.2 / dim)

    @pytest.mark.parametrize("dim", [1, 2, 3, 17, 400])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_increases_strictly_with_the_resultant_length(self, dim, dtype):
        length = torch.cat([torch.linspace(0, 1, 1001), 1 - torch.logspace(-4, -6, 20)]).to(dtype)
        result = directional.concentration(length.sort().values.unique(), dim)
        assert result.dtype == dtype
        assert result[0] == 0
        assert (result.diff() > 0).all()

    @pytest.mark.parametrize("dim", [2, 3, 400])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_is_finite_and_largest_at_full_agreement(self, dim, dtype):
        length = torch.ones(30, dtype=dtype)
        for i in range(1, 30):
            length[i] = torch.nextafter(length[i - 1], torch.zeros((), dtype=dtype))
        result = directional.concentration(length, dim)
        assert result.isfinite().all()
        assert (result.diff() <= 0).all()
        assert result[0] > result[-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.3, math.pi / 3, math.pi / 2, 2.0, 3.1, math.pi])
def test_the_statistics_of_two_critics_follow_from_their_angle(angle, dtype):
    first = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    second = torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=dtype)
    gradients, atol = torch.stack([first, 7 * second]), tolerance(dtype)["atol"]
    length = directional.resultant_length(gradients).item()
    assert length == pytest.approx(math.cos(angle / 2), abs=atol)
    for used in (0, 1):
        factor = directional.sampling_factor(gradients, used).item()
        assert factor == pytest.approx(math.exp((1 + math.cos(angle)) / 2), rel=2 * atol)


def statistics(gradients, used):
    return (
        directional.resultant_length(gradients),
        directional.sampling_factor(gradients, used),
        directional.mean_direction(gradients),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("critics", [1, 2, 3, 5, 20])
class TestAnyNumberOfCritics:
    def test_equals_numpy(self, critics, dtype):
        gradients = random_gradients(critics, 6, batch=(9,), dtype=dtype)
        used = torch.arange(9) % critics
        g = gradients.double().numpy()
        x = g / np.linalg.norm(g, axis=-1, keepdims=True)
        mean = x.sum(0) / critics
        length = np.linalg.norm(mean, axis=-1)
        direction = mean / length[:, None]
        alignment = (direction * x[used.numpy(), np.arange(9)]).sum(-1)
        expected = (length, np.exp(length * alignment), direction)
        atol = 1e-5 if dtype == torch.float32 else 1e-12
        for result, reference in zip(statistics(gradients, used), expected, strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(result.double(), reference, rtol=0, atol=atol)

    def test_full_agreement_gives_length_one_and_factor_e(self, critics, dtype):
        gradients = random_gradients(1, 6, dtype=dtype).expand(critics, -1)
        gradients = gradients * torch.arange(1, critics + 1, dtype=dtype)[:, None]
        assert directional.resultant_length(gradients).item() == pytest.approx(1, abs=1e-6)
        factor = directional.sampling_factor(gradients, critics - 1).item()
        assert factor == pytest.approx(math.e, rel=1e-6)
        assert factor <= math.e


@pytest.mark.parametrize("dtype", DTYPES)
class TestInvariance:
    @pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
    def test_to_the_scale_of_every_gradient(self, scale, dtype):
        gradients = random_gradients(5, 4, batch=(11,), dtype=dtype)
        scales = torch.full((5, 1, 1), scale, dtype=dtype)
        scales[2] = 1
        for before, after in zip(
            statistics(gradients, 1), statistics(gradients * scales, 1), strict=True
        ):
            torch.testing.assert_close(after, before, **tolerance(dtype))

    def test_to_subnormal_and_almost_overflowing_scales(self, dtype):
        info = torch.finfo(dtype)
        unit = torch.tensor([0.6, 0.8], dtype=dtype)
        # Subnormal numbers have few digits: at 1e4 times the smallest one, the error is 1e-4.
        for scale in (1e4 * info.smallest_normal * info.eps, info.max):
            torch.testing.assert_close(
                directional.directions(scale * unit), unit, rtol=0, atol=2e-4
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf])
class TestGradientsWithoutADirection:
    def test_one_of_the_critics_contributes_nothing(self, bad, dtype):
        gradients = random_gradients(3, 4, dtype=dtype)
        gradients[1] = bad
        zero = gradients.clone()
        zero[1] = 0
        length, factor, direction = statistics(gradients, 0)
        others = directional.resultant_length(gradients[[0, 2]])
        torch.testing.assert_close(length, others * 2 / 3)
        for result, expected in zip((length, factor, direction), statistics(zero, 0), strict=True):
            assert result.isfinite().all()
            torch.testing.assert_close(result, expected, rtol=0, atol=0)

    def test_of_the_used_critic_gives_the_initial_factor(self, bad, dtype):
        gradients = random_gradients(3, 4, dtype=dtype)
        gradients[1] = bad
        assert directional.sampling_factor(gradients, 1).item() == 1

    def test_of_all_critics_gives_no_direction_and_no_concentration(self, bad, dtype):
        gradients = torch.full((3, 4), bad, dtype=dtype)
        length, factor, direction = statistics(gradients, 0)
        assert length == 0
        assert factor == 1
        assert (direction == 0).all()
        assert directional.concentration(length, 4) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_with_one_bad_entry_has_no_direction(bad):
    assert (directional.directions(torch.tensor([3.0, bad, 4.0])) == 0).all()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_shapes_follow_the_batch(batch):
    gradients = random_gradients(4, 5, batch=batch)
    length, factor, direction = statistics(gradients, torch.zeros(batch, dtype=torch.long))
    assert length.shape == batch
    assert factor.shape == batch
    assert direction.shape == (*batch, 5)
