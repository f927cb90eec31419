"""Models by name: `create_model("dumlp_pin_modelnet40")`, `list_models("*shapenet*")`."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from dumlp_pin._errors import nearest

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def register_model(builder: Builder) -> Builder:
    """A decorator: the function's name becomes the model's name."""
    name = builder.__name__
    if name in _BUILDERS:
        raise ValueError(f"a model named {name!r} is registered already")
    _BUILDERS[name] = builder
    return builder


def create_model(name: str, **overrides: Any) -> Any:
    """Build a registered model with fresh weights; `overrides` replace its arguments.

    The model remembers both, so that it can be built again where its weights are taken to.

    >>> model = create_model("dumlp_pin_modelnet40", num_classes=10)
    >>> model.num_classes
    10
    >>> model.created_as
    ('dumlp_pin_modelnet40', {'num_classes': 10})
    """
    if name not in _BUILDERS:
        raise KeyError(f"unknown model {name!r}{nearest(name, _BUILDERS)}")
    model: Any = _BUILDERS[name](**overrides)
    model.created_as = (name, overrides)
    return model


def describe_model(name: str) -> str:
    """What a registered model is for, in a line.

    >>> describe_model("dumlp_pin_modelnet40")
    'Point clouds with normals, 40 classes of objects.'
    """
    return (_BUILDERS[name].__doc__ or "").partition("\n")[0]


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern, in alphabetical order.

    >>> list_models("*shapenetpart*")[:2]
    ['dumlp_pin_shapenetpart_l', 'dumlp_pin_shapenetpart_s']
    """
    return sorted(fnmatch.filter(_BUILDERS, pattern))
