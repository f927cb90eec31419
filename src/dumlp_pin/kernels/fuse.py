"""Modules that can be made smaller and faster for inference, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

import dumlp_pin.blocks as blocks
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.kernels.fold import fold, fold_mlp, scale_and_shift
from dumlp_pin.kernels.prepared import forget

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP, BroadcastBlock


class Fusible(nn.Module):
    fused = False

    def fuse(self) -> Self:
        """Fold batch norm into the layers before it, for good; returns the module itself.

        It is for inference: the numbers stay the same up to rounding, the parameters that remain
        take no gradient, and training is over. Every way gains, an exported program too. Norms that
        do not follow a layer of an MLP or of a broadcast block stay.

        >>> from dumlp_pin import create_model
        >>> model, x = create_model("dumlp_pin_digits").eval(), torch.rand(2, 64, 3)
        >>> before = model(x)
        >>> torch.allclose(model.fuse()(x), before, atol=1e-5)
        True
        >>> model.train()
        Traceback (most recent call last):
        ...
        RuntimeError: this PinClassifier is fused for inference: its batch norms are gone, ...
        """
        if any(part.training for part in self.modules()):
            raise RuntimeError("fuse() is for inference: call eval() first")
        # Changes of weights made in inference mode are not counted: nothing made of them is kept.
        with torch.inference_mode(False), torch.no_grad():
            for part in list(self.modules()):
                if isinstance(part, blocks.MLP):
                    _fuse_mlp(part)
                elif isinstance(part, blocks.BroadcastBlock) and part.norm is not None:
                    _fuse_broadcast(part, part.norm)
                if isinstance(part, Fusible):
                    part.fused = True
        return self.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        if mode and self.fused:
            raise RuntimeError(
                f"this {type(self).__name__} is fused for inference: its batch norms are gone, "
                "train a model that is not"
            )
        forget(self)  # weights may have changed in a way that nobody counts, as by a CUDA graph
        return super().train(mode)


def _fuse_mlp(mlp: MLP) -> None:
    for linear, (weight, bias) in zip(mlp.linears, fold_mlp(mlp), strict=True):
        _replace(linear, "weight", weight)
        _replace(linear, "bias", bias)
    mlp.norms = nn.ModuleList().eval()


def _fuse_broadcast(block: BroadcastBlock, norm: BatchNorm) -> None:
    scale, _ = scale_and_shift(norm)
    weight, bias = fold(block.from_element, norm)
    _replace(block.from_element, "weight", weight)
    _replace(block.from_element, "bias", bias)
    _replace(block.from_set, "weight", block.from_set.weight * scale[:, None])
    if block.cross is not None:
        _replace(block, "cross", block.cross * scale[:, None, None])
    block.norm = None


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    dtype = next(module.parameters(recurse=False)).dtype
    setattr(module, name, nn.Parameter(value.to(dtype)))
