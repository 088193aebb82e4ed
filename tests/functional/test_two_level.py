"""FedSAF's two levels for one batch, Eq. 15 to 18, and the batches on which a level has nothing to say."""

import numpy as np
import pytest
import torch

from fedapp.functional.alignment import ALIGNMENTS, gcsa, mse, rcsa, two_level

STRUCTURAL = [gcsa, rcsa]
EVERY = list(ALIGNMENTS.values())


def signed(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def all_known(num_classes):
    return torch.ones(num_classes, dtype=torch.bool)


def run(labels, alignment, known=None, dtype=torch.float64, features=None):
    """Both levels for a batch with these labels, and the gradient of their sum."""
    labels = torch.tensor(labels, dtype=torch.int64)
    features = (signed(len(labels), 6, dtype=dtype) if features is None else features).clone().requires_grad_()
    prototypes = signed(7, 6, seed=1, dtype=dtype).requires_grad_()
    level = two_level(features, labels, prototypes, all_known(7) if known is None else torch.tensor(known), alignment)
    (level.proto + level.inst).backward()
    assert prototypes.grad is None, "global prototypes are constants"
    return level, features.grad


@pytest.mark.parametrize("alignment", EVERY)
def test_equations_15_to_18_written_out(alignment):
    labels = [3, 0, 5, 3, 3, 0, 6, 5]
    level, _ = run(labels, alignment)
    features, prototypes = signed(8, 6), signed(7, 6, seed=1)
    local = torch.stack([sum(features[j] for j in range(8) if labels[j] == c) / labels.count(c) for c in (0, 3, 5, 6)])
    proto = alignment(local, prototypes[[0, 3, 5, 6]])
    inst = alignment(features, torch.stack([prototypes[c] for c in labels]))
    assert level.proto.item() == pytest.approx(proto.item(), abs=1e-12)
    assert level.inst.item() == pytest.approx(inst.item(), abs=1e-12)
    assert level.proto_active
    assert level.inst_active


@pytest.mark.parametrize("alignment", STRUCTURAL)
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_targets_that_repeat_unevenly_keep_their_accuracy_in_float32(alignment, offset):
    labels = torch.tensor([2] * 97 + [0, 1, 3])
    features, prototypes = signed(100, 64) + offset, signed(4, 64, seed=1) + offset
    expected = alignment(features, prototypes[labels])
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        inst = two_level(features.to(dtype), labels, prototypes.to(dtype), all_known(4), alignment).inst
        assert inst.item() == pytest.approx(expected.item(), abs=tolerance)


@pytest.mark.parametrize("alignment", EVERY)
def test_each_level_alone_reaches_the_features(alignment):
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    for name in ("proto", "inst"):
        features = signed(6, 4).requires_grad_()
        getattr(two_level(features, labels, signed(3, 4, seed=1), all_known(3), alignment), name).backward()
        assert features.grad.norm() > 1e-6
        assert (features.grad.norm(dim=1) > 0).all()


@pytest.mark.parametrize("alignment", EVERY)
def test_both_levels_pass_gradcheck(alignment):
    labels, prototypes = torch.tensor([0, 1, 2, 0, 1, 3]), signed(4, 4, seed=1)
    known = torch.tensor([True, True, True, False])
    features = signed(6, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: two_level(z, labels, prototypes, known, alignment)[:2], features)


@pytest.mark.parametrize("alignment", EVERY)
def test_samples_without_a_global_prototype_are_left_out_at_both_levels(alignment):
    known = [True, True, True, False, True, True, True]
    level, gradient = run([0, 3, 1, 2, 3, 0, 1], alignment, known)
    kept = [0, 2, 3, 5, 6]
    expected, expected_gradient = run([0, 1, 2, 0, 1], alignment, features=signed(7, 6)[kept])
    assert level.proto.item() == pytest.approx(expected.proto.item(), abs=1e-12)
    assert level.inst.item() == pytest.approx(expected.inst.item(), abs=1e-12)
    np.testing.assert_allclose(gradient[kept], expected_gradient, atol=1e-12)
    assert not gradient[[1, 4]].any()


def test_an_unknown_prototype_is_never_read():
    prototypes = signed(4, 5, seed=1)
    prototypes[3] = float("nan")
    known = torch.tensor([True, True, True, False])
    for alignment in EVERY:
        level = two_level(signed(5, 5), torch.tensor([0, 1, 2, 3, 3]), prototypes, known, alignment)
        assert level.proto.isfinite()
        assert level.inst.isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alignment", STRUCTURAL)
def test_a_batch_of_one_class_is_silent_at_both_levels_for_structure(alignment, dtype):
    # users.md 2.10: labels [5] * 8 must leave the loss at the cross-entropy and all gradients finite.
    level, gradient = run([5] * 8, alignment, dtype=dtype)
    assert (level.proto.item(), level.inst.item()) == (0.0, 0.0)
    assert not level.proto_active
    assert not level.inst_active
    assert not gradient.any()


@pytest.mark.parametrize("alignment", STRUCTURAL)
def test_a_batch_of_two_classes_is_silent_between_prototypes_but_not_between_samples(alignment):
    level, gradient = run([5, 2, 5, 2, 2], alignment)
    assert level.proto.item() == 0.0
    assert not level.proto_active
    assert level.inst.item() > 0
    assert level.inst_active
    assert gradient.isfinite().all()
    assert gradient.any()


def test_coordinate_alignment_is_active_at_both_levels_with_one_class():
    level, gradient = run([5] * 8, mse)
    assert level.proto_active
    assert level.inst_active
    assert level.proto.item() > 0
    assert gradient.any()


@pytest.mark.parametrize("alignment", EVERY)
@pytest.mark.parametrize(("labels", "known"), [([], [True] * 7), ([1, 2, 3, 1], [False] * 7)])
def test_empty_selections_are_silent_and_can_be_backpropagated(alignment, labels, known):
    level, gradient = run(labels, alignment, known)
    assert (level.proto.item(), level.inst.item()) == (0.0, 0.0)
    assert not level.proto_active
    assert not level.inst_active
    assert not gradient.any()


@pytest.mark.parametrize("alignment", STRUCTURAL)
def test_collapsed_features_and_equal_global_prototypes_are_silent(alignment):
    labels = torch.tensor([0, 1, 2, 3, 0])
    collapsed = (signed(1, 6) * 0.1).expand(5, 6).clone().requires_grad_()
    for features, prototypes in ((collapsed, signed(4, 6)), (signed(5, 6).requires_grad_(), torch.ones(4, 6))):
        level = two_level(features, labels, prototypes, all_known(4), alignment)
        assert (level.proto.item(), level.inst.item()) == (0.0, 0.0)
        assert not level.proto_active
        assert not level.inst_active
        (level.proto + level.inst).backward()
        assert not features.grad.any()


@pytest.mark.parametrize("alignment", EVERY)
def test_zero_features_and_zero_prototypes_give_finite_gradients(alignment):
    labels = torch.tensor([0, 1, 2, 3, 0])
    features, prototypes = signed(5, 6), signed(4, 6, seed=1)
    features[[0, 4]], prototypes[2] = 0, 0
    features.requires_grad_()
    level = two_level(features, labels, prototypes, all_known(4), alignment)
    (level.proto + level.inst).backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("alignment", EVERY)
def test_autocast_and_bfloat16_features_are_computed_in_float32(alignment):
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    features, prototypes = signed(6, 8).bfloat16().requires_grad_(), signed(3, 8, seed=1).float()
    exact = two_level(features.detach().double(), labels, prototypes.double(), all_known(3), alignment)
    with torch.autocast("cpu", torch.bfloat16):
        level = two_level(features, labels, prototypes, all_known(3), alignment)
    assert level.proto.dtype == level.inst.dtype == torch.float32
    assert level.proto.item() == pytest.approx(exact.proto.item(), abs=1e-6)
    assert level.inst.item() == pytest.approx(exact.inst.item(), abs=1e-6)
    (level.proto + level.inst).backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("alignment", EVERY)
def test_a_backward_pass_inside_autocast_gives_the_same_bits(alignment):
    labels, prototypes = torch.tensor([0, 1, 2, 0, 1, 2]), signed(3, 64, seed=1).float()
    inside, outside = (signed(6, 64).float().requires_grad_() for _ in range(2))
    level = two_level(outside, labels, prototypes, all_known(3), alignment)
    (level.proto + level.inst).backward()
    with torch.autocast("cpu", torch.bfloat16):
        level = two_level(inside, labels, prototypes, all_known(3), alignment)
        (level.proto + level.inst).backward()
    assert torch.equal(inside.grad, outside.grad)


def test_structure_aligns_features_and_prototypes_of_different_dimension_and_coordinates_refuse():
    features, labels, prototypes = signed(6, 8), torch.tensor([0, 1, 2, 0, 1, 2]), signed(3, 5, seed=1)
    assert two_level(features, labels, prototypes, all_known(3), gcsa).inst.item() > 0
    with pytest.raises(ValueError, match=r"\(3, 8\) and \(3, 5\)"):
        two_level(features, labels, prototypes, all_known(3), mse)


def test_a_loss_of_ones_own_takes_part_with_its_number_of_rows():
    def own(p, q):
        return (p - q).abs().sum()

    level = two_level(signed(4, 3), torch.tensor([0, 0, 1, 1]), signed(2, 3), all_known(2), own, min_rows=3)
    assert not level.proto_active
    assert level.proto.item() == 0.0
    assert level.inst_active
    assert level.inst.item() > 0


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(5,\)"):
        two_level(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(4, 3), all_known(5), gcsa)
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3,\)"):
        two_level(torch.ones(2, 3), torch.tensor([0, 1, 2]), torch.ones(4, 3), all_known(4), gcsa)
    some_known = torch.tensor([False, True, True, True])
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(3,\)"):
        two_level(torch.ones(4, 3), torch.tensor([0, 1, 2]), torch.ones(4, 3), some_known, gcsa)
