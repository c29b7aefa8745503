"""Residual blocks of convolutions."""

from __future__ import annotations

from dynet_cy.functions.arguments import Input, as_input
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn.basic import Activation
from dynet_cy.nn.batch_norm import BatchNorm, GroupNorm
from dynet_cy.nn.containers import Sequential
from dynet_cy.nn.convolution import Conv2d
from dynet_cy.nn.layer import Layer

__all__ = ["ResidualBlock"]


class ResidualBlock(Layer):
    """f(F(x) + x): convolutions with norms, and a connection around them (He et al., "Deep residual learning for image
    recognition", CVPR 2016).

    F has two convolutions of 3 x 3. With `inner_channels` it is a bottleneck: one of 1 x 1 to fewer channels, one of
    3 x 3, one of 1 x 1 to the channels of the result. A norm follows each of them, and f all but the last. Where the
    shape changes, a convolution of 1 x 1 with a norm takes the place of x. The stride is that of the first convolution
    of 3 x 3.

    The parts have torchvision's names, `conv1`, `bn1`, ..., `downsample`, so `load_pytorch` reads its blocks.

    Parameters: those of `Conv2d` without b, and of the norms.

    Args:
        input_channels: channels of the image
        output_channels: channels of the result
        model: where the parameters go
        stride: steps along rows and columns
        inner_channels: the channels between the convolutions of a bottleneck; None, the default: no bottleneck
        norm_groups: the groups of a `GroupNorm` after each convolution, which needs no minibatch; None, the default: a
            `BatchNorm`
        activation: the name of f; see `Activation`

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, the channels cannot be divided into so many groups, or there is no such
            activation

    Example:
        >>> import dynet_cy as dy
        >>> block = dy.nn.ResidualBlock(8, 16, dy.ParameterCollection(), stride=2, norm_groups=4)
        >>> block(dy.zeros((6, 6, 8))).dim()
        ((3, 3, 16), 1)
        >>> bottleneck = dy.nn.ResidualBlock(16, 16, dy.ParameterCollection(), inner_channels=4)
        >>> [name for name, p in bottleneck.named_parameters()][:3]
        ['conv1.W', 'bn1.g', 'bn1.b']
    """

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        model: ParameterCollection,
        stride: int = 1,
        inner_channels: int | None = None,
        norm_groups: int | None = None,
        activation: str = "rectify",
    ) -> None:
        n, m, stride = (
            self._size(value, name)
            for value, name in (
                (input_channels, "input_channels"),
                (output_channels, "output_channels"),
                (stride, "stride"),
            )
        )
        self.activation = Activation(activation)
        self.norm_groups = norm_groups
        super().__init__(model, (n, m, stride, inner_channels, norm_groups, activation))
        if inner_channels is None:
            self.conv1, self.bn1 = self._filters(n, m, 3, stride)
            self.conv2, self.bn2 = self._filters(m, m, 3)
        else:
            inner = self._size(inner_channels, "inner_channels")
            self.conv1, self.bn1 = self._filters(n, inner, 1)
            self.conv2, self.bn2 = self._filters(inner, inner, 3, stride)
            self.conv3, self.bn3 = self._filters(inner, m, 1)
        self.downsample: Sequential | None = None
        if n != m or stride != 1:
            norm = (BatchNorm, m, -1) if norm_groups is None else (GroupNorm, norm_groups, m)
            self.downsample = Sequential([(Conv2d, n, m, 1, stride, "valid", False), norm], self.collection)

    def _filters(self, inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[Conv2d, Layer]:
        """A convolution and its norm."""
        filters = Conv2d(inputs, outputs, size, self.collection, stride, size // 2, bias=False)
        if self.norm_groups is None:
            return filters, BatchNorm(outputs, self.collection, axis=-1)
        return filters, GroupNorm(self.norm_groups, outputs, self.collection)

    def __call__(self, x: Input) -> Expression:
        """The result of the block.

        Args:
            x: shape ``{h,w,input_channels}``

        Returns:
            Expression of shape ``{h',w',output_channels}``, where h' is h / stride, rounded up.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of channels
            ValueError: with `BatchNorm`, in training mode, a channel has only one element
        """
        x = as_input(x, "ResidualBlock")
        y = self.bn2(self.conv2(self.activation(self.bn1(self.conv1(x)))))
        if self.spec[3] is not None:
            y = self.bn3(self.conv3(self.activation(y)))
        around = x if self.downsample is None else self.downsample(x)
        return self.activation(y + around)
