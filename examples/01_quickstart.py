"""Train a one-bit net on handwritten digits with ASkew, look at it while it trains, score it with weights of ±1.

python examples/01_quickstart.py
"""

import torch
from torch.nn.functional import cross_entropy

import askew
from askew.data.digits import digits
from askew.models.small_conv import small_conv
from askew.train.evaluate import reestimate_batchnorm, score


def main(epochs: int = 20, batch: int = 64) -> float:
    """Returns the test accuracy of the one-bit net in per cent."""
    torch.manual_seed(0)
    data = digits()
    model = small_conv(channels=16)
    steps = epochs * (len(data.train_y) // batch)

    groups = askew.groups(model, levels=askew.binary())
    optimizer = askew.ASkew(
        torch.optim.Adam(groups, lr=0.1), askew.LevelFirst(start=0.2), alpha=0.05, total_steps=steps
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.01)

    for epoch in range(epochs):
        for index in torch.randperm(len(data.train_y))[: steps // epochs * batch].split(batch):
            optimizer.zero_grad()
            cross_entropy(model(data.train_x[index]), data.train_y[index]).backward()
            optimizer.step()
            scheduler.step()
        if (epoch + 1) % 5 == 0:
            print(askew.diagnose(optimizer))

    with askew.snapped(optimizer):
        reestimate_batchnorm(model, [(data.train_x, data.train_y)])
        accuracy = score(model, [(data.test_x, data.test_y)]).accuracy
        values = sorted({float(v) for p in groups[0]["params"] for v in p.detach().unique()})
    print(f"test accuracy with weights {values}: {accuracy:.2f}%")
    return accuracy


if __name__ == "__main__":
    main()
