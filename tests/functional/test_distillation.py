import numpy as np
import pytest
import torch

from fedapp.functional.distillation import kl_divergence


def logits(seed, dtype=torch.float64):
    return 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def softmax(values):
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_divergence_equals_the_definition_averaged_over_the_batch(temperature):
    student, teacher = logits(0), logits(1)
    p, q = softmax(teacher.numpy() / temperature), softmax(student.numpy() / temperature)
    expected = temperature**2 * (p * np.log(p / q)).sum() / 7
    assert kl_divergence(student, teacher, temperature).item() == pytest.approx(expected, abs=1e-10)


def test_teacher_is_a_constant_and_student_gets_the_gradient():
    student, teacher = logits(0).requires_grad_(), logits(1).requires_grad_()
    kl_divergence(student, teacher).backward()
    assert teacher.grad is None
    expected = (softmax(student.detach().numpy()) - softmax(teacher.detach().numpy())) / 7
    np.testing.assert_allclose(student.grad, expected, atol=1e-10)


def test_student_gradient_passes_gradcheck():
    teacher = logits(1)
    assert torch.autograd.gradcheck(lambda s: kl_divergence(s, teacher, 2.0), logits(0).requires_grad_())


def test_equal_logits_and_empty_batches_give_zero():
    assert kl_divergence(logits(0), logits(0) + 3).item() == pytest.approx(0, abs=1e-12)
    empty = torch.empty(0, 5, requires_grad=True)
    loss = kl_divergence(empty, torch.empty(0, 5))
    loss.backward()
    assert loss.item() == 0.0


def test_bfloat16_and_autocast_are_computed_in_float32():
    student, teacher = logits(0).bfloat16(), logits(1).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = kl_divergence(student, teacher)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(kl_divergence(student.double(), teacher.double()).item(), rel=1e-5)


def test_bad_temperature_and_shapes_are_refused():
    with pytest.raises(ValueError, match="got 0"):
        kl_divergence(logits(0), logits(1), 0.0)
    with pytest.raises(ValueError, match=r"\(7, 5\) and \(7, 4\)"):
        kl_divergence(logits(0), logits(1)[:, :4])
