"""A custom network: residual blocks with layer normalization."""

from torch import Tensor, nn


class Residual(nn.Module):
    """Maps ``[..., in_features]`` to ``[..., out_features]``.

    Args:
        in_features: the size of the inputs; the recipe passes it.
        out_features: the size of the outputs; the recipe passes it.
        width: the units of each block, from ``network_kwargs.width=``.
        blocks: the number of blocks, from ``network_kwargs.blocks=``.
    """

    def __init__(self, in_features: int, out_features: int, width: int = 256, blocks: int = 2):
        super().__init__()
        self.first = nn.Linear(in_features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of the network."""
        units = self.first(inputs)
        for block in self.blocks:
            units = units + block(units)
        return self.last(units)
