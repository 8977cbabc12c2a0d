"""The paper's toy experiments: two quadratic critics, and the Shooting environment."""
