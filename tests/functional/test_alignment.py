"""The alignment losses against a numpy reference written from the equations, and Propositions 1 to 3 of FedSAF."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.alignment import (
    ALIGNMENTS,
    align,
    cosine,
    cosine_discrepancy,
    gcsa,
    mse,
    procrustes_split,
    rcsa,
    structural,
    structure_gram,
    structure_rdm,
)

STRUCTURAL = [gcsa, rcsa]
EVERY = list(ALIGNMENTS.values())


def signed(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def orthogonal(d, seed=0):
    """A random element of O(d) whose determinant may be -1."""
    return torch.linalg.qr(signed(d, d, seed=seed))[0]


def unit(rows):
    return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))


def reference_gcsa(p, q):
    n = len(p)
    centring = np.eye(n) - np.ones((n, n)) / n
    k, m = centring @ p @ p.T @ centring, centring @ q @ q.T @ centring
    return 1 - np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))


def reference_rcsa(p, q):
    def distances(rows):
        rows = unit(rows)
        return np.array([sum((rows[i] - rows[j]) ** 2) for i in range(len(rows)) for j in range(i + 1, len(rows))])

    a, b = distances(p), distances(q)
    return 1 - sum(a * b) / np.sqrt(sum(a * a) * sum(b * b))


def reference_mse(p, q):
    return sum((x - y) ** 2 for x, y in zip(p.ravel(), q.ravel(), strict=True)) / p.size


def reference_cosine(p, q):
    return np.mean([1 - x @ y / np.sqrt(x @ x * (y @ y)) for x, y in zip(p, q, strict=True)])


REFERENCES = {"gcsa": reference_gcsa, "rcsa": reference_rcsa, "mse": reference_mse, "cosine": reference_cosine}


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


# Values and gradients


@pytest.mark.parametrize("name", ALIGNMENTS)
@pytest.mark.parametrize("n", [3, 10, 43])
def test_loss_equals_an_independent_reference(name, n):
    p, q = signed(n, 16), signed(n, 16, seed=1)
    expected = REFERENCES[name](p.numpy(), q.numpy())
    assert ALIGNMENTS[name](p, q).item() == pytest.approx(expected, abs=1e-12)
    assert ALIGNMENTS[name](p.float(), q.float()).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", EVERY)
def test_loss_passes_gradcheck_in_both_arguments(loss):
    p, q = signed(5, 4).requires_grad_(), signed(5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(loss, (p, q))


@pytest.mark.parametrize("loss", EVERY)
def test_loss_agrees_in_float32_and_float64_and_keeps_the_dtype(loss):
    p, q = signed(20, 64).requires_grad_(), signed(20, 64, seed=1)
    single = p.detach().float().requires_grad_()
    wide, narrow = loss(p, q), loss(single, q.float())
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert wide.ndim == 0
    assert narrow.item() == pytest.approx(wide.item(), abs=1e-6)
    torch.testing.assert_close(gradients(narrow, single)[0].double(), gradients(wide, p)[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", EVERY)
def test_bfloat16_inputs_and_autocast_are_computed_in_float32(loss):
    p, q = signed(12, 32).bfloat16().requires_grad_(), signed(12, 32, seed=1).bfloat16()
    exact = loss(p.detach().double(), q.double()).item()
    with torch.autocast("cpu", torch.bfloat16):
        result = loss(p, q)
        on_float32 = loss(p.detach().float(), q.float())
    assert result.dtype == on_float32.dtype == torch.float32
    assert result.item() == pytest.approx(exact, abs=1e-6)
    assert on_float32.item() == pytest.approx(exact, abs=1e-6)
    assert gradients(result, p)[0].isfinite().all()


def test_nearly_parallel_rows_keep_their_accuracy_in_float32():
    # Features after ReLU share a large common part; distances of 1e-6 must not drown in it.
    common = signed(1, 64).abs() * 5
    p, q = common + 1e-3 * signed(15, 64, seed=1), common + 1e-3 * signed(15, 64, seed=2)
    for loss in STRUCTURAL:
        assert loss(p.float(), q.float()).item() == pytest.approx(loss(p, q).item(), rel=1e-2)


@pytest.mark.parametrize("scale", [1e-15, 1e-8, 1e8, 1e15])
def test_tiny_and_huge_features_neither_vanish_nor_overflow_in_float32(scale):
    p, q = signed(6, 8, dtype=torch.float32), signed(6, 8, seed=1, dtype=torch.float32)
    assert gcsa(p * scale, q).item() == pytest.approx(gcsa(p, q).item(), abs=1e-5)


def test_structures_and_discrepancy_by_hand():
    p = torch.tensor([[1.0, 2.0], [3.0, -2.0], [-4.0, 3.0]])  # mean (0, 1)
    assert structure_gram(p).tolist() == [[2.0, 0.0, -2.0], [0.0, 18.0, -18.0], [-2.0, -18.0, 20.0]]
    q = torch.tensor([[3.0, 4.0], [0.0, 2.0], [-5.0, 0.0]])  # unit rows (.6, .8), (0, 1), (-1, 0)
    torch.testing.assert_close(structure_rdm(q), torch.tensor([0.4, 3.2, 2.0]))
    a, b = torch.tensor([1.0, 2.0, -2.0]), torch.tensor([2.0, -1.0, 2.0])  # <a, b> = -4, norms 3
    torch.testing.assert_close(cosine_discrepancy(a, b), torch.tensor(1 + 4 / 9))


def test_named_losses_are_built_from_structure_and_discrepancy():
    p, q = signed(7, 5), signed(7, 9, seed=1)
    assert torch.equal(gcsa(p, q), structural(p, q, structure_gram, cosine_discrepancy))
    assert torch.equal(rcsa(p, q), structural(p, q, structure_rdm, cosine_discrepancy))


def test_own_structure_and_discrepancy_need_nothing_but_a_function():
    p, q = signed(4, 3), signed(4, 5, seed=1)
    loss = structural(p, q, lambda rows: rows @ rows.T, lambda a, b: (a - b).abs().sum())
    expected = np.abs(p.numpy() @ p.numpy().T - q.numpy() @ q.numpy().T).sum()
    assert loss.item() == pytest.approx(expected, abs=1e-10)
    assert structural(p[:1], q[:1], lambda rows: rows @ rows.T, lambda a, b: (a - b).abs().sum()).item() == 0.0


@pytest.mark.parametrize("loss", EVERY)
def test_arguments_are_not_changed(loss):
    p, q = signed(5, 4), signed(5, 4, seed=1)
    loss(p, q)
    assert torch.equal(p, signed(5, 4))
    assert torch.equal(q, signed(5, 4, seed=1))


# Shapes


@pytest.mark.parametrize("loss", EVERY)
def test_shapes_that_do_not_fit_are_refused_with_both_shapes(loss):
    with pytest.raises(ValueError, match=r"\(5, 4\) and \(6, 4\)"):
        loss(torch.ones(5, 4), torch.ones(6, 4))
    with pytest.raises(ValueError, match=r"\(5,\) and \(5,\)"):
        loss(torch.ones(5), torch.ones(5))


def test_only_structural_losses_accept_feature_dimensions_that_differ():
    p, q = signed(5, 64), signed(5, 128, seed=1)
    assert 0 < gcsa(p, q).item() < 1
    assert 0 < rcsa(p, q).item() < 1
    for function in (mse, cosine, procrustes_split):
        with pytest.raises(ValueError, match=rf"{function.__name__}.*\(5, 64\) and \(5, 128\).*gcsa"):
            function(p, q)


def test_structures_refuse_no_rows_and_descriptors_of_unequal_shape():
    for structure in (structure_gram, structure_rdm):
        with pytest.raises(ValueError, match=r"\(0, 3\)"):
            structure(torch.ones(0, 3))
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        cosine_discrepancy(torch.ones(2), torch.ones(3))


# Propositions 2 and 3


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 12), st.integers(2, 12), st.floats(1e-3, 1e3), st.integers(0, 10**6))
def test_proposition_2_gcsa_ignores_scale_rotation_and_shift(n, d, scale, seed):
    p, shift = signed(n, d, seed=seed), signed(1, d, seed=seed + 1)
    assert gcsa(p, scale * p @ orthogonal(d, seed + 2) + shift).item() < 1e-12


def test_proposition_2_negative_control_gcsa_sees_the_scaling_of_single_rows():
    p = signed(10, 16)
    assert gcsa(p, p * torch.linspace(0.5, 3, 10, dtype=p.dtype).unsqueeze(1)).item() > 1e-2


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 12), st.integers(2, 12), st.integers(0, 10**6))
def test_proposition_3_rcsa_ignores_rotation_and_positive_scaling_of_rows(n, d, seed):
    p = signed(n, d, seed=seed)
    scales = signed(n, 1, seed=seed + 1).exp()
    assert rcsa(p, (scales * p) @ orthogonal(d, seed + 2)).item() < 1e-12


def test_proposition_3_negative_control_rcsa_sees_a_shift_and_a_flipped_row():
    p = signed(10, 16)
    assert rcsa(p, p + signed(1, 16, seed=1)).item() > 1e-3
    flip = torch.ones(10, 1, dtype=p.dtype)
    flip[0] = -1
    assert rcsa(p, flip * p).item() > 1e-4


def test_coordinate_losses_penalise_the_rotation_that_structure_ignores():
    p = signed(10, 16)
    rotated = p @ orthogonal(16)
    assert mse(p, rotated).item() > 0.5
    assert cosine(p, rotated).item() > 0.5


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 10), st.integers(1, 8), st.integers(1, 8), st.integers(0, 10**6))
def test_structural_losses_are_symmetric_and_lie_between_0_and_1(n, d, e, seed):
    p, q = signed(n, d, seed=seed), signed(n, e, seed=seed + 1)
    for loss in STRUCTURAL:
        assert 0 <= loss(p, q).item() <= 1 + 1e-12
        assert loss(p, q).item() == pytest.approx(loss(q, p).item(), abs=1e-12)


# Cases without signal


def assert_silent(loss, p, q):
    """An exact 0, gradients that are exactly 0, and not active."""
    p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
    value = loss(p, q)
    assert value.item() == 0.0
    for gradient in gradients(value, p, q):
        assert not gradient.any()
        assert gradient.isfinite().all()
    assert not align(p, q, loss).active


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("loss", STRUCTURAL)
def test_collapsed_rows_on_either_side_are_silent(loss, dtype):
    p = signed(100, 32, dtype=torch.float32).to(dtype)
    # 0.1 and its kind cannot be averaged exactly: what centring leaves is rounding, not a structure.
    collapsed = (signed(1, 32, seed=1, dtype=torch.float32) * 0.1 + 7).expand(100, 32).to(dtype)
    assert_silent(loss, p, collapsed)
    assert_silent(loss, collapsed, p)
    assert_silent(loss, collapsed, collapsed)


@pytest.mark.parametrize("loss", STRUCTURAL)
def test_rows_that_differ_by_rounding_alone_are_silent_and_by_more_are_not(loss):
    row, noise = signed(1, 32, seed=1, dtype=torch.float32), signed(20, 32, seed=2, dtype=torch.float32)
    q = signed(20, 32, seed=3, dtype=torch.float32)
    assert_silent(loss, row * (1 + 1e-7 * noise), q)
    assert align(row * (1 + 1e-4 * noise), q, loss).active


def test_rows_of_one_direction_are_silent_for_rcsa_alone():
    p = signed(1, 8) * torch.linspace(1, 4, 6, dtype=torch.float64).unsqueeze(1)
    assert_silent(rcsa, p, signed(6, 8, seed=1))
    assert gcsa(p, signed(6, 8, seed=1)).item() > 0.1


@pytest.mark.parametrize("loss", STRUCTURAL)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_rows_are_silent(loss, n):
    assert_silent(loss, signed(n, 8), signed(n, 8, seed=1))


@pytest.mark.parametrize("loss", [mse, cosine])
def test_coordinate_losses_need_one_row_and_are_silent_without(loss):
    assert_silent(loss, signed(0, 8), signed(0, 8))
    assert loss(signed(1, 8), signed(1, 8, seed=1)).item() > 0
    assert align(signed(1, 8), signed(1, 8, seed=1), loss).active


@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("zero_rows", [[0], [0, 3], [0, 1, 2, 3, 4]])
def test_zero_rows_give_finite_values_and_gradients(loss, zero_rows):
    p, q = signed(5, 4), signed(5, 4, seed=1)
    p[zero_rows] = 0
    p.requires_grad_()
    value = loss(p, q)
    assert value.isfinite()
    assert gradients(value, p)[0].isfinite().all()
    q[zero_rows] = 0
    assert gradients(loss(p, q), p)[0].isfinite().all()


def test_zero_row_counts_as_one_in_cosine_and_is_not_pulled():
    p = torch.tensor([[0.0, 0.0], [3.0, 0.0]], requires_grad=True)
    loss = cosine(p, torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    assert loss.item() == 0.5
    assert gradients(loss, p)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_rcsa_with_a_zero_row_measures_its_distance_to_unit_rows():
    p = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]])
    torch.testing.assert_close(structure_rdm(p), torch.tensor([1.0, 1.0, 2.0]))


@pytest.mark.parametrize("loss", EVERY)
def test_equal_structures_give_exactly_zero_and_are_active(loss):
    p = signed(6, 8).requires_grad_()
    result = align(p, p.detach().clone(), loss)
    assert result.active
    assert result.loss.item() == pytest.approx(0, abs=1e-15)
    assert gradients(result.loss, p)[0].abs().max() < 1e-15


@pytest.mark.parametrize("loss", EVERY)
def test_nan_features_are_not_taken_for_collapsed(loss):
    p = signed(5, 4)
    p[2, 1] = float("nan")
    assert loss(p, signed(5, 4, seed=1)).isnan()


@pytest.mark.parametrize("loss", EVERY)
def test_align_returns_the_loss_itself(loss):
    p, q = signed(6, 8), signed(6, 8, seed=1)
    assert torch.equal(align(p, q, loss).loss, loss(p, q))


def test_align_takes_a_loss_of_ones_own_and_its_number_of_rows():
    def own(p, q):
        return (p - q).abs().sum()

    assert align(signed(2, 3), signed(2, 3, seed=1), own).active
    assert align(signed(2, 3), signed(2, 3, seed=1), own, min_rows=3) == (torch.tensor(0.0), torch.tensor(False))


# Proposition 1


def coordinate_loss(z, p):
    return ((unit(z.numpy()) - unit(p.numpy())) ** 2).sum()


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6))
def test_proposition_1_shape_and_rigid_add_up_to_the_coordinate_loss(n, d, seed):
    z, p = signed(n, d, seed=seed), signed(n, d, seed=seed + 1)
    shape, rigid = procrustes_split(z, p)
    assert shape.item() + rigid.item() == pytest.approx(coordinate_loss(z, p), abs=1e-10)
    assert shape.item() >= 0
    assert rigid.item() >= -1e-12
    nuclear = np.linalg.svd(unit(p.numpy()).T @ unit(z.numpy()), compute_uv=False).sum()
    assert shape.item() == pytest.approx(2 * n - 2 * nuclear, abs=1e-10)


def test_equation_8_no_orthogonal_matrix_does_better_than_shape():
    z, p = signed(6, 4), signed(6, 4, seed=1)
    shape, _ = procrustes_split(z, p)
    others = [((unit(z.numpy()) - unit(p.numpy()) @ orthogonal(4, s).numpy()) ** 2).sum() for s in range(50)]
    assert shape.item() < min(others)


@pytest.mark.parametrize(("n", "d"), [(4, 10), (10, 4)])
def test_equation_10_shape_is_zero_if_the_gram_matrices_are_equal_and_positive_if_not(n, d):
    z = signed(n, d)
    shape, rigid = procrustes_split(z, z @ orthogonal(d, 5))
    assert shape.item() == pytest.approx(0, abs=1e-12)
    assert rigid.item() > 0.1
    assert procrustes_split(z, z + 0.3 * signed(n, d, seed=1))[0].item() > 1e-2


def test_rigid_is_zero_if_the_product_is_symmetric_positive_semi_definite_and_positive_if_not():
    p = torch.eye(2, dtype=torch.float64)  # so that P^T Z = Z
    psd = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)  # unit rows stay symmetric: both norms sqrt 5
    shape, rigid = procrustes_split(psd, p)
    assert rigid.item() == pytest.approx(0, abs=1e-12)
    assert shape.item() == pytest.approx(4 - 2 * 4 / np.sqrt(5), abs=1e-12)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # symmetric, eigenvalues 3 and -1
    assert procrustes_split(indefinite, p)[1].item() == pytest.approx(2 * (4 - 2) / np.sqrt(5), abs=1e-12)
    asymmetric = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert procrustes_split(asymmetric, p)[1].item() > 0.1


@pytest.mark.parametrize(("n", "d"), [(3, 6), (6, 3), (4, 4)])
def test_procrustes_parts_pass_gradcheck(n, d):
    z, p = signed(n, d).requires_grad_(), signed(n, d, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(procrustes_split, (z, p))


def test_procrustes_with_repeated_and_zero_rows_stays_finite():
    # Prototype-substituted rows repeat: the row space is smaller than n, where the gradient of a QR would be NaN.
    z, p = signed(6, 9).requires_grad_(), signed(2, 9, seed=1)[[0, 0, 1, 1, 0, 1]].clone()
    p[5] = 0
    shape, rigid = procrustes_split(z, p)
    expected = ((unit(z.detach().numpy()) - np.r_[unit(p[:5].numpy()), np.zeros((1, 9))]) ** 2).sum()
    assert (shape + rigid).item() == pytest.approx(expected, abs=1e-12)
    assert gradients(shape + rigid, z)[0].isfinite().all()
    assert procrustes_split(z[:0], p[:0]) == (torch.tensor(0.0), torch.tensor(0.0))


def test_procrustes_in_float32_and_bfloat16_autocast_agrees_with_float64():
    z, p = signed(10, 64), signed(10, 64, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        parts = procrustes_split(z.float(), p.float())
    for part, expected in zip(parts, procrustes_split(z, p), strict=True):
        assert part.item() == pytest.approx(expected.item(), rel=1e-5)
