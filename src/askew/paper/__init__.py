"""The paper's experiments, one module a subject, with its settings and the published values."""
