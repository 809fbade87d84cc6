"""Train a one-bit net on handwritten digits, export it, and let a process without torch read the test digits.

python examples/03_ship.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import askew
from askew.data.digits import digits
from askew.models.small_conv import small_conv
from askew.train.evaluate import reestimate_batchnorm

READER = """
import sys
import numpy as np
import askew

net = askew.load(sys.argv[1])
np.save(sys.argv[3], net(np.load(sys.argv[2])))
print(f"{net}: read without torch" if "torch" not in sys.modules else "torch was imported")
"""


def train(epochs: int, batch: int = 64) -> tuple[torch.nn.Module, askew.ASkew]:
    """A small convolutional net whose weights end at -1 and +1."""
    torch.manual_seed(0)
    data, model = digits(), small_conv(channels=16)
    steps = epochs * (len(data.train_y) // batch)
    groups = askew.groups(model, levels=askew.binary())
    optimizer = askew.ASkew(
        torch.optim.Adam(groups, lr=0.1), askew.LevelFirst(start=0.2), alpha=0.05, total_steps=steps
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.01)
    for _ in range(epochs):
        for index in torch.randperm(len(data.train_y))[: steps // epochs * batch].split(batch):
            optimizer.zero_grad()
            cross_entropy(model(data.train_x[index]), data.train_y[index]).backward()
            optimizer.step()
            scheduler.step()
    with askew.snapped(optimizer):  # BatchNorm as the shipped weights make it
        reestimate_batchnorm(model, [(data.train_x, data.train_y)])
    return model.eval(), optimizer


def main(epochs: int = 20) -> tuple[float, float]:
    """Returns the shipped net's test accuracy and how often it agrees with torch, both in per cent."""
    model, optimizer = train(epochs)
    data = digits()
    with tempfile.TemporaryDirectory() as folder:
        net, images, outputs = (Path(folder) / name for name in ("digits.askew", "images.npy", "outputs.npy"))
        written = askew.export(model, optimizer, net, input_shape=(1, 8, 8))
        print(f"{written.bytes:,} bytes, {written.ratio:.1f} times smaller than float32")
        np.save(images, data.test_x.numpy())
        subprocess.run([sys.executable, "-c", READER, net, images, outputs], check=True)
        classes = np.load(outputs).argmax(1)
    with askew.snapped(optimizer), torch.no_grad():
        same = 100 * float((model(data.test_x).argmax(1).numpy() == classes).mean())
    accuracy = 100 * float((classes == data.test_y.numpy()).mean())
    print(f"test accuracy {accuracy:.2f}%; the same class as torch on {same:.2f}% of the images")
    return accuracy, same


if __name__ == "__main__":
    main()
