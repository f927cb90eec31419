"""What the estimators have in common: reading sets, fitting, running, pickling, saving."""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dumlp_pin.estimators.encoding import ElementEncoder
from dumlp_pin.estimators.fitting import Plan, hold_out, pieces, take, train
from dumlp_pin.estimators.folder import (
    parameters_from,
    plain_parameters,
    read_folder,
    write_folder,
)
from dumlp_pin.estimators.inputs import read_sets
from dumlp_pin.models import PinClassifier
from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets
from dumlp_pin.training.distributed import choose_device

BRANCHES = ("softmax", None)
STEPS = 1500  # of the optimiser, that a fit of few sets takes
FEWEST_TO_HOLD_OUT = 20  # sets; of fewer, none is kept back, and the last weights are the result


class SetEstimator(TransformerMixin, BaseEstimator, ABC):
    """An estimator whose samples are sets.

    `X` is a list of arrays (N_b, F); an array (B, N, F), with `mask` (B, N) where not all elements
    are real; a table with one row an element; or a `SetBatch`.

    Parameters
    ----------
    set_column : the column of a table that says which set a row belongs to.
    target : the column of a table to learn, where `y` is not given.
    width : k, for set features of k x k numbers; chosen from the number of sets by default.
    batch_size, max_epochs : chosen from the number of sets by default.
    learning_rate : the largest, which is reached after a tenth of the epochs.
    validation_fraction : the part of the sets that says when to stop and which weights to keep.
    patience : the epochs to wait for better weights, as a part of `max_epochs`.
    random_state : an int makes fits repeat, exactly on a CPU.
    device : where to compute, such as "cpu" or "cuda:1"; a GPU where there is one.
    verbose : whether to print a line an epoch.

    What `fit` leaves
    -----------------
    network_ : the trained network; it takes what `encoder_.encode` makes of sets.
    history_ : the losses of each epoch.
    held_out_score_ : of the sets that chose the weights, so a little too good; None without them.
    """

    def __init__(
        self,
        *,
        set_column: str | None = None,
        target: str | None = None,
        width: int | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        learning_rate: float = 0.01,
        dropout: float = 0.2,
        validation_fraction: float = 0.15,
        patience: float = 0.3,
        random_state: Any = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.set_column = set_column
        self.target = target
        self.width = width
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.dropout = dropout
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None) -> Self:
        """Learn from sets; `y` and `sample_weight` have one entry a set."""
        self._check_parameters()
        sets = self._open(X, mask, self.target)
        labels = self._labels(sets, y)
        target = self._learn_target(labels, sets)
        weight = _checked_weight(sample_weight, len(sets)) * self._class_weights(target)
        self.encoder_ = ElementEncoder.fitted(sets)
        self.n_features_in_ = len(sets.columns)
        self.architecture_ = self._architecture(self.encoder_.width, len(sets))

        device = choose_device(self.device)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        held_out = np.empty(0, dtype=np.int64)
        if len(sets) >= FEWEST_TO_HOLD_OUT:
            random = np.random.RandomState(seed)
            held_out = hold_out(self._strata(target), self.validation_fraction, random)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            network = self._build(self.architecture_).to(device)
            self.history_ = train(
                network,
                self.encoder_.encode(sets).to(device),
                torch.from_numpy(target).to(device),
                torch.from_numpy(weight).to(device),
                held_out,
                self._losses,
                self._plan(len(sets)),
            )
        self.network_ = network.cpu().eval()
        self.held_out_score_ = None
        if len(held_out) > 1:
            unlabelled = dataclasses.replace(sets.select(held_out), target=None)
            self.held_out_score_ = float(self.score(unlabelled, labels[held_out]))
        return self

    def transform(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B, width * width): the feature of each set, before the last layers."""
        sets = self._read(X, mask)
        return self._run(sets, lambda network, part: network.forward_features(part)).numpy()

    def fit_transform(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None
    ) -> np.ndarray:
        return self.fit(X, y, sample_weight, mask=mask).transform(X, mask=mask)

    def save(self, folder: str | Path) -> None:
        """Write what was learnt to model.json and a .safetensors file beside it."""
        check_is_fitted(self)
        content = {
            "kind": type(self).__name__,
            "parameters": plain_parameters(self.get_params()),
            "encoder": self.encoder_.to_json(),
            "n_features_in": self.n_features_in_,
            "architecture": self.architecture_,
            "learned": self._learned(),
            "history": self.history_,
            "held_out_score": self.held_out_score_,
        }
        write_folder(Path(folder), content, self.network_.state_dict())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save` wrote; `SetEstimator.load` takes any kind of estimator."""
        content, weights = read_folder(Path(folder))
        kinds = {kind.__name__: kind for kind in (cls, *cls.__subclasses__())}
        kind = content.get("kind")
        if kind not in kinds:
            raise ValueError(f"{folder} holds a {kind}, not a {cls.__name__}")
        try:
            return kinds[kind]._of(content, weights)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{folder} holds no estimator that can be read: {reason}") from error

    @classmethod
    def _of(cls, content: dict[str, Any], weights: dict[str, Tensor]) -> Self:
        estimator = cls(**parameters_from(content["parameters"]))
        estimator.encoder_ = ElementEncoder.from_json(content["encoder"])
        estimator.n_features_in_ = content["n_features_in"]
        estimator.architecture_ = content["architecture"]
        estimator.history_ = content["history"]
        estimator.held_out_score_ = content["held_out_score"]
        estimator._restore(content["learned"])
        estimator.network_ = estimator._build(estimator.architecture_)
        estimator.network_.load_state_dict(weights)
        estimator.network_.eval()
        return estimator

    # A pickle holds arrays and no modules, so it depends on no class of PyTorch.

    def __getstate__(self) -> Any:
        state: dict[str, Any] = {**cast(Any, super().__getstate__())}
        if "network_" in state:
            tensors = state.pop("network_").state_dict()
            state["weights"] = {name: value.numpy() for name, value in tensors.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights = state.pop("weights", None)
        super().__setstate__(state)
        if weights is not None:
            self.network_ = self._build(self.architecture_)
            self.network_.load_state_dict(
                {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
            )
            self.network_.eval()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []  # features are float32 whatever comes in
        tags.target_tags.required = True
        return tags

    # What a subclass says.

    @abstractmethod
    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B,) the answer for each set."""

    @abstractmethod
    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None) -> float:
        """How good the predictions are; 1 is perfect."""

    def _labels_of_rows(self, sets: ColumnSets) -> np.ndarray:
        """(B,) from the target column of a table."""
        return sets.labels()

    @abstractmethod
    def _learn_target(self, labels: np.ndarray, sets: ColumnSets) -> np.ndarray:
        """(B,) what the loss takes, from labels as they were given."""

    def _class_weights(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target), dtype=np.float32)

    def _strata(self, target: np.ndarray) -> np.ndarray:
        return np.zeros(len(target))

    def _architecture(self, in_features: int, num_sets: int) -> dict[str, Any]:
        """All that `_build` needs."""
        width = self.width or _auto_width(num_sets)
        return {"in_features": in_features, "width": width, "dropout": self.dropout}

    @abstractmethod
    def _build(self, architecture: dict[str, Any]) -> nn.Module:
        """A fresh network."""

    @abstractmethod
    def _losses(self, network: nn.Module, sets: SetBatch, target: Tensor) -> Tensor:
        """(B,) the loss of each set."""

    def _learned(self) -> dict[str, Any]:
        """What JSON shall keep of `_learn_target`."""
        return {}

    def _restore(self, learned: dict[str, Any]) -> None:
        pass

    # What they share.

    def _open(
        self, X: Any, mask: Any, target: str | None, features: list[str] | None = None
    ) -> ColumnSets:
        """Sets in any of the forms; `target` and `features` are columns of a table."""
        return read_sets(X, mask, set_column=self.set_column, target=target, features=features)

    def _read(self, X: Any, mask: Any, target: str | None = None) -> ColumnSets:
        """Sets to run; of a table, the columns that `fit` saw."""
        check_is_fitted(self)
        sets = self._open(X, mask, target, list(self.encoder_.columns))
        if len(sets.columns) != self.n_features_in_:
            raise ValueError(
                f"X has {len(sets.columns)} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return sets

    def _read_labelled(self, X: Any, y: Any, mask: Any) -> tuple[ColumnSets, np.ndarray]:
        """Sets to score, and the label of each."""
        sets = self._read(X, mask, self.target if y is None else None)
        return sets, self._labels(sets, y)

    def _labels(self, sets: ColumnSets, y: Any) -> np.ndarray:
        """(B,) from `y`, or from the target column of a table."""
        if y is None and sets.target is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        if y is not None and sets.target is not None:
            raise ValueError(f"labels are given twice, by y and by the column {self.target!r}")
        labels = self._labels_of_rows(sets) if y is None else column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        if len(labels) != len(sets):
            raise ValueError(f"{len(sets)} sets need as many labels in y, got {len(labels)}")
        return labels

    def _run(self, sets: ColumnSets, call: Callable[[Any, SetBatch], Tensor]) -> Tensor:
        """What `call` makes of the network and some sets, for all sets."""
        device, sizes = choose_device(self.device), sets.sizes
        network = self.network_ if device.type == "cpu" else copy.deepcopy(self.network_).to(device)
        batch = self.encoder_.encode(sets)
        outputs = []
        with torch.inference_mode():
            for chosen in pieces(np.arange(len(sets)), sizes):
                part = take(batch, torch.from_numpy(chosen), sizes[chosen])
                outputs.append(call(network, part.to(device)).cpu())
        return torch.cat(outputs)

    def _plan(self, num_sets: int) -> Plan:
        batch_size = self.batch_size or min(256, max(16, 2 ** round(math.log2(num_sets / 16))))
        epochs = self.max_epochs or min(200, max(20, math.ceil(STEPS * batch_size / num_sets)))
        return Plan(
            batch_size,
            epochs,
            self.learning_rate,
            patience=math.ceil(self.patience * epochs),
            verbose=self.verbose,
        )

    def _check_parameters(self) -> None:
        for name in ("width", "batch_size", "max_epochs"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and value > 0):
                raise ValueError(f"{name} is None or a positive integer, got {value!r}")
        for name in ("learning_rate", "patience", "dropout", "validation_fraction"):
            if not isinstance(getattr(self, name), Real):
                raise TypeError(f"{name} is a number, got {getattr(self, name)!r}")
        for name in ("learning_rate", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is positive, got {getattr(self, name)!r}")
        for name in ("dropout", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 0 and below 1, got {getattr(self, name)!r}")


def pin_network(in_features: int, width: int, dropout: float, num_outputs: int) -> PinClassifier:
    """The paper's network whose aggregation makes width x width numbers."""
    return PinClassifier(
        in_features,
        num_outputs,
        branches=[(4 * width, 4 * width, width)] * 2,
        activations=BRANCHES,
        head=(8 * width,),
        dropout=dropout,
    )


def _auto_width(num_sets: int) -> int:
    """8 for hundreds of sets, 16 for thousands, 32, as in the paper, for tens of thousands."""
    return 8 if num_sets < 1_000 else 16 if num_sets < 20_000 else 32


def _checked_weight(sample_weight: Any, num_sets: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(num_sets, dtype=np.float32)
    weight = np.asarray(sample_weight, dtype=np.float32)
    if weight.shape != (num_sets,):
        raise ValueError(
            f"sample_weight has one number a set, shape ({num_sets},); got {weight.shape}"
        )
    if not (weight >= 0).all() or not weight.any():
        raise ValueError("sample_weight has a negative number, NaN, or zero for all sets")
    return weight / weight.mean()
