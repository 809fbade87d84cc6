"""Tables, figures and pages, made from run records only."""
