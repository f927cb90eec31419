import pytest
import torch
from torch.nn import functional as F

from dumlp_pin import MLP, AggregationBlock, BroadcastBlock, SetBatch


def test_mlp_is_linear_norm_relu_and_the_last_has_no_relu() -> None:
    mlp = MLP((3, 8, 5)).eval()
    x = torch.randn(10, 3)
    hidden = F.relu(mlp.norms[0](mlp.linears[0](x)))
    torch.testing.assert_close(mlp(x), mlp.norms[1](mlp.linears[1](hidden)))


def test_the_last_layer_may_be_bare() -> None:
    mlp = MLP((3, 8, 5), bare_last=True)
    assert (len(mlp.linears), len(mlp.norms)) == (2, 1)


def test_an_mlp_of_one_width_does_nothing() -> None:
    x = torch.randn(2, 4, 3)
    assert MLP((3,))(x) is x


def test_aggregation_is_the_product_of_its_branches() -> None:
    block = AggregationBlock(6, [(16, 4), (16, 5)], ("softmax", None), scale=0.1).eval()
    x = torch.randn(2, 30, 6)
    a = block.branches[0](x).softmax(1)
    b = block.branches[1](x)
    expected = torch.stack([a[i].T @ b[i] for i in range(2)]).flatten(1)
    torch.testing.assert_close(block(x), 0.1 * expected)


def test_order_one_is_a_sum_over_the_set() -> None:
    block = AggregationBlock(6, [(16, 7)], (None,)).eval()
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(block(x), block.branches[0](x).sum(1))


def test_an_empty_set_gives_zeros() -> None:
    block = AggregationBlock(3, [(8, 4), (8, 4)], ("softmax", "softmax")).eval()
    y = block(SetBatch.from_list([torch.randn(5, 3), torch.zeros(0, 3)]))
    assert y[0].any()
    assert not y[1].any()


def test_dropout_falls_on_the_output() -> None:
    block = AggregationBlock(3, [(8, 32), (8, 32)], (None, None), dropout=0.5)
    dropped = (block(torch.randn(4, 20, 3)) == 0).float().mean()
    assert 0.4 < dropped < 0.6
    assert (block.eval()(torch.randn(4, 20, 3)) != 0).all()


def test_broadcast_is_the_papers_equation() -> None:
    """z = (W_xy x) y + W_x x + W_y y + b for every element, written out one by one."""
    block = BroadcastBlock((3,), (4,), (5,), cross_term=True).double().eval()
    x, y = torch.randn(2, 6, 3).double(), torch.randn(2, 4).double()
    z = torch.zeros(2, 6, 5).double()
    assert block.cross is not None
    assert block.norm is not None
    for i in range(2):
        for n in range(6):
            bilinear = torch.stack([y[i] @ block.cross[k] @ x[i, n] for k in range(5)])
            linear = block.from_element.weight @ x[i, n] + block.from_set.weight @ y[i]
            z[i, n] = bilinear + linear + block.from_element.bias
    torch.testing.assert_close(block(x, y), F.relu(block.norm(z)))


def test_the_cross_term_is_off_unless_asked_for() -> None:
    assert BroadcastBlock((3,), (4,), (5,)).cross is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(()), r"widths of an MLP are positive"),
        (lambda: MLP((3, 0)), r"widths of an MLP are positive"),
        (lambda: AggregationBlock(3, [], ()), r"branches are one tuple of widths a factor"),
        (lambda: AggregationBlock(3, [(4,)], ("softmax", None)), r"1 branches need as many"),
        (
            lambda: AggregationBlock(3, [(4,)], ("softmx",)),
            r"unknown activation 'softmx'; did you mean 'softmax'\?$",
        ),
    ],
)
def test_wrong_arguments(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_as_many_set_features_as_sets() -> None:
    block = BroadcastBlock((3,), (4,), (5,))
    with pytest.raises(ValueError, match=r"^2 sets need as many set features, got 3$"):
        block(torch.zeros(2, 6, 3), torch.zeros(3, 4))


def test_what_is_no_sets_is_refused_as_it_came() -> None:
    aggregate = AggregationBlock(3, [(8,), (8,)], ("softmax", None)).eval()
    broadcast = BroadcastBlock(element=(3, 4), set=(5, 4), combined=(4, 6)).eval()
    for call in (aggregate, lambda x: broadcast(x, torch.rand(1, 5))):
        with pytest.raises(ValueError, match=r"^sets are \(B, N, F\) or .*, got shape \(4, 3\)$"):
            call(torch.rand(4, 3))
        with pytest.raises(TypeError, match=r"a tensor \(B, N, F\) or a SetBatch, got ndarray$"):
            call(torch.rand(1, 4, 3).numpy())
