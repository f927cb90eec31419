"""Reads the checkpoints that the authors of the paper published."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch

from dumlp_pin._errors import nearest
from dumlp_pin.models.registry import create_model

# name -> which stage the authors' last pair of blocks is (0 where there are no stages)
PUBLISHED = {
    "dumlp_pin_modelnet40": 0,
    "dumlp_pin_shapenetpart_s": 1,
    "dumlp_pin_shapenetpart_l": 3,
}


def load_official(path: str | Path, name: str) -> Any:
    """The model `name` with the weights of a .pth file of the authors, ready to evaluate.

    Their files hold `{"epoch", "metric", "model"}` with a state dict; a bare state dict works too.
    The model computes what theirs does.
    """
    if name not in PUBLISHED:
        raise KeyError(f"no checkpoint of {name!r} was published{nearest(name, PUBLISHED)}")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a checkpoint that can be read safely: {reason}") from error
    state = checkpoint.get("model", checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds no state dict")

    model = create_model(name)
    renamed = {_our_name(key, last_stage=PUBLISHED[name]): value for key, value in state.items()}
    ours = model.state_dict()
    for key in ours.keys() | renamed.keys():
        if key not in renamed or key not in ours or renamed[key].shape != ours[key].shape:
            raise ValueError(f"{path} is not a checkpoint of {name}: it differs at {key}")
    model.load_state_dict(renamed)
    return model.eval()


def _our_name(key: str, last_stage: int) -> str:
    """
    >>> _our_name("saus.0.mlp_e.layers.0.db.weight", last_stage=3)
    'stages.1.broadcast.element.norms.0.weight'
    """
    key = re.sub(r"^(sab|sau)s\.(\d+)\.", lambda m: f"{m[1]}.stage{int(m[2]) + 1}.", key)
    for theirs, ours in (
        (r"^sau_i\.", "stages.0.broadcast."),
        (r"^sab_e\.", f"stages.{last_stage}.aggregate."),
        (r"^sau_e\.", f"stages.{last_stage}.broadcast."),
        (r"^sab\.stage(\d+)\.", r"stages.\1.aggregate."),
        (r"^sau\.stage(\d+)\.", r"stages.\1.broadcast."),
        (r"^sab\.", "aggregate."),
        (r"^(mlp|li)\.", "head."),
        (r"\bmlps\.", "branches."),
        (r"\bmlp_e\.", "element."),
        (r"\bmlp_s\.", "set."),
        (r"\bmlp_a\.", "combined."),
        (r"\bcomb\.li1\.", "from_element."),
        (r"\bcomb\.li2\.", "from_set."),
        (r"\bcomb\.db\.", "norm."),
        (r"\blayers\.(\d+)\.li\.", r"linears.\1."),
        (r"\blayers\.(\d+)\.db\.", r"norms.\1."),
        (r"\blayers\.(\d+)\.(weight|bias)$", r"linears.\1.\2"),
    ):
        key = re.sub(theirs, ours, key)
    return key
