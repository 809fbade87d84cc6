"""Networks: plain nn.Module."""
