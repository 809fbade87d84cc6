"""Train a net of your own at one bit: a little transformer that reads a handwritten digit row by row.

python examples/02_own_net.py, then askew report runs/own

Nothing below `Reader` knows what it is: `askew.groups` finds the weights of its linear and attention layers, `fit`
trains, scores, keeps checkpoints (start it again after a Ctrl-C and it goes on) and fills a record.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import askew
from askew.data.digits import digits
from askew.train.config import TrainConfig
from askew.train.loop import Keeper, fit
from askew.train.record import Record
from askew.train.source import TensorSource


class Reader(nn.Module):
    """Eight rows of eight pixels, two blocks of attention, a class."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) / 8)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.leave = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (B, 1, 8, 8)."""
        return self.leave(self.blocks(self.enter(x[:, 0]) + self.place).mean(1))


def main(out: Path = Path("runs/own"), epochs: int = 25) -> float:
    """Returns the test accuracy of the one-bit net in per cent."""
    torch.manual_seed(0)
    data, model = digits(), Reader()
    config = TrainConfig(
        "askew-level-first", epochs, lr=0.005, annealing=askew.LevelFirst(start=0.3), alpha=0.05, score_every=5
    )

    # the entry and the exit stay real; one scale a channel, since no BatchNorm takes the size of the weights out
    groups = askew.groups(model, levels=askew.binary(), scale="abs-mean", per="channel", skip=["enter", "leave"])
    optimizer = askew.ASkew(
        torch.optim.Adam(groups, lr=config.lr),
        config.annealing,
        alpha=config.alpha,
        total_steps=config.total_steps(len(data.train_y)),
    )
    record = fit(
        model,
        optimizer,
        config.scheduler(optimizer, len(data.train_y)),
        TensorSource((data.train_x, data.train_y), config.batch_size, config.seed),
        TensorSource((data.test_x, data.test_y), config.batch_size, config.seed),
        config,
        Record("digits-by-row", config.method, config.describe() | {"model": "Reader"}, config.seed),
        keeper=Keeper(out),
    )
    record.save(out)
    print(askew.diagnose(optimizer))
    print(f"test accuracy: {record.summary['accuracy']:.2f}%")
    return record.summary["accuracy"]


if __name__ == "__main__":
    main()
