import torch
from torch import nn

from dumlp_pin.batchnorm import BatchNorm


def test_a_mask_makes_it_the_batch_norm_of_what_is_kept() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(4), nn.BatchNorm1d(4)
    x, mask = torch.randn(3, 5, 4) * 3 + 2, torch.rand(3, 5) > 0.4
    for _ in range(3):
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


def test_fewer_than_two_rows_use_and_keep_the_running_estimates() -> None:
    norm = BatchNorm(2)
    norm(torch.randn(8, 2))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    row = torch.tensor([[3.0, -1.0]])
    alone = norm(row)
    masked = norm(torch.stack([row, row * torch.nan], 1), torch.tensor([[True, False]]))
    nothing = norm(torch.zeros(0, 2))
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(alone, norm.eval()(row))
    torch.testing.assert_close(masked[:, 0], alone)
    assert nothing.shape == (0, 2)


def test_large_offsets_do_not_eat_the_variance() -> None:
    """Two passes: the variance is of differences from the mean, not a difference of squares."""
    norm, mask = BatchNorm(1), torch.ones(1000, dtype=torch.bool)
    x = torch.randn(1000, 1) + 10_000
    assert abs(float(norm(x, mask).detach().std()) - 1) < 0.01


def test_a_batch_between_forward_and_backward_is_no_matter() -> None:
    norm, mask = BatchNorm(2), torch.ones(8, dtype=torch.bool)
    x, others = torch.randn(8, 2, requires_grad=True), torch.randn(8, 2)
    (alone,) = torch.autograd.grad(norm(x).square().mul(others).sum(), x)
    loss = norm(x).square().mul(others).sum()
    norm(others, mask)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], alone)
