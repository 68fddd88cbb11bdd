"""Trains a small 1-D convolutional classifier on real images, with torch's built-ins and with cudamem's operators.

scikit-learn's digits are 1,797 images of 8 x 8 pixels. Each is read as a sequence of 64 pixels, one after the other.
The two runs start from the same weights and see the same batches, so that their losses must agree step by step, up to
the rounding of sums that are added in another order.

    python examples/train_digits.py [--epochs 10] [--device cuda]
"""

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import cudamem_ops  # noqa: F401  (registers torch.ops.cudamem)


class BuiltIns:
    """torch's own operators, under the names that they have in torch.ops.cudamem."""

    conv1d = staticmethod(F.conv1d)
    sum = staticmethod(torch.sum)

    @staticmethod
    def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
        return x.transpose(dim0, dim1).contiguous()


class Classifier(nn.Module):
    """Pixels in, ten scores out. `ops` is where transpose, sum and conv1d come from."""

    def __init__(self, ops: Any, channels: int = 8) -> None:
        super().__init__()
        self.ops = ops
        self.filters = nn.Conv1d(1, channels, 9, padding=4)  # the modules hold the weights; forward calls `ops`
        self.depthwise = nn.Conv1d(channels, channels, 17, padding=8, groups=channels)
        self.head = nn.Linear(64 * channels, 10)

    def _conv(self, layer: nn.Conv1d, x: Tensor) -> Tensor:
        return self.ops.conv1d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def forward(self, pixels: Tensor) -> Tensor:  # [batch, time, 1]
        x = pixels - self.ops.sum(pixels, [1], True) / pixels.shape[1]  # each image around its own mean
        x = self.ops.transpose(x, 1, 2)  # [batch, 1, time]
        x = F.relu(self._conv(self.filters, x))
        x = F.relu(self._conv(self.depthwise, x))  # [batch, channels, time]
        return self.head(x.flatten(1))


LOSS_TOLERANCE, ACCURACY_TOLERANCE = 0.02, 0.03
AGREEMENT = f"The two runs agree: losses within {LOSS_TOLERANCE:.0%}, accuracies within {ACCURACY_TOLERANCE:.0%}."


@dataclass
class Run:
    losses: list[float]  # mean of each epoch
    accuracy: float  # on the images that were held out
    seconds: float


def load_data(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device).unsqueeze(-1) / 16
    labels = torch.tensor(digits.target, device=device)
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def train(ops: Any, name: str, epochs: int, device: str, progress: Progress | None = None) -> Run:
    """One training run from seed 0. Losses stay on the device until the end, so that no step waits for them."""
    torch.manual_seed(0)
    images, labels, test_images, test_labels = load_data(device)
    model = Classifier(ops).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(0)
    losses = torch.zeros(epochs, device=device)
    batches = len(images) // 64
    start = time.perf_counter()
    steps = range(epochs)
    for epoch in progress.track(steps, description=name) if progress else steps:
        for batch in torch.randperm(len(images), generator=order)[: batches * 64].view(batches, 64).to(device):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[epoch] += loss.detach() / batches
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    return Run(losses.tolist(), accuracy, time.perf_counter() - start)


def train_both(epochs: int, device: str, console: Console) -> tuple[Run, Run]:
    torch.backends.cudnn.allow_tf32 = False  # the same arithmetic on both sides
    train(BuiltIns, "", 1, device)  # warm-up: cuDNN and the allocator start once, for neither run
    with Progress(console=console, transient=True) as progress:
        return (
            train(BuiltIns, "torch built-ins", epochs, device, progress),
            train(torch.ops.cudamem, "torch.ops.cudamem", epochs, device, progress),
        )


def check_agreement(built_in: Run, ours: Run) -> None:
    """Raises where the two runs differ by more than rounding can explain."""
    for epoch, (a, b) in enumerate(zip(built_in.losses, ours.losses, strict=True)):
        if not abs(a - b) <= LOSS_TOLERANCE * max(a, 0.1):
            raise SystemExit(f"epoch {epoch + 1}: the losses {a:.4f} (torch) and {b:.4f} (cudamem) do not agree")
    if not abs(built_in.accuracy - ours.accuracy) <= ACCURACY_TOLERANCE:
        raise SystemExit(f"the accuracies {built_in.accuracy:.3f} and {ours.accuracy:.3f} do not agree")


def show(built_in: Run, ours: Run, console: Console) -> None:
    table = Table(title="Digits, read as sequences: 1,437 to train on, 360 held out")
    for column in ("", "torch built-ins", "torch.ops.cudamem", "difference"):
        table.add_column(column, justify="right")
    for epoch, (a, b) in enumerate(zip(built_in.losses, ours.losses, strict=True)):
        table.add_row(f"loss, epoch {epoch + 1}", f"{a:.4f}", f"{b:.4f}", f"{b - a:+.1e}")
    table.add_section()
    table.add_row(
        "held-out accuracy",
        f"{built_in.accuracy:.1%}",
        f"{ours.accuracy:.1%}",
        f"{ours.accuracy - built_in.accuracy:+.1%}",
    )
    table.add_row(
        "time", f"{built_in.seconds:.2f} s", f"{ours.seconds:.2f} s", f"{built_in.seconds / ours.seconds:.2f}x"
    )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    console = Console()
    built_in, ours = train_both(args.epochs, args.device, console)
    show(built_in, ours, console)
    check_agreement(built_in, ours)
    console.print(AGREEMENT)


if __name__ == "__main__":
    main()
