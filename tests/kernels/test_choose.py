"""Which way blocks take, that each is told, and that whoever asks for more than numbers is safe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dumlp_pin import AggregationBlock, SetBatch, create_model, explain
from dumlp_pin.kernels import cpu
from dumlp_pin.kernels.choose import Path, choose
from tests.contract import BLOCKS

BY_NAME = {subject.name: subject for subject in BLOCKS}
AGGREGATION = BY_NAME["aggregation_softmax"]


def make(dtype: torch.dtype = torch.float32) -> Any:
    return AGGREGATION.build(dtype=dtype)


def draw(dtype: torch.dtype = torch.float32) -> Tensor:
    return AGGREGATION.draw([7, 7], dtype=dtype).dense()["x"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_takes_the_way_of_the_device(
    dtype: torch.dtype, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    block, sample = make(dtype), AGGREGATION.draw([7, 3], dtype=dtype)
    with mode():
        for inputs in (sample.packed(), sample.masked(torch.nan)):
            assert choose(block, **inputs) == Path("cpu", f"inference in {dtype} on cpu")
            assert torch.equal(block(**inputs), cpu.aggregate(block, **inputs))


def test_weights_that_take_no_gradient_are_inference_too() -> None:
    block = make().requires_grad_(False)
    assert choose(block, draw()).name == "cpu"
    assert choose(block, draw().requires_grad_()) == Path(
        "plain", "a gradient of the input may be asked for"
    )


def with_hook(block: Any) -> None:
    block.branches[0].linears[0].register_forward_hook(lambda *_: None)


def with_forward(block: Any) -> None:
    block.branches[0].forward = lambda x, mask=None: x[..., :5]


def with_other_layer(block: Any) -> None:
    class Mine(nn.Linear):
        pass

    block.branches[0].linears[0] = Mine(6, 16)


def with_batch_statistics(block: Any) -> None:
    block.branches[0].norms[0].running_mean = None
    block.branches[0].norms[0].running_var = None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a BatchNorm in the block is in training": lambda block: block.branches[0].norms[0].train(),
    "a Linear in the block has a hook": with_hook,
    "a MLP in the block has a forward of its own": with_forward,
    "a Mine is in the block": with_other_layer,
    "a batch norm takes the statistics of each batch": with_batch_statistics,
    "weights are in torch.float64 on cpu": lambda block: block.branches[1].double(),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_block_that_is_not_as_it_was_made_is_left_alone(reason: str) -> None:
    block = make()
    CHANGES[reason](block)
    with torch.inference_mode():
        path = choose(block, draw())
    assert path.name == "plain"
    assert reason in path.reason


INPUTS: dict[str, Callable[[Tensor], dict[str, Any]]] = {
    "the input is in torch.float64": lambda x: {"x": x.double()},
    "the input is a Parameter": lambda x: {"x": nn.Parameter(x, requires_grad=False)},
    "the input does not fit": lambda x: {"x": x[..., :5]},
    "does not fit": lambda x: {"x": x[0]},
    "input does not fit": lambda x: {"x": x, "mask": torch.ones(2, 6, dtype=torch.bool)},
    "not fit": lambda x: {"x": SetBatch.from_list([x[0]]), "mask": torch.ones(1, 7) > 0},
}


@pytest.mark.parametrize("reason", INPUTS)
def test_inputs_that_faster_ways_were_not_made_for(reason: str) -> None:
    with torch.inference_mode():
        path = choose(make(), **INPUTS[reason](draw()))
    assert path.name == "plain"
    assert reason in path.reason


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast decides on the types": lambda: torch.autocast("cpu", torch.bfloat16),
    "somebody traces the operations": lambda: FlopCounterMode(display=False),
    "gradients may be asked for": torch.enable_grad,
}


@pytest.mark.parametrize("reason", SURROUNDINGS)
def test_somebody_else_decides(reason: str) -> None:
    with torch.no_grad(), SURROUNDINGS[reason]():
        path = choose(make(), draw())
    assert path.name == "plain"
    assert reason in path.reason


def test_hooks_on_all_modules_see_all_modules() -> None:
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    try:
        with torch.no_grad():
            make()(draw())
    finally:
        handle.remove()
    assert "BatchNorm" in seen


class TestWhoeverAsksForMoreThanNumbers:
    """Under no_grad, where nothing else keeps a block from its faster way."""

    @pytest.fixture(autouse=True)
    def _no_grad(self):
        with torch.no_grad():
            yield

    def test_counts_of_operations_are_those_of_the_definition(self) -> None:
        block, x = make(), draw()
        with FlopCounterMode(display=False) as counter:
            block(x)
        per_element = 2 * (6 * 16 + 16 * 5) + 5 * 5
        assert counter.get_total_flops() == 2 * 14 * per_element

    def test_programs_have_plain_operations_only(self) -> None:
        block, x = make(), draw()
        program = torch.export.export(block, (x,))
        names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert any("batch_norm" in name for name in names)
        assert all(name.startswith(("aten.", "<built-in")) for name in names)
        graphs: list[Any] = []

        def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs.append(graph)
            return graph

        torch.compiler.reset()
        compiled = torch.compile(block, backend=keep, fullgraph=True)
        torch.testing.assert_close(compiled(x), block(x))
        assert any("batch_norm" in str(node.target) for node in graphs[0].graph.nodes)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # PyTorch's own
    def test_function_transforms(self) -> None:
        block, x = make(), draw()
        together = torch.func.vmap(lambda one: block(one[None])[0])(x)
        torch.testing.assert_close(together, block(x))
        tangent = torch.func.jvp(block, (x,), (torch.ones_like(x),))[1]
        exact, wide = copy.deepcopy(block).double(), x.double()
        slope = (exact(wide + 1e-6) - exact(wide - 1e-6)) / 2e-6
        torch.testing.assert_close(tangent, slope.float(), rtol=1e-3, atol=1e-4)

    def test_weights_of_the_caller(self) -> None:
        block, x = make(), draw()
        weights = {name: torch.zeros_like(p) for name, p in block.named_parameters()}
        assert torch.equal(torch.func.functional_call(block, weights, (x,)), torch.zeros(2, 25))


class TestWeightsOfNow:
    """What is made of weights is kept, but no longer than they stay as they are."""

    CHANGES: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "in place": lambda block: block.branches[0].linears[0].weight.mul_(2),
        "by another": lambda block: setattr(
            block.branches[0].linears[0], "weight", nn.Parameter(torch.ones(16, 6))
        ),
        "a statistic": lambda block: block.branches[1].norms[0].running_mean.add_(1),
        "a state": lambda block: block.load_state_dict(AGGREGATION.build(seed=1).state_dict()),
        "uncounted, then eval()": lambda block: [
            block.branches[0].linears[0].weight.data.mul_(2),
            block.eval(),
        ],
        "a layer": lambda block: block.branches[0].linears.__setitem__(0, nn.Linear(6, 16).eval()),
        "a layer more": lambda block: block.branches[0].linears.append(nn.Linear(5, 5).eval()),
    }

    @pytest.mark.parametrize("how", CHANGES)
    @torch.no_grad()
    def test_changes(self, how: str) -> None:
        block, x = make(), draw()
        before = block(x)
        self.CHANGES[how](block)
        assert choose(block, x).name == "cpu"
        after = block(x)
        assert not torch.allclose(after, before, rtol=0.01)
        with torch.enable_grad():
            torch.testing.assert_close(after, block(x).detach())

    def test_steps_of_training_in_between(self) -> None:
        block, x = make(), draw()
        optimizer = torch.optim.SGD(block.parameters(), lr=0.5)
        for _ in range(3):
            block.train()
            optimizer.zero_grad()
            block(x).square().sum().backward()
            optimizer.step()
            block.eval()
            with torch.inference_mode():
                fast = block(x)
            torch.testing.assert_close(fast, block(x).detach())

    @torch.inference_mode()
    def test_weights_made_in_inference_mode(self) -> None:
        """PyTorch does not count their changes."""
        block, x = make(), draw()
        before = block(x)
        block.branches[0].linears[0].weight.mul_(2)
        assert not torch.allclose(block(x), before, rtol=0.01)


class TestExplain:
    def test_every_block_of_a_model_by_its_name(self) -> None:
        model, x = create_model("dumlp_pin_mnist_l").eval(), torch.rand(2, 9, 3)
        with torch.inference_mode():
            paths = explain(model, x)
        assert {name for name, _ in model.named_modules() if name.endswith("aggregate")} <= set(
            paths
        )
        assert paths["aggregate"] == Path("cpu", "inference in torch.float32 on cpu")

    def test_a_block_by_itself(self) -> None:
        assert explain(make(), draw()) == {
            "": Path("plain", "gradients may be asked for: no torch.inference_mode() here")
        }

    def test_training(self) -> None:
        assert explain(make().train(), draw()) == {
            "": Path("plain", "Triton needs a GPU, the input is on cpu")
        }

    def test_nothing_stays_behind(self) -> None:
        block = make()
        with pytest.raises(ValueError, match="expected 6 features"):
            explain(block, draw()[..., :2])
        assert explain(block, x=draw(), mask=torch.ones(2, 7, dtype=torch.bool))[""].name == "plain"


@pytest.mark.parametrize("inference", [False, True])
def test_a_group_of_processes_has_a_way_of_its_own(inference: bool) -> None:
    block = make()
    assert isinstance(block, AggregationBlock)
    block.process_group = object()  # pyright: ignore[reportAttributeAccessIssue]
    with torch.inference_mode() if inference else nullcontext():
        assert choose(block, draw()).name == "plain"
