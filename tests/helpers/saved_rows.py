"""The transitions in a saved replay buffer."""

import torch

from torchrl_vmfer.plain_state import tensordict_from_plain


def rows_in(replay):
    """Returns the rows of a buffer's state as nested dictionaries of tensors."""
    return torch.cat([*map(tensordict_from_plain, replay["storage"]["rows"])]).to_dict()
