"""How many classes there are: one module for each estimator."""
