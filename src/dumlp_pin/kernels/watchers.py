"""Who looks at PyTorch's operations as they run: then a kernel must not take their place."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode

# Hooks on all modules, which run wherever a module is called.
_HOOKS = (
    modules._global_forward_hooks,
    modules._global_forward_pre_hooks,
    modules._global_backward_hooks,
    modules._global_backward_pre_hooks,
)


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
    if any(_HOOKS):
        return "there is a hook on all modules"
    return None
