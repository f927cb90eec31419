"""Who looks at PyTorch's operations as they run: then a kernel must not take their place."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode


def watcher() -> str | None:
    """Who asks for more than numbers and their gradient: another derivative, a program, a count.

    >>> watcher() is None
    True
    >>> torch.func.vmap(lambda x: print(watcher()) or x)(torch.ones(2)).sum()
    a function transform of torch.func is at work
    tensor(2.)
    """
    # torch.func has no public way to ask.
    transforms = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    if forward_ad._current_level >= 0 or transforms.maybe_current_level() is not None:
        return "a function transform of torch.func is at work"
    if torch.jit.is_tracing() or _get_current_dispatch_mode() is not None:  # pyright: ignore[reportPrivateImportUsage]
        return "somebody traces the operations"
    return None
