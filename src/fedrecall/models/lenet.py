"""LeNet (conv 6, conv 16, 400-120-84-C) for images of 28x28 and 32x32 pixels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall.config.titles import titled
from fedrecall.errors import InputError
from fedrecall.models.heads import HeadOption, ScaleOption, with_head


class LeNet(nn.Module):
    """LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998, with max-pooling and ReLU.

    Images of 28x28 are padded to 32x32 by the first convolution, so that both sizes end in 16 x 5 x 5.
    """

    def __init__(self, channels: int, num_classes: int, padding: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        # Pooling before ReLU gives the same values with a quarter of the ReLU's work.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


@titled("LeNet")
def lenet(
    sample_shape: tuple[int, ...], num_classes: int, head: HeadOption = "linear", scale: ScaleOption = 10.0
) -> nn.Module:
    """LeNet for images of 28x28 or 32x32 pixels and any number of channels."""
    if len(sample_shape) != 3 or sample_shape[1:] not in ((28, 28), (32, 32)):
        raise InputError(f"model lenet takes images of 28x28 or 32x32, but a sample of this data is {sample_shape}")
    model = LeNet(sample_shape[0], num_classes, padding=2 if sample_shape[1] == 28 else 0)
    return with_head(model, head, scale)
