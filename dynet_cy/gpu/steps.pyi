def set_most_multiplied(n: float) -> float:
    """Set how many multiplications a product that is computed in the launch of cells has at most; 0: none is."""
