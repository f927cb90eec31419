"""Models of the registry on the Hugging Face Hub: `push_to_hub`, `save_pretrained` and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from torch import nn

from dumlp_pin._errors import need
from dumlp_pin._files import save_tensors, written_whole
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.pretrained import load_weights

need("huggingface_hub", "hub")
from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download  # noqa: E402

WEIGHTS = "model.safetensors"
CARD = """---
{{ card_data }}
---

# {{ name }}

A model of sets, [DuMLP-Pin]({{ paper_url }}), of {{ parameters }} parameters.
{% if class_names %}
It tells apart: {{ class_names | join(", ") }}.
{% endif %}
```python
from dumlp_pin.hub import HubModel

model = HubModel.from_pretrained("the name of this repository").model
```
"""


class HubModel(
    nn.Module,
    ModelHubMixin,
    library_name="dumlp-pin",
    paper_url="https://arxiv.org/abs/2203.04007",
    tags=["sets"],
    model_card_template=CARD,
):
    """A model of the registry, with the methods of the Hub around it.

    Its repository, or folder, has the model's name, overrides and classes in config.json, and the
    weights in model.safetensors.

    >>> import tempfile
    >>> from dumlp_pin.pretrained import load_pretrained
    >>> model = load_pretrained("digits")
    >>> with tempfile.TemporaryDirectory() as folder:  # or push_to_hub("your-name/digits")
    ...     HubModel.of(model, class_names="0123456789").save_pretrained(folder)
    ...     found = HubModel.from_pretrained(folder)
    >>> found.class_names[:3], found.model.num_classes
    (('0', '1', '2'), 10)
    """

    def __init__(
        self,
        name: str,
        overrides: Mapping[str, Any] | None = None,
        class_names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.created_as = (name, {**(overrides or {})})
        self.model = create_model(name, **self.created_as[1])
        self.class_names = tuple(class_names)

    @classmethod
    def of(cls, model: Any, class_names: Sequence[str] = ()) -> Self:
        """Around a model that `create_model` or `load_pretrained` made; it keeps its weights."""
        if not hasattr(model, "created_as"):
            raise TypeError(
                f"the Hub takes models of the registry, made by create_model; "
                f"this {type(model).__name__} is none"
            )
        name, overrides = model.created_as
        if hasattr(model, "num_classes"):
            overrides = {**overrides, "num_classes": model.num_classes}  # after a `reset_head`
        around = cls(name, overrides, class_names)
        around.model = model
        return around

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        name, _ = self.created_as
        about = {
            "name": name,
            "parameters": f"{count_parameters(self.model):,}",
            "class_names": self.class_names,
        }
        return super().generate_model_card(*args, **about, **kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        name, overrides = self.created_as
        config = {"name": name, "overrides": overrides, "class_names": self.class_names}
        save_tensors(save_directory / WEIGHTS, self.model.state_dict(), {"model": name})
        with written_whole(save_directory / "config.json") as draft:
            draft.write_text(json.dumps(config, indent=1, default=asdict) + "\n", encoding="utf-8")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        name: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        class_names: Sequence[str] = (),
        **download: Any,
    ) -> Self:
        if name is None:
            raise ValueError(f"{model_id} holds no config.json that names a model of the registry")
        around = cls(name, overrides, class_names)
        path = Path(model_id) / WEIGHTS
        if not Path(model_id).is_dir():
            path = Path(hf_hub_download(model_id, WEIGHTS, **download))
        load_weights(around.model, path)
        return around.eval()
